//! Progress on long work: a bar on stderr, and only where a person looks at it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Read, Write, stderr};
use std::time::Duration;

/// Work on fewer bytes is over before a bar could be read.
const WORTH_A_BAR: u64 = 8 << 20;
/// Bytes between two steps of a bar.
const STEP: usize = 1 << 20;
/// Between two frames of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// A bar over `bytes`; hidden when the work is small or nobody looks.
pub(crate) fn bar(what: &'static str, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(bytes), target(bytes >= WORTH_A_BAR));
    bar.set_style(
        ProgressStyle::with_template(
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
        )
        .expect("the template is written here and a test builds it"),
    );
    bar.with_message(what)
}

/// A spinner for one call that tells nothing while it lasts.
pub(crate) fn spinner(what: String, bytes: u64) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target(bytes >= WORTH_A_BAR));
    spinner.set_style(ProgressStyle::default_spinner());
    spinner.enable_steady_tick(TICK);
    spinner.with_message(what)
}

/// A bar over time, for load that runs for a while.
pub(crate) fn timer(what: String, span: Duration) -> ProgressBar {
    let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let bar = ProgressBar::with_draw_target(Some(span), target(true));
    bar.set_style(
        ProgressStyle::with_template("{msg:24} {wide_bar} {elapsed}")
            .expect("the template is written here and a test builds it"),
    );
    bar.with_message(what)
}

fn target(wanted: bool) -> ProgressDrawTarget {
    if wanted && stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// Reads everything, but no more than `most` bytes; `None` if there is more.
pub(crate) fn read_all(
    from: &mut impl Read,
    expected: u64,
    most: u64,
) -> std::io::Result<Option<Vec<u8>>> {
    let bar = bar("reading", expected);
    // One byte more, so that the end of the input is seen without growing the buffer.
    let mut value = Vec::with_capacity(expected.min(most) as usize + 1);
    loop {
        let room = (most + 1).saturating_sub(value.len() as u64).min(STEP as u64);
        let count = from.by_ref().take(room).read_to_end(&mut value)?;
        bar.inc(count as u64);
        if count == 0 {
            break;
        }
    }
    bar.finish_and_clear();
    Ok((value.len() as u64 <= most).then_some(value))
}

/// Writes everything.
pub(crate) fn write_all(to: &mut impl Write, value: &[u8]) -> std::io::Result<()> {
    let bar = bar("writing", value.len() as u64);
    for step in value.chunks(STEP) {
        to.write_all(step)?;
        bar.inc(step.len() as u64);
    }
    to.flush()?;
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_read_to_the_limit_and_no_further() {
        let input = vec![7; (2 << 20) + 3];
        let len = input.len() as u64;
        for expected in [0, 5, len, 3 * len] {
            let got = read_all(&mut input.as_slice(), expected, len).unwrap();
            assert_eq!(got.as_deref(), Some(input.as_slice()), "expected {expected}");
            assert_eq!(read_all(&mut input.as_slice(), expected, len - 1).unwrap(), None);
        }
        assert_eq!(read_all(&mut [].as_slice(), 0, 10).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn outputs_are_written_whole_and_all_bars_can_be_built() {
        let value: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        let mut out = Vec::new();
        write_all(&mut out, &value).unwrap();
        assert!(out == value, "all bytes, in order");
        timer("put".to_owned(), Duration::from_secs(1)).finish_and_clear();
        spinner("storing".to_owned(), 1 << 30).finish_and_clear();
    }
}
