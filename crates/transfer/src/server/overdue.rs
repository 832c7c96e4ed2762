//! Which pin of a connection keeps a removed value for too long (decision 0037). A connection may have a million
//! pins, so one call looks at few of them, and the next call goes on where this one stopped: what it costs is
//! bounded, and over calls every pin is looked at, whichever place it has.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Pins that one call looks at.
pub(super) const LOOKS_MAX: usize = 64;

/// How far the looks have come.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// The pin that was looked at last, in the order of their numbers. None has number 0.
    last: u64,
    /// One that was found. It stays overdue until it is given back: a removed value never comes back.
    found: Option<u64>,
}

impl Overdue {
    /// Whether a pin is known to be overdue, after a look at the next few. Numbers grow with time, so behind
    /// the first that is not old none is.
    pub(super) fn look<P>(
        &mut self,
        pins: &BTreeMap<u64, P>,
        is_old: impl Fn(&P) -> bool,
        keeps_removed: impl Fn(&P) -> bool,
    ) -> bool {
        if self.found.is_some_and(|id| pins.contains_key(&id)) {
            return true;
        }
        self.found = None;
        for _ in 0..LOOKS_MAX {
            let mut ahead = pins.range((Excluded(self.last), Unbounded));
            let Some((id, pin)) = ahead.next().filter(|(_, pin)| is_old(pin)) else {
                // All that are old were looked at: the next call begins anew.
                self.last = 0;
                return false;
            };
            self.last = *id;
            if keeps_removed(pin) {
                self.found = Some(*id);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Calls until the removed value is found, and the most pins that one of them looked at.
    fn calls(pins: &BTreeMap<u64, bool>) -> (usize, usize) {
        let (mut overdue, mut most) = (Overdue::default(), 0);
        for call in 1..=pins.len() {
            let looks = Cell::new(0);
            let found = overdue.look(
                pins,
                |_| true,
                |removed| {
                    looks.set(looks.get() + 1);
                    *removed
                },
            );
            most = most.max(looks.get());
            if found {
                return (call, most);
            }
        }
        (usize::MAX, most)
    }

    /// Was: the first 64 pins were looked at, and no others ever.
    #[test]
    fn a_removed_value_is_found_wherever_its_pin_is() {
        let count = 10 * LOOKS_MAX as u64;
        for at in [1, LOOKS_MAX as u64, LOOKS_MAX as u64 + 1, count] {
            let pins: BTreeMap<u64, bool> = (1..=count).map(|id| (id, id == at)).collect();
            let expected = (at as usize).div_ceil(LOOKS_MAX);
            assert_eq!(calls(&pins), (expected, LOOKS_MAX.min(at as usize)), "pin {at}");
        }
    }

    /// What is removed behind the looks is found by the next round; what is given back is not overdue.
    #[test]
    fn the_looks_go_round_and_forget_what_is_given_back() {
        let mut pins: BTreeMap<u64, bool> = (1..=100).map(|id| (id, false)).collect();
        let mut overdue = Overdue::default();
        let look = |overdue: &mut Overdue, pins: &BTreeMap<u64, bool>| {
            overdue.look(pins, |_| true, |removed| *removed)
        };
        assert!(!look(&mut overdue, &pins));
        pins.insert(3, true);
        assert!(!look(&mut overdue, &pins), "it is behind");
        assert!(look(&mut overdue, &pins), "and comes again");
        assert!(look(&mut overdue, &pins), "found once is enough");
        pins.remove(&3);
        assert!(!look(&mut overdue, &pins));
        // Young ones are left alone, and end the round.
        pins.insert(90, true);
        for _ in 0..10 {
            assert!(!overdue.look(&pins, |_| false, |removed| *removed));
        }
        assert!(!look(&mut overdue, &pins));
        assert!(look(&mut overdue, &pins));
    }
}
