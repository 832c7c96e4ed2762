//! Who has links here, so that the puts of a process that is gone are given back at once and not when the
//! watchdog comes by.
//!
//! A writer is a name that clients say in their hello; ours say one that no other process says. It is gone
//! when its last link is, and has not come back for [`COMES_BACK`]: a client whose links broke dials again when it
//! makes its next call, and may still end its puts. One that makes no call for longer than that after its last
//! link broke loses its open puts, although it lives. A name that several processes share is gone with the last of them; until then
//! the watchdog does the work. Nobody can make another's links go, so a name that was taken on purpose only
//! keeps puts for as long as the watchdog lets it.

use mooncrate_core::Now;
use mooncrate_core::catalog::Writer;
use mooncrate_core::key;
use mooncrate_lock::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a writer without links may come back: longer than a client takes to suspect a master and to find
/// the next one.
pub(crate) const COMES_BACK: Duration = Duration::from_secs(5);

/// The writers of a master process, whoever leads in it.
#[derive(Debug, Default)]
pub(crate) struct Writers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Links of each. One without links is in `gone`.
    links: BTreeMap<Writer, u32>,
    /// When they count as gone, soonest first.
    gone: BTreeSet<(Now, Writer)>,
    until: BTreeMap<Writer, Now>,
}

/// The writer of this name.
pub(crate) fn writer(name: &str) -> Writer {
    // 0 is nobody's.
    Writer(key::hash(name.as_bytes()).0.max(1))
}

impl Writers {
    /// A link of this name is there.
    pub(crate) fn came(&self, name: &str) {
        let writer = writer(name);
        let mut state = self.0.lock();
        *state.links.entry(writer).or_default() += 1;
        if let Some(until) = state.until.remove(&writer) {
            state.gone.remove(&(until, writer));
        }
    }

    /// It is not there any more. Where nobody leads, nobody has puts to give back.
    pub(crate) fn left(&self, name: &str, now: Now, leads: bool) {
        let writer = writer(name);
        let mut state = self.0.lock();
        let Some(links) = state.links.get_mut(&writer) else { return };
        *links -= 1;
        if *links == 0 {
            state.links.remove(&writer);
            if !leads {
                return;
            }
            let until = now.plus(COMES_BACK);
            state.until.insert(writer, until);
            state.gone.insert((until, writer));
        }
    }

    /// Whether it has a link.
    pub(crate) fn is_here(&self, writer: Writer) -> bool {
        self.0.lock().links.contains_key(&writer)
    }

    /// A writer whose time to come back is over. Each is told once.
    pub(crate) fn next_gone(&self, now: Now) -> Option<Writer> {
        let mut state = self.0.lock();
        let &(until, writer) = state.gone.first()?;
        if until > now {
            return None;
        }
        state.gone.pop_first();
        state.until.remove(&writer);
        Some(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_gone_with_its_last_link_unless_it_comes_back() {
        let writers = Writers::default();
        let at = |ms| Now(0).plus(Duration::from_millis(ms));
        for name in ["a", "a", "b"] {
            writers.came(name);
        }
        writers.left("a", at(0), true);
        assert_eq!(writers.next_gone(at(5000)), None, "it has another link");
        writers.left("a", at(5000), true);
        writers.left("b", at(5001), true);
        // A master is suspected after 3 s, and the way to the next may take 2 s.
        assert_eq!(writers.next_gone(at(9999)), None);
        assert!(!writers.is_here(writer("b")));
        writers.came("b");
        assert!(writers.is_here(writer("b")));
        assert_eq!(writers.next_gone(at(10_001)), Some(writer("a")));
        assert_eq!(writers.next_gone(at(10_001)), None, "b came back");
        writers.left("b", at(20_000), true);
        assert_eq!(writers.next_gone(at(25_000)), Some(writer("b")));
        writers.came("c");
        writers.left("c", at(25_000), false);
        assert_eq!(writers.next_gone(at(40_000)), None, "nobody led");
        let state = writers.0.lock();
        assert!(state.links.is_empty() && state.gone.is_empty() && state.until.is_empty());
        assert_ne!(writer(""), Writer::UNSEEN);
    }
}
