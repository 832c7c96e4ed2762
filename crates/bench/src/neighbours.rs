//! What other programs took of the machine while the bench ran: the first suspect for a strange
//! figure. Read from `/proc`; interrupts are left out, because those of our own sockets are among
//! them and belong to nobody.

use std::fs;

/// Above this share, in per cent of all cores, a run should be repeated.
const QUIET_PERCENT: f64 = 5.0;

/// Ticks of the machine and of this process tree at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// All ticks of all cores.
    all: u64,
    /// Those in which some program ran, here or on the same hardware.
    used: u64,
    /// Those of this process and of the peers that have ended.
    own: u64,
}

impl Moment {
    /// Now, or `None` where the kernel does not tell.
    pub(crate) fn now() -> Option<Self> {
        let (all, used) = machine_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = own_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
        Some(Self { all, used, own })
    }

    /// Per cent of all cores that others used since `before`.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub(crate) fn others_since(self, before: Self) -> f64 {
        let own = self.own.saturating_sub(before.own);
        let others = self.used.saturating_sub(before.used).saturating_sub(own);
        100.0 * others as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

/// What the head of a report says of it; shouts if the run should be repeated.
pub(crate) fn describe(others: Option<f64>) -> String {
    match others {
        None => "Nothing is known of other programs on this machine.".to_owned(),
        Some(percent) if percent <= QUIET_PERCENT => {
            format!("Other programs used {percent:.0}% of the machine meanwhile.")
        }
        Some(percent) => format!(
            "Other programs used {percent:.0}% of the machine meanwhile: DO NOT PUBLISH, run it again."
        ),
    }
}

/// All ticks and used ones, from the first line: user nice system idle iowait irq softirq steal.
fn machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let ran = user + nice + system + steal;
    Some((ran + idle + iowait + irq + softirq, ran))
}

/// User and system time of a process and of its children that were waited for.
pub(crate) fn own_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything, so count from its end; field 14 follows 11 others.
    let (_, after) = stat.rsplit_once(')')?;
    let fields = after.split_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let stat = "cpu  10 1 5 80 3 2 4 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine_ticks(stat), Some((111, 22)));
        assert_eq!(machine_ticks("cpu  1 2 3"), None);
        let own = "7 (a) b) S 1 1 1 0 -1 4194304 9 9 9 9 100 20 3 4 20 0 1 0 5";
        assert_eq!(own_ticks(own), Some(127));
        assert!(Moment::now().is_some());
    }

    #[test]
    fn only_others_count() {
        let before = Moment { all: 1000, used: 500, own: 50 };
        let after = Moment { all: 2000, used: 900, own: 350 };
        assert!((after.others_since(before) - 10.0).abs() < 1e-9);
        assert!(describe(Some(10.0)).contains("DO NOT PUBLISH"));
        assert!(!describe(Some(1.0)).contains("DO NOT"));
    }
}
