//! How long a caller waits, from its `grpc-timeout` header.

use mooncrate_core::time::{Deadline, Now};
use std::time::Duration;
use tonic::metadata::MetadataMap;

/// The time of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// When the master must have answered: an eighth of the time is kept back, so that "busy" and
    /// "not yet" still reach a caller that would else hear nothing.
    pub(crate) deadline: Deadline,
    /// How long the door waits for that, a little less than the caller does: the caller shall hear
    /// that its deadline passed.
    pub(crate) wait: Duration,
}

/// As long as the caller says, at most `most`.
pub(crate) fn of(metadata: &MetadataMap, now: Now, most: Duration) -> Budget {
    let asked = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse);
    let span = asked.map_or(most, |asked| asked.min(most));
    Budget { deadline: now.deadline_in(span / 8 * 7), wait: span / 16 * 15 }
}

/// At most 8 digits and a unit. What is not that counts as not said.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_and_bounded() {
        assert_eq!(parse("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse("99999999H"), Some(Duration::from_hours(99_999_999)));
        for bad in ["", "m", "123456789n", "-1S", "1", "1x", "1é", "é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let most = Duration::from_secs(8);
        let mut metadata = MetadataMap::new();
        let longest =
            Budget { deadline: Deadline(7_000_000_000), wait: Duration::from_millis(7500) };
        assert_eq!(of(&metadata, Now(0), most), longest);
        metadata.insert("grpc-timeout", "1600m".parse().unwrap());
        let short = Budget { deadline: Deadline(1_400_000_005), wait: Duration::from_millis(1500) };
        assert_eq!(of(&metadata, Now(5), most), short);
        metadata.insert("grpc-timeout", "1H".parse().unwrap());
        assert_eq!(of(&metadata, Now(0), most), longest);
    }
}
