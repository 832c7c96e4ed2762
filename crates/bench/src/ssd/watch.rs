//! What batches took: wall time, and time of the process on cores, the kernel's part included.

use crate::measure::Spread;
use crate::report::time;
use anyhow::Result;
use hdrhistogram::Histogram;
use mooncrate_core::time::nanos;
use mooncrate_mem::clock::boottime;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::Duration;

/// All laps of one contender.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Of the lap that runs.
    busy: Duration,
    cpu: Duration,
    /// Of all laps: bytes per nanosecond, and seconds on cores per 10^9 bytes.
    rates: Vec<f64>,
    costs: Vec<f64>,
    batches: Histogram<u64>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let batches = Histogram::new(3).expect("three digits are possible");
        let (busy, cpu) = (Duration::ZERO, Duration::ZERO);
        Self { busy, cpu, rates: Vec::new(), costs: Vec::new(), batches }
    }

    /// Times one batch. What happens between batches does not count.
    pub(crate) fn time(&mut self, batch: impl FnOnce() -> Result<()>) -> Result<()> {
        let (before, cpu) = (boottime(), cpu_time());
        batch()?;
        let took = boottime().since(before);
        self.cpu += cpu_time().saturating_sub(cpu);
        self.busy += took;
        self.batches.record(nanos(took))?;
        Ok(())
    }

    /// Times batches that several threads do side by side: `work` says what each batch took.
    pub(crate) fn together(&mut self, work: impl FnOnce() -> Result<Vec<Duration>>) -> Result<()> {
        let (before, cpu) = (boottime(), cpu_time());
        let batches = work()?;
        self.busy += boottime().since(before);
        self.cpu += cpu_time().saturating_sub(cpu);
        batches.into_iter().try_for_each(|took| Ok(self.batches.record(nanos(took))?))
    }

    /// Ends a lap that moved so many bytes. Laps to warm up leave no trace.
    pub(crate) fn end(&mut self, bytes: u64, counts: bool) {
        let (busy, cpu) = (std::mem::take(&mut self.busy), std::mem::take(&mut self.cpu));
        if counts {
            self.add(bytes, busy.as_secs_f64(), cpu.as_secs_f64());
        } else {
            self.batches.reset();
        }
    }

    /// A lap that somebody else timed.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn add(&mut self, bytes: u64, seconds: f64, cpu_seconds: f64) {
        let billions = bytes as f64 / 1e9;
        self.rates.push(billions / seconds);
        self.costs.push(cpu_seconds / billions);
    }

    /// Whether there was no lap.
    pub(crate) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// 10^9 bytes per second.
    pub(crate) fn rate(&self) -> Spread {
        Spread::of(self.rates.clone())
    }

    /// Seconds on cores per 10^9 bytes.
    pub(crate) fn cost(&self) -> Spread {
        Spread::of(self.costs.clone())
    }

    /// This rate as a part of the other's, round by round.
    pub(crate) fn of(&self, floor: &Self) -> Spread {
        Spread::of(self.rates.iter().zip(&floor.rates).map(|(ours, best)| ours / best).collect())
    }

    /// How long batches took: the median and the slow ones.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn batch_cells(&self) -> [String; 2] {
        [50.0, 99.0].map(|percent| time(self.batches.value_at_percentile(percent) as f64))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "gb_per_s": self.rate().json(),
            "cpu_s_per_gb": self.cost().json(),
            "p50_ns": self.batches.value_at_percentile(50.0),
            "p99_ns": self.batches.value_at_percentile(99.0),
            "batches": self.batches.len(),
            "rounds": self.rates.len(),
        })
    }
}

/// Time of this process on cores.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
