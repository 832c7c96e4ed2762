//! A bell: whoever tends segments sleeps until there is something to tend, in place of looking all the time.

use mooncrate_lock::{Condvar, Mutex};
use std::time::Duration;

/// Rung by segments, waited for by the one thread that tends them.
#[derive(Debug, Default)]
pub struct Bell {
    /// Whether it has rung since the last wait ended.
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// There is something to do. Rings on until somebody has heard it.
    pub fn ring(&self) {
        // Only one waits; whoever rang before has woken it.
        if !std::mem::replace(&mut *self.rung.lock(), true) {
            self.changed.notify_one();
        }
    }

    /// Blocks until it rings, for so long at most (`None`: for ever); whether it has rung. What rang before
    /// the call counts, and is heard once.
    pub fn wait(&self, most: Option<Duration>) -> bool {
        let mut rung = self.rung.lock();
        while !*rung {
            match most {
                None => self.changed.wait(&mut rung),
                Some(time) => {
                    self.changed.wait_for(&mut rung, time);
                    break;
                }
            }
        }
        std::mem::take(&mut *rung)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_ring_is_heard_once_whenever_it_came() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        assert!(bell.wait(None), "it rang before");
        assert!(!bell.wait(Some(Duration::ZERO)), "and was heard");
        thread::scope(|scope| {
            let heard = scope.spawn(|| (0..100).all(|_| bell.wait(None)));
            while !heard.is_finished() {
                bell.ring();
                thread::yield_now();
            }
            assert!(heard.join().unwrap());
        });
    }
}
