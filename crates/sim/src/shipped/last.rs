//! The last reads of a run: when all faults are over, every client reads every key once more, by what it remembers of
//! its places. The oracle judges what is read, and a key that cannot be read for long is a fault by itself.

use super::judge;
use super::load::{Lane, is_corrupt, judged};
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use std::time::Duration;

/// How long a key may not be readable: masters elect a leader, and wait for nodes.
const PATIENCE: Duration = Duration::from_mins(1);
/// The same of a value whose bytes are wrong: its owner ends it as soon as a reader doubts it.
const PATIENCE_WITH_WRONG_BYTES: Duration = Duration::from_secs(5);

impl Lane {
    /// Reads every key: its value, or that there is none.
    pub(super) fn read_all(&self) {
        for at in 0..self.plan.keys as usize {
            let began = boottime();
            loop {
                let key = judge::key(at);
                let number = judge::get_begins(self.process, at);
                let got = self.client.get(&key.bytes);
                self.say(at, &got);
                let error = got.as_ref().err().map(|error| {
                    let wrong = is_corrupt(error);
                    (if wrong { PATIENCE_WITH_WRONG_BYTES } else { PATIENCE }, error.to_string())
                });
                judge::get_ended(number, judged(self.plan.flips, got, &key));
                let Some((patience, error)) = error else { break };
                if boottime().since(began) > patience {
                    let text =
                        format!("k{at} cannot be read {patience:?} after all faults: {error}");
                    return judge::fail("liveness", text);
                }
                rt::sleep(self.plan.catalog.serve_lease / 4);
            }
        }
    }
}
