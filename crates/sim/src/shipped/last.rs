//! The last reads of a run: when all faults are over, every client reads every key once more, by what it remembers of
//! its places. The oracle judges what is read, and a key that cannot be read for long is a fault by itself.

use super::judge;
use super::load::{Lane, judged};
use mooncrate_rt as rt;
use std::time::Duration;

/// How long a key may not be readable.
const PATIENCE: Duration = Duration::from_mins(1);

impl Lane {
    /// Reads every key: its value, or that there is none.
    pub(super) fn read_all(&self) {
        for at in 0..self.plan.keys as usize {
            let end = rt::boottime() + PATIENCE.as_nanos() as u64;
            loop {
                let key = judge::key(at);
                let number = judge::get_begins(self.process, at);
                let got = self.client.get(&key.bytes);
                self.say(at, &got);
                let error = got.as_ref().err().map(ToString::to_string);
                judge::get_ended(number, judged(self.plan.flips, got, &key));
                let Some(error) = error else { break };
                if rt::boottime() > end {
                    let seconds = PATIENCE.as_secs();
                    let text =
                        format!("k{at} cannot be read {seconds} s after all faults: {error}");
                    return judge::fail("liveness", text);
                }
                rt::sleep(self.plan.catalog.serve_lease / 4);
            }
        }
    }
}
