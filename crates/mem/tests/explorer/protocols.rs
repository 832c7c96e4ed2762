//! The protocols, each as a few processes. A line of a process is one atomic step.

use super::engine::{Found, Process, Protocol, Slot, Step, World};
use Step::{Done, Goto, Wait};

fn protocol(start: World, processes: Vec<Process>) -> Protocol {
    Protocol { start, processes, at_rest: |_| None }
}

/// Lines `first` and the next two: copy both cells, then accept.
fn copy_cells(world: &mut World, line: u8, first: u8) -> Step {
    let cell = usize::from(line - first);
    world.copy[cell] = world.cells[cell];
    Goto(line + 1)
}

/// The next writer: waits for the range, fills it with object 2. `fresh` also writes a new header
/// with no readers in it.
fn next_writer(fresh: bool) -> Process {
    Box::new(move |w, line| match line {
        0 if !w.free => Wait,
        0 => {
            w.free = false;
            w.state = Slot::Writing;
            if fresh {
                w.pins = 0;
            }
            Goto(1)
        }
        1 | 2 => {
            w.cells[usize::from(line - 1)] = 2;
            Goto(line + 1)
        }
        _ => {
            w.state = Slot::Ready;
            Done
        }
    })
}

/// A: the reader sees READY, then counts itself; the evictor sees no reader, then changes the state.
/// The header of the next object starts with no readers, as a new header does.
pub(crate) fn separate_reader_count() -> Protocol {
    let reader: Process = Box::new(|w, line| match line {
        0 if w.state == Slot::Ready => Goto(1),
        0 => Done,
        1 => {
            w.pins += 1;
            Goto(2)
        }
        2 | 3 => copy_cells(w, line, 2),
        4 => {
            w.accept();
            Goto(5)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    let evictor: Process = Box::new(|w, line| match line {
        0 if w.pins == 0 => Goto(1),
        1 if w.state == Slot::Ready => {
            w.state = Slot::Dead;
            Goto(2)
        }
        0 | 1 => Done,
        _ => {
            w.free = true;
            Done
        }
    });
    protocol(World::ready(), vec![reader, evictor, next_writer(true)])
}

/// B: the reader counts itself first and looks afterwards; the evictor drains after its change.
pub(crate) fn increment_and_look(fresh: bool) -> Protocol {
    let reader: Process = Box::new(|w, line| match line {
        0 => {
            w.pins += 1;
            Goto(1)
        }
        1 if w.readable(0) => Goto(2),
        1 => Goto(5),
        2 | 3 => copy_cells(w, line, 2),
        4 => {
            w.accept();
            Goto(5)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    let evictor: Process = Box::new(|w, line| match line {
        0 => {
            w.state = Slot::Dead;
            w.generation = 1;
            Goto(1)
        }
        _ if w.pins != 0 => Wait,
        _ => {
            w.free = true;
            Done
        }
    });
    protocol(World::ready(), vec![reader, evictor, next_writer(fresh)])
}

/// C: state, pins and generation in one word; pin is one step, and so is free with its bump. Cg: the
/// same word without the generation.
pub(crate) fn packed(generations: bool) -> Protocol {
    let reader: Process = Box::new(move |w, line| match line {
        0 => {
            let here = if generations { w.generation } else { 0 };
            if w.state == Slot::Ready && here == 0 {
                w.pins += 1;
                Goto(1)
            } else {
                Done
            }
        }
        1 | 2 => copy_cells(w, line, 1),
        3 => {
            w.accept();
            Goto(4)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    protocol(World::ready(), vec![reader, freeing_evictor(), next_writer(false)])
}

/// Frees in one step: no pins, READY to DEAD, bump, range free.
fn freeing_evictor() -> Process {
    Box::new(|w, _| match w.pins {
        0 => {
            w.state = Slot::Dead;
            w.generation += 1;
            w.free = true;
            Done
        }
        _ => Wait,
    })
}

/// C': fetch-add first, then look at the word as it was before; a refused reader takes it back. The
/// transitions keep the pins; C'': the writer of the next object starts with a fresh word.
pub(crate) fn fetch_add(fresh: bool) -> Protocol {
    let reader: Process = Box::new(|w, line| match line {
        0 => {
            let readable = w.readable(0);
            w.pins += 1;
            Goto(if readable { 1 } else { 4 })
        }
        1 | 2 => copy_cells(w, line, 1),
        3 => {
            w.accept();
            Goto(4)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    protocol(World::ready(), vec![reader, freeing_evictor(), next_writer(fresh)])
}

/// The range is handed out before the word is bumped: the mistake of canary 2.
fn careless_evictor() -> Process {
    Box::new(|w, line| match line {
        0 if w.pins != 0 => Wait,
        0 => {
            w.free = true;
            Goto(1)
        }
        _ => {
            w.generation = 1;
            Done
        }
    })
}

/// The writer that follows it: it uses another slot, so the old word still says READY.
fn writer_elsewhere() -> Process {
    Box::new(|w, line| match line {
        0 if !w.free => Wait,
        0 => Goto(1),
        1 | 2 => {
            w.cells[usize::from(line - 1)] = 2;
            Goto(line + 1)
        }
        _ => Done,
    })
}

/// Ce: early reuse against a pinning reader.
pub(crate) fn early_reuse_pinned() -> Protocol {
    let reader: Process = Box::new(|w, line| match line {
        0 if w.readable(0) => {
            w.pins += 1;
            Goto(1)
        }
        0 => Done,
        1 | 2 => copy_cells(w, line, 1),
        3 => {
            w.accept();
            Goto(4)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    protocol(World::ready(), vec![reader, careless_evictor(), writer_elsewhere()])
}

/// The reader of R3; without `again` it does not look at the word after the copy.
fn rereading_reader(again: bool) -> Process {
    Box::new(move |w, line| match line {
        0 if w.readable(0) => Goto(1),
        0 => Done,
        1 | 2 => copy_cells(w, line, 1),
        _ => {
            if !again || w.readable(0) {
                w.accept();
            }
            Done
        }
    })
}

/// D3: early reuse against a rereading reader.
pub(crate) fn early_reuse_reread() -> Protocol {
    let processes = vec![rereading_reader(true), careless_evictor(), writer_elsewhere()];
    protocol(World::ready(), processes)
}

/// D1 and D2: a one-sided reader, without and with the second look.
pub(crate) fn one_sided(again: bool) -> Protocol {
    let processes = vec![rereading_reader(again), freeing_evictor(), next_writer(false)];
    protocol(World::ready(), processes)
}

/// What the reader does against a writer that was given up but still stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZombieReader {
    Rereads,
    Pins,
    Verifies,
}

/// Z: the put of object 2 was given up and its range given to object 1, whose life is generation 0;
/// then the writer of object 2 wakes up.
pub(crate) fn zombie(kind: ZombieReader) -> Protocol {
    let zombie: Process = Box::new(|w, line| match line {
        0 => {
            w.cells[0] = 2;
            Goto(1)
        }
        _ => Done,
    });
    let owner: Process = Box::new(|w, line| match line {
        0 | 1 => {
            w.cells[usize::from(line)] = 1;
            Goto(line + 1)
        }
        _ => {
            w.state = Slot::Ready;
            Done
        }
    });
    let reader: Process = Box::new(move |w, line| match line {
        0 if w.readable(0) => {
            w.pins += i8::from(kind == ZombieReader::Pins);
            Goto(1)
        }
        0 => Wait,
        1 | 2 => copy_cells(w, line, 1),
        3 => {
            let sealed = kind != ZombieReader::Verifies || w.copy == [1, 1];
            if w.readable(0) && sealed {
                w.accept();
            }
            Goto(4)
        }
        _ => {
            if kind == ZombieReader::Pins {
                w.unpin();
            }
            Done
        }
    });
    let start = World { state: Slot::Writing, cells: [0, 0], ..World::default() };
    protocol(start, vec![zombie, owner, reader])
}

/// Who keeps the book of a client's pins, and in which order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ledger {
    PinThenBook,
    BookThenPin,
    OwnerDoesBoth,
}

/// F: a client pins, reads, unpins, and may die between any two steps; then the owner takes back
/// what the ledger says, and wants to free.
pub(crate) fn ledger(kind: Ledger) -> Protocol {
    let client: Process = Box::new(move |w, line| {
        if w.crashed {
            return Done;
        }
        let pin_first = kind == Ledger::PinThenBook;
        match (line, kind) {
            (0, Ledger::OwnerDoesBoth) => {
                // One request; the owner, who does not die with the client, does both.
                w.pins += 1;
                w.booked += 1;
                Goto(2)
            }
            (3, Ledger::OwnerDoesBoth) => {
                w.booked -= 1;
                w.unpin();
                Done
            }
            (0 | 1, _) if (line == 0) == pin_first => {
                w.pins += 1;
                Goto(line + 1)
            }
            (0 | 1, _) => {
                w.booked += 1;
                Goto(line + 1)
            }
            (2, _) => {
                w.copy = w.cells;
                Goto(3)
            }
            // Leaving undoes it in the opposite order.
            (3 | 4, _) if (line == 3) == pin_first => {
                w.booked -= 1;
                Goto(line + 1)
            }
            (3 | 4, _) => {
                w.unpin();
                Goto(line + 1)
            }
            _ => Done,
        }
    });
    let death: Process = Box::new(|w, _| {
        w.crashed = true;
        Done
    });
    let reaper: Process = Box::new(|w, line| match line {
        0 if !w.crashed => Wait,
        0 if w.booked > 0 => {
            w.booked -= 1;
            w.unpin();
            Goto(0)
        }
        _ => Done,
    });
    let leaked = |w: &World| (w.crashed && w.pins > 0).then_some(Found::Leaked);
    let processes = vec![client, death, reaper];
    Protocol { start: World::ready(), processes, at_rest: leaked }
}

/// P: attempt 1 of a put timed out and its slot was given to attempt 2 of the same key; the late end
/// of attempt 1 arrives while attempt 2 is writing. The reader takes what is READY.
pub(crate) fn late_end(tokens: bool) -> Protocol {
    let late: Process = Box::new(move |w, _| {
        if w.state == Slot::Writing && (!tokens || w.token == 1) {
            w.state = Slot::Ready;
        }
        Done
    });
    let second: Process = Box::new(|w, line| match line {
        0 => {
            w.state = Slot::Writing;
            w.token = 2;
            Goto(1)
        }
        1 | 2 => {
            w.cells[usize::from(line - 1)] = 1;
            Goto(line + 1)
        }
        _ => {
            w.state = Slot::Ready;
            Done
        }
    });
    let reader: Process = Box::new(|w, line| match line {
        0 if w.state == Slot::Ready => Goto(1),
        0 => Wait,
        1 | 2 => copy_cells(w, line, 1),
        _ => {
            if w.copy.contains(&0) {
                w.found.insert(Found::HalfWritten);
            }
            Done
        }
    });
    protocol(World { state: Slot::Dead, ..World::default() }, vec![late, second, reader])
}

/// Q: a remove, and a reader that holds a locator from before. `waits`: the remove answers only
/// after the owner retired the slot.
pub(crate) fn remove(waits: bool) -> Protocol {
    let master: Process = Box::new(move |w, line| match line {
        // The index forgets, and the order goes to the owner.
        0 => {
            w.seen = 1;
            Goto(1)
        }
        1 if waits && w.state == Slot::Ready => Wait,
        _ => {
            w.removed = true;
            Done
        }
    });
    let owner: Process = Box::new(|w, _| {
        if w.seen == 0 {
            return Wait;
        }
        w.state = Slot::Retiring;
        Done
    });
    let reader: Process = Box::new(|w, line| match line {
        // A get begins: it remembers whether the removal was confirmed before.
        0 => {
            w.began_after = w.removed;
            Goto(1)
        }
        1 if w.readable(0) => {
            w.pins += 1;
            Goto(2)
        }
        1 => Done,
        2 | 3 => copy_cells(w, line, 2),
        4 => {
            if w.began_after {
                w.found.insert(Found::ReadAfterRemove);
            }
            Goto(5)
        }
        _ => {
            w.unpin();
            Done
        }
    });
    protocol(World::ready(), vec![master, owner, reader])
}
