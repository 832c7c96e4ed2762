//! The engine: a world of a few small numbers, some processes that each take one atomic step at a
//! time, and a search through every world that any order of steps can reach.

use std::collections::{BTreeSet, HashSet};

/// What a protocol must never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Found {
    /// A reader accepted a whole value of another object.
    Foreign,
    /// A reader accepted a mixture.
    Torn,
    /// More readers left than came.
    Negative,
    /// All processes are done, and a pin is left.
    Leaked,
    /// A reader accepted a value before its last byte.
    HalfWritten,
    /// A reader accepted a value after its removal was confirmed.
    ReadAfterRemove,
}

/// State of a slot; the generation stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum Slot {
    #[default]
    Ready,
    Retiring,
    Dead,
    Writing,
}

/// A world. Not every protocol uses every field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one bit of a small world")]
pub(crate) struct World {
    pub(crate) state: Slot,
    pub(crate) generation: u8,
    pub(crate) pins: i8,
    /// Whether the range may be handed out.
    pub(crate) free: bool,
    /// Which object the two halves of the range hold; 0: not yet written.
    pub(crate) cells: [u8; 2],
    /// What a reader copied.
    pub(crate) copy: [u8; 2],
    /// The generation that a reader saw, or a process's own flag.
    pub(crate) seen: u8,
    /// Pins that a ledger knows.
    pub(crate) booked: i8,
    /// Whether a process died.
    pub(crate) crashed: bool,
    /// Whether a removal was confirmed.
    pub(crate) removed: bool,
    /// Whether the reader began after that.
    pub(crate) began_after: bool,
    /// The token that the slot expects.
    pub(crate) token: u8,
    /// What went wrong, if anything.
    pub(crate) found: BTreeSet<Found>,
    /// Where each process stands.
    pub(crate) at: [u8; 4],
}

/// What a process does next.
pub(crate) enum Step {
    /// It goes on there.
    Goto(u8),
    /// It cannot move in this world.
    Wait,
    /// It is done.
    Done,
}

/// A process: one atomic step from a line.
pub(crate) type Process = Box<dyn Fn(&mut World, u8) -> Step>;

/// The mark of a process that is done.
const DONE: u8 = u8::MAX;

pub(crate) struct Protocol {
    pub(crate) start: World,
    pub(crate) processes: Vec<Process>,
    /// Checked when no process can move.
    pub(crate) at_rest: fn(&World) -> Option<Found>,
}

impl World {
    /// A range that holds object 1, ready to read.
    pub(crate) fn ready() -> Self {
        Self { cells: [1, 1], ..Self::default() }
    }

    /// The reader accepts its copy as object 1.
    pub(crate) fn accept(&mut self) {
        let found = match self.copy {
            [1, 1] => return,
            [a, b] if a == b => Found::Foreign,
            _ => Found::Torn,
        };
        self.found.insert(found);
    }

    /// One reader less.
    pub(crate) fn unpin(&mut self) {
        self.pins -= 1;
        if self.pins < 0 {
            self.found.insert(Found::Negative);
        }
    }

    /// Whether generation and state allow a reader of `generation`.
    pub(crate) fn readable(&self, generation: u8) -> bool {
        self.state == Slot::Ready && self.generation == generation
    }
}

/// Walks through all worlds; returns how many there are and what went wrong in any.
pub(crate) fn explore(protocol: &Protocol) -> (usize, BTreeSet<Found>) {
    let mut seen = HashSet::from([protocol.start.clone()]);
    let mut open = vec![protocol.start.clone()];
    let mut found = BTreeSet::new();
    while let Some(world) = open.pop() {
        let mut moved = false;
        for (who, process) in protocol.processes.iter().enumerate() {
            if world.at[who] == DONE {
                continue;
            }
            let mut next = world.clone();
            match process(&mut next, world.at[who]) {
                Step::Wait => continue,
                Step::Goto(line) => next.at[who] = line,
                Step::Done => next.at[who] = DONE,
            }
            moved = true;
            found.extend(next.found.iter().copied());
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
        if !moved {
            found.extend((protocol.at_rest)(&world));
        }
    }
    (seen.len(), found)
}
