//! The proof of the full pool, by command: `./dev soak [seconds] [bytes]`; with
//! bytes, all values have that size. Prints what was measured, and
//! ends with 1 if anything was wrong, leaked or answered too late.

mod judge;
mod proof;
mod report;
mod worker;

use proof::Proof;
use report::BUSY_MS_MAX;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut proof = Proof::default();
    if let Some(wish) = std::env::args().nth(1) {
        let Ok(seconds) = wish.parse() else {
            eprintln!("usage: full_pool [seconds]; `{wish}` is no number of seconds");
            return ExitCode::from(2);
        };
        proof.load_time = Duration::from_secs(seconds);
    }
    if let Some(wish) = std::env::args().nth(2) {
        let Ok(size) = wish.parse() else {
            eprintln!("usage: full_pool [seconds] [bytes]; `{wish}` is no number of bytes");
            return ExitCode::from(2);
        };
        proof.one_size = Some(size);
    }
    let report = match proof.run() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("the store gave up: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut breaches = report.breaches.clone();
    if report.pinned_times.max > Duration::from_millis(BUSY_MS_MAX) {
        breaches.push(format!(
            "a Busy took {:?}, more than {BUSY_MS_MAX} ms, in each of {} rounds (a machine that \
             does other work is slow to wake a thread: run it again before you believe this)",
            report.pinned_times.max,
            report.pinned_slowest.len()
        ));
    }
    let mut out = io::stdout().lock();
    let shown = write!(out, "{report}")
        .and_then(|()| breaches.iter().try_for_each(|breach| writeln!(out, "BREACH: {breach}")));
    match (shown, breaches.is_empty()) {
        (Ok(()), true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
