//! What a client reads without asking, told as a sample: the master keeps it longer, and gives it
//! more copies when many read it. Nothing depends on it, so nothing waits long for it: one short call
//! per tenth of a second at most, and a master that does not answer is left alone for a while.

use crate::client::Client;
use mooncrate_core::key::{self, KeyHash};
use mooncrate_core::time::Now;
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::Touch;
use std::borrow::Cow;
use std::time::Duration;

/// One read in so many is told.
const SAMPLE: u64 = 64;
/// Keys in one call; a key that is read often stands there often.
const KEYS_MAX: usize = 256;
/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after a call that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(2);
/// How often the places of what is read most are looked up anew: they may have copies by now.
const REFRESH: Duration = Duration::from_secs(1);
/// How long a call may take.
const CALL_TIME: Duration = Duration::from_millis(50);

/// The sample so far.
#[derive(Debug, Default)]
pub(crate) struct Touches(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    keys: Vec<Box<[u8]>>,
    /// Not before then.
    next: Now,
    refreshed: Now,
}

impl Client {
    /// A read found its locator in the cache.
    pub(crate) fn cache_hit(&self, hash: KeyHash, key: &[u8]) {
        let cached = &self.counters.at(hash.0).cached;
        cached.one();
        // Other threads may count in between: then a sample is taken twice, or not.
        if cached.value().is_multiple_of(SAMPLE) {
            self.sample(key);
        }
    }

    fn sample(&self, key: &[u8]) {
        // Another thread is telling: one sample less does no harm.
        let Some(mut state) = self.touches.0.try_lock() else { return };
        if state.keys.len() < KEYS_MAX {
            state.keys.push(key.into());
        }
        let now = boottime();
        if now < state.next {
            return;
        }
        let keys = std::mem::take(&mut state.keys);
        state.next = now.plus(PAUSE);
        let refresh = now.since(state.refreshed) >= REFRESH;
        if refresh {
            state.refreshed = now;
        }
        drop(state);
        let mut names: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let touch = Touch { keys: Cow::Borrowed(&names) };
        if self.master.touch(&touch, now.deadline_in(CALL_TIME)).is_err() {
            self.touches.0.lock().next = boottime().plus(FAILED_PAUSE);
        } else if refresh {
            names.sort_unstable();
            names.dedup();
            self.look_up_anew(&names);
        }
    }

    fn look_up_anew(&self, keys: &[&[u8]]) {
        let deadline = boottime().deadline_in(CALL_TIME);
        let Ok(found) = self.master.locate(0, keys, deadline) else { return };
        for (key, located) in keys.iter().zip(found) {
            if let Ok(located) = located {
                self.remember(key::hash(key), key, located);
            }
        }
    }
}
