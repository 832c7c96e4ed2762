//! Calls in any order, judged by a map.

use super::rig::{Rig, SimHome, Thing};
use crate::record::Kind;
use crate::{Config, KeepError, LoadError, Ticket};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Keep(Vec<(u8, u8)>),
    Load(u8, u16, u16),
    Remove(Vec<u8>),
    Unlink(u32),
    Finish,
    Drop,
    Settle,
    Scrub(u32),
    Reopen,
    Crash,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => vec((0..40_u8, any::<u8>()), 1..6).prop_map(Op::Keep),
        6 => (0..40_u8, any::<u16>(), any::<u16>()).prop_map(|(a, b, c)| Op::Load(a, b, c)),
        2 => vec(0..40_u8, 1..4).prop_map(Op::Remove),
        2 => (0..200_000_u32).prop_map(Op::Unlink),
        1 => Just(Op::Finish),
        1 => Just(Op::Drop),
        1 => Just(Op::Settle),
        1 => (1..300_000_u32).prop_map(Op::Scrub),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

/// The value of a record follows from its number alone, so that it may be kept again.
fn thing(number: u8) -> Thing {
    let sizes = [0, 1, 100, 4000, 4096, 9000, 32_767, 32_768, 50_000, 100_000];
    Thing::new(number.into(), sizes[usize::from(number) % sizes.len()])
}

struct Model {
    rig: Rig,
    /// What must be there, by number.
    there: BTreeSet<u8>,
    tickets: Vec<(Box<dyn Ticket>, BTreeSet<u8>)>,
}

impl Model {
    fn new(kind: Kind) -> Self {
        let mut config = Config::new(kind, 2 << 20);
        config.bucket_bytes_max = 200_000;
        config.bucket_records_max = 5;
        config.handles_max = 2;
        config.token = Some(1);
        let rig = Rig::with(config, Box::new(SimHome::new(1)));
        Self { rig, there: BTreeSet::new(), tickets: Vec::new() }
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Keep(numbers) => self.keep(numbers)?,
            Op::Load(number, start, want) => self.load(*number, *start, *want)?,
            Op::Remove(numbers) => {
                let ids: Vec<_> = numbers.iter().map(|&number| thing(number).id).collect();
                self.rig.backend().remove(&ids).unwrap();
                for number in numbers {
                    self.there.remove(number);
                    for (_, hidden) in &mut self.tickets {
                        hidden.remove(number);
                    }
                }
            }
            Op::Unlink(bytes) => {
                if let Some(ticket) = self.rig.backend().unlink((*bytes).into()) {
                    let numbers = ticket.records().iter().map(|id| id.object.sequence as u8);
                    let hidden: BTreeSet<u8> = numbers.collect();
                    for number in &hidden {
                        prop_assert!(self.there.remove(number), "{number} was not there");
                    }
                    self.tickets.push((ticket, hidden));
                }
            }
            Op::Finish => {
                if let Some((ticket, _)) = self.tickets.pop() {
                    ticket.finish(Duration::from_secs(5)).unwrap();
                }
            }
            Op::Drop => {
                if let Some((ticket, hidden)) = self.tickets.pop() {
                    drop(ticket);
                    self.there.extend(hidden);
                }
            }
            Op::Settle => self.rig.backend().settle().unwrap(),
            Op::Scrub(bytes) => {
                let (bad, _) = self.rig.backend().scrub(0, (*bytes).into());
                prop_assert!(bad.is_empty(), "{bad:?}");
            }
            Op::Reopen | Op::Crash => self.start(matches!(op, Op::Crash))?,
        }
        self.rig.balanced();
        let usage = self.rig.backend().usage();
        prop_assert_eq!(usage.records, self.there.len() as u64);
        Ok(())
    }

    fn keep(&mut self, numbers: &[(u8, u8)]) -> Result<(), TestCaseError> {
        let mut things: Vec<Thing> = numbers.iter().map(|&(number, _)| thing(number)).collect();
        for (thing, (_, how)) in things.iter_mut().zip(numbers) {
            if how % 16 == 0 {
                thing.seal = mooncrate_core::Seal(1);
            }
        }
        for ((&(number, how), _), result) in numbers.iter().zip(&things).zip(self.rig.keep(&things))
        {
            let new = !self.there.contains(&number);
            match result {
                Ok(()) => {
                    prop_assert!(new && how % 16 != 0, "{number} was kept");
                    self.there.insert(number);
                }
                Err(KeepError::Corrupt) => prop_assert!(how % 16 == 0),
                // One that is being evicted is still on the disk; what was evicted is not.
                Err(KeepError::Exists) => {
                    let evicting = self.tickets.iter().any(|(_, hidden)| hidden.contains(&number));
                    prop_assert!(!new || evicting, "{number} is not there");
                }
                Err(KeepError::Full { .. }) => {}
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Ok(())
    }

    fn load(&self, number: u8, start: u16, want: u16) -> Result<(), TestCaseError> {
        let thing = thing(number);
        let len = thing.value.len() as u64;
        let start = u64::from(start) % (len + 1);
        let want = u64::from(want) % (len - start + 1);
        let loaded = self.rig.part(&thing, start, want);
        match (self.there.contains(&number), loaded) {
            (true, Ok(())) | (false, Err(LoadError::Missing)) => Ok(()),
            (there, loaded) => {
                Err(TestCaseError::fail(format!("{number} there: {there}, loaded: {loaded:?}")))
            }
        }
    }

    fn start(&mut self, crash: bool) -> Result<(), TestCaseError> {
        // Tickets are forgotten, not dropped: the process is gone.
        for (ticket, hidden) in self.tickets.drain(..) {
            std::mem::forget(ticket);
            self.there.extend(hidden);
        }
        if crash {
            self.rig.crash();
        } else {
            self.rig.reopen();
        }
        let found: BTreeMap<u8, _> =
            self.rig.found.values().map(|r| (r.id.object.sequence as u8, r)).collect();
        for (number, record) in &found {
            prop_assert!(thing(*number).is(record));
            prop_assert!(self.there.contains(number), "{number} came back");
        }
        for number in &self.there {
            prop_assert!(found.contains_key(number), "{number} is lost");
        }
        self.there = found.into_keys().collect();
        Ok(())
    }
}

fn judged(kind: Kind, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut model = Model::new(kind);
    for op in ops {
        model.run(op)?;
    }
    model.start(true)?;
    for number in 0..40 {
        model.load(number, 0, u16::MAX)?;
    }
    Ok(())
}

/// Kept again while it is being evicted: after a restart there are not two of it, one of which would come back
/// when the other is gone.
#[test]
fn a_record_is_not_kept_twice_while_it_is_evicted() {
    let keep = |number| Op::Keep(vec![(0, 1), (number, 1)]);
    let ops = [
        Op::Keep(vec![(28, 1)]),
        Op::Unlink(0),
        keep(28),
        Op::Reopen,
        Op::Unlink(0),
        Op::Finish,
        Op::Reopen,
    ];
    for kind in [Kind::Bucket, Kind::PerKey, Kind::Offset] {
        judged(kind, &ops).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn buckets_are_like_a_map(ops in vec(any_op(), 0..60)) {
        judged(Kind::Bucket, &ops)?;
    }

    #[test]
    fn files_are_like_a_map(ops in vec(any_op(), 0..60)) {
        judged(Kind::PerKey, &ops)?;
    }

    #[test]
    fn one_file_is_like_a_map(ops in vec(any_op(), 0..60)) {
        judged(Kind::Offset, &ops)?;
    }
}
