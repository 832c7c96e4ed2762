//! Numbers of bytes for people, as that API writes them.

/// One number by another; nothing by nothing is nothing.
#[expect(clippy::cast_precision_loss, reason = "it is shown with a few digits")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A part in hundredths of the whole.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * ratio(part, whole)
}

/// Powers of 1024 under the names of those of 1000.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    let unit = UNITS[step as usize];
    if step == 0 {
        format!("{bytes} {unit}")
    } else {
        format!("{:.2} {unit}", ratio(bytes, 1 << (10 * step)))
    }
}

/// Six significant digits at most, and no zeros behind them.
pub(super) fn gib(bytes: u64) -> String {
    let value = ratio(bytes, 1 << 30);
    // How many digits stand before the point, or how many zeros behind it.
    let mut decimals = 5_usize;
    let mut rest = value;
    while rest >= 10.0 && decimals > 0 {
        rest /= 10.0;
        decimals -= 1;
    }
    while rest > 0.0 && rest < 1.0 {
        rest *= 10.0;
        decimals += 1;
    }
    let text = format!("{value:.decimals$}");
    let short = if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} GiB")
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn sizes_have_six_digits_at_most() {
        for (bytes, shown) in [
            (64 << 20, "0.0625 GiB"),
            (0, "0 GiB"),
            (4 << 30, "4 GiB"),
            (3_200_000_000, "2.98023 GiB"),
            (10 << 30, "10 GiB"),
            (1 << 20, "0.000976562 GiB"),
            (1_234_567 << 30, "1234567 GiB"),
        ] {
            assert_eq!(gib(bytes), shown);
        }
        assert!((percent(1, 4) - 25.0).abs() < 1e-9 && percent(1, 0) == 0.0);
    }

    #[test]
    fn bytes_are_shown_for_people() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KB"),
            (64 << 20, "64.00 MB"),
            (3 << 29, "1.50 GB"),
            (1 << 52, "4096.00 TB"),
        ] {
            assert_eq!(human(bytes), shown);
        }
    }
}
