//! Every setting there is: its name, its default and what its value may look like.
//!
//! One name in three spellings: `segment_size` in a file, `MOONCRATE_SEGMENT_SIZE` in the
//! environment, `--segment-size` as a flag. One parser per kind of value serves all three, so a
//! value that is good in one place is good in the others.

use bytesize::ByteSize;
use mooncrate::VramConfig;
use mooncrate_core::TenantId;
use mooncrate_core::catalog::Offload;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::place::PlacementKind;
use mooncrate_wire::{Address, Masters};
use std::time::Duration;

/// Leaves the choice to the program.
pub(crate) const AUTO: &str = "auto";
/// Switches a part off.
pub(crate) const OFF: &str = "off";

/// What a value may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `host:port` or `unix:/path`; several, with commas, where masters elect a leader.
    Masters,
    /// `host:port` or `unix:/path`, or auto.
    AddressOrAuto,
    /// Where etcd is, with commas, or off.
    Endpoints,
    /// `host:port`, or off.
    Listener,
    /// `host:port`, auto or off.
    ListenerOrAuto,
    /// A path for a socket, auto or off.
    Socket,
    /// A path, or off.
    File,
    /// Bytes, as in 256MiB.
    Size,
    /// Bytes, or off.
    SizeOrOff,
    /// Directories on disks with their sizes, or off.
    Disks,
    /// Numbers of GPUs with sizes, or off.
    Gpus,
    /// Time, as in 5s.
    Span,
    /// Time, or off.
    SpanOrOff,
    /// A whole number, at least 1.
    Count,
    /// A whole number, at least 1, or auto.
    CountOrAuto,
    /// true or false.
    Switch,
    /// Any text but none.
    Name,
    /// An eviction policy.
    Policy,
    /// A placement strategy.
    Placement,
    /// When values are copied to disks.
    Offload,
    /// A filter of the log.
    Filter,
    /// A tenant's name, or off.
    Tenant,
    /// A part of the whole, as in 90%.
    Percent,
    /// Numbers of users with commas between them, or off.
    Users,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// As files spell it.
    pub(crate) name: &'static str,
    /// When nobody says anything.
    pub(crate) default: &'static str,
    /// What its value may look like.
    pub(crate) kind: Kind,
}

const fn spec(name: &'static str, default: &'static str, kind: Kind) -> Spec {
    Spec { name, default, kind }
}

/// All settings, in the order in which they are shown.
pub(crate) const KEYS: &[Spec] = &[
    spec("master", "127.0.0.1:7411", Kind::Masters),
    spec("admin", "127.0.0.1:7412", Kind::Listener),
    spec("node_admin", OFF, Kind::Listener),
    spec("metrics_listen", OFF, Kind::Listener),
    spec("grpc", AUTO, Kind::ListenerOrAuto),
    spec("data", "127.0.0.1:7413", Kind::Listener),
    spec("unix", AUTO, Kind::Socket),
    spec("insecure_listen", "false", Kind::Switch),
    spec("token_file", OFF, Kind::File),
    spec("tls_cert", OFF, Kind::File),
    spec("tls_key", OFF, Kind::File),
    spec("tls_ca", OFF, Kind::File),
    spec("tenant", OFF, Kind::Tenant),
    spec("share_users", OFF, Kind::Users),
    spec("mooncake_http", "false", Kind::Switch),
    spec("mooncake_quotas", "false", Kind::Switch),
    spec("mooncake_metadata", OFF, Kind::Listener),
    spec("mooncake_root", OFF, Kind::File),
    spec("mooncake_door", OFF, Kind::Listener),
    spec("mooncake_tenant", "default", Kind::Name),
    spec("segment_size", "256MiB", Kind::Size),
    spec("slots", AUTO, Kind::CountOrAuto),
    spec("huge_pages", "false", Kind::Switch),
    spec("memory_overcommit", "false", Kind::Switch),
    spec("prefault", "false", Kind::Switch),
    spec("vram", OFF, Kind::Gpus),
    spec("ssd", OFF, Kind::Disks),
    spec("staging_size", "256MiB", Kind::Size),
    spec("ssd_writes_per_day", OFF, Kind::SizeOrOff),
    spec("scrub_rate", "8MiB", Kind::SizeOrOff),
    spec("node_name", AUTO, Kind::Name),
    spec("host", AUTO, Kind::Name),
    spec("zone", AUTO, Kind::Name),
    spec("drain_on_stop", OFF, Kind::SpanOrOff),
    spec("state_file", AUTO, Kind::File),
    spec("etcd", OFF, Kind::Endpoints),
    spec("etcd_prefix", "mooncrate", Kind::Name),
    spec("name", AUTO, Kind::Name),
    spec("advertise", AUTO, Kind::AddressOrAuto),
    spec("election_ttl", "2s", Kind::Span),
    spec("workers", AUTO, Kind::CountOrAuto),
    spec("put_timeout", "30s", Kind::Span),
    spec("lease_ttl", "10s", Kind::Span),
    spec("evict_policy", "lru", Kind::Policy),
    spec("evict_above", "95%", Kind::Percent),
    spec("evict_to", "90%", Kind::Percent),
    spec("placement", "random", Kind::Placement),
    spec("offload", "watermark", Kind::Offload),
    spec("offload_above", "70%", Kind::Percent),
    spec("promote", "true", Kind::Switch),
    spec("promote_reads", "2", Kind::Count),
    spec("shared_memory", "true", Kind::Switch),
    spec("deadline", "30s", Kind::Span),
    spec("log", AUTO, Kind::Filter),
];

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static Spec> {
    KEYS.iter().find(|spec| spec.name == name)
}

impl Spec {
    /// As the environment spells it.
    pub(crate) fn variable(&self) -> String {
        format!("MOONCRATE_{}", self.name.to_ascii_uppercase())
    }

    /// Whether this text is a value of it; if not, what is.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        match self.kind {
            Kind::Masters => masters(text).map(drop),
            Kind::AddressOrAuto | Kind::ListenerOrAuto | Kind::CountOrAuto | Kind::Filter
                if text == AUTO =>
            {
                Ok(())
            }
            Kind::AddressOrAuto => address(text).map(drop),
            Kind::Endpoints
            | Kind::Listener
            | Kind::ListenerOrAuto
            | Kind::Tenant
            | Kind::Users
            | Kind::SpanOrOff
            | Kind::SizeOrOff
            | Kind::Disks
            | Kind::Gpus
                if text == OFF =>
            {
                Ok(())
            }
            Kind::Endpoints => endpoints(text).map(drop),
            Kind::Listener | Kind::ListenerOrAuto => {
                address(text).and_then(|address| match address {
                    Address::Tcp(_) => Ok(()),
                    Address::Unix(_) => {
                        Err(format!("`{text}` is no host:port; `off` is possible too"))
                    }
                })
            }
            Kind::Socket | Kind::File | Kind::Name if text.is_empty() => {
                Err("it is empty".to_owned())
            }
            Kind::Socket | Kind::File | Kind::Name => Ok(()),
            Kind::Size | Kind::SizeOrOff => size(text).map(drop),
            Kind::Disks => mooncrate::parse_ssds(text).map(drop),
            Kind::Gpus => gpus(text).map(drop),
            Kind::Span | Kind::SpanOrOff => span(text).map(drop),
            Kind::Count | Kind::CountOrAuto => count(text).map(drop),
            Kind::Switch => switch(text).map(drop),
            Kind::Policy => text.parse::<PolicyKind>().map(drop).map_err(|e| e.to_string()),
            Kind::Placement => text.parse::<PlacementKind>().map(drop).map_err(|e| e.to_string()),
            Kind::Offload => text.parse::<Offload>().map(drop).map_err(|e| e.to_string()),
            Kind::Tenant => tenant(text).map(drop),
            Kind::Users => users(text).map(drop),
            Kind::Percent => permille(text).map(drop),
            Kind::Filter => match text.parse::<tracing_subscriber::filter::Targets>() {
                Ok(_) => Ok(()),
                Err(_) => {
                    Err(format!("`{text}` is no filter; write info, or warn,mooncrate_node=debug"))
                }
            },
        }
    }
}

/// An address.
pub(crate) fn address(text: &str) -> Result<Address, String> {
    text.parse()
}

/// One master or several.
pub(crate) fn masters(text: &str) -> Result<Masters, String> {
    text.parse()
}

/// Where etcd is.
pub(crate) fn endpoints(text: &str) -> Result<Vec<String>, String> {
    let one = |part: &str| match part.strip_prefix("http://") {
        Some(rest) if rest.parse::<Address>().is_ok() => Ok(part.to_owned()),
        _ => Err(format!("`{part}` is no endpoint of etcd; write it as http://127.0.0.1:2379")),
    };
    text.split(',').map(one).collect()
}

/// A number of bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(0)) => Err("0 bytes are too few".to_owned()),
        Ok(ByteSize(bytes)) => Ok(bytes),
        Err(_) => Err(format!("`{text}` is no size; write it as 256MiB or 1GiB")),
    }
}

/// GPUs, and how much of the memory of each.
pub(crate) fn gpus(text: &str) -> Result<Vec<VramConfig>, String> {
    let one = |part: &str| {
        let (device, bytes) = part.split_once('=').unwrap_or((part, ""));
        let Ok(device) = device.parse() else {
            return Err(format!("`{part}` is no GPU with a size; write it as 0=8GiB"));
        };
        Ok(VramConfig { device, bytes: size(bytes)? })
    };
    let all = text.split(',').map(one).collect::<Result<Vec<_>, _>>()?;
    match (1..all.len()).find(|at| all[..*at].iter().any(|gpu| gpu.device == all[*at].device)) {
        Some(at) => Err(format!("GPU {} is named twice", all[at].device)),
        None => Ok(all),
    }
}

/// A span of time.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("no time at all is too short".to_owned()),
        Ok(span) => Ok(span),
        Err(_) => Err(format!("`{text}` is no span of time; write it as 500ms, 5s or 2min")),
    }
}

/// A number of things.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("`{text}` is not a whole number of at least 1")),
        Ok(count) => Ok(count),
    }
}

/// A part of the whole, in thousandths.
pub(crate) fn permille(text: &str) -> Result<u32, String> {
    let parsed = || {
        let number = text.strip_suffix('%')?;
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
        let tenths: u32 = tenths.parse().ok().filter(|_| tenths.len() == 1)?;
        Some(whole * 10 + tenths).filter(|permille| *permille <= 1000)
    };
    parsed().ok_or_else(|| format!("`{text}` is no part of the whole; write it as 90% or 92.5%"))
}

/// A tenant.
pub(crate) fn tenant(text: &str) -> Result<TenantId, String> {
    match TenantId::named(text) {
        Ok(TenantId::DEFAULT) => Err("it is empty".to_owned()),
        other => other.map_err(|error| error.to_string()),
    }
}

/// Numbers of users.
pub(crate) fn users(text: &str) -> Result<Vec<u32>, String> {
    let all: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    all.map_err(|_| format!("`{text}` is not a list of user numbers; write it as 1000,1001"))
}

/// Yes or no.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("`{text}` is neither true nor false"))
}

/// The one of `known` that somebody who wrote `text` may have meant.
pub(crate) fn nearest<T: AsRef<str>>(text: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let far = (text.chars().count() / 3).max(1);
    let scored = known.into_iter().map(|name| (distance(text, name.as_ref()), name));
    scored.min_by_key(|(distance, _)| *distance).filter(|(d, _)| *d <= far).map(|(_, name)| name)
}

/// How many letters must be added, dropped or changed to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting() {
        for spec in KEYS {
            assert_eq!(spec.check(spec.default), Ok(()), "{}", spec.name);
        }
    }

    #[test]
    fn distances_count_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("slots", "slots"), 0);
        assert_eq!(nearest("segmnt_sise", KEYS.iter().map(|k| k.name)), Some("segment_size"));
        assert_eq!(nearest("quux", KEYS.iter().map(|k| k.name)), None);
    }

    #[test]
    fn parts_of_the_whole_have_one_decimal() {
        for (text, permille) in [("0%", 0), ("90%", 900), ("92.5%", 925), ("100%", 1000)] {
            assert_eq!(super::permille(text), Ok(permille));
        }
        for bad in ["", "%", "90", "90.55%", "100.1%", "-1%", "9.x%", "nan%"] {
            assert!(super::permille(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_values_say_what_a_good_one_looks_like() {
        for (name, text, says) in [
            ("master", "nohost", "host:port"),
            ("master", "a:1,a:1", "twice"),
            ("etcd", "127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("etcd", "https://a:1", "http://"),
            ("vram", "8GiB", "0=8GiB"),
            ("vram", "0=", "256MiB"),
            ("vram", "0=1GiB,1=1GiB,0=2GiB", "twice"),
            ("advertise", "here", "host:port"),
            ("admin", "unix:/x", "host:port"),
            ("grpc", "unix:/x", "host:port"),
            ("metrics_listen", "9090", "host:port"),
            ("segment_size", "12 parsecs", "256MiB"),
            ("segment_size", "0", "too few"),
            ("deadline", "5", "500ms"),
            ("deadline", "0s", "too short"),
            ("workers", "0", "at least 1"),
            ("slots", "many", "at least 1"),
            ("huge_pages", "yes", "true nor false"),
            ("evict_policy", "rarely", "fifo"),
            ("placement", "near", "least-loaded"),
            ("offload", "never", "watermark"),
            ("node_name", "", "empty"),
            ("tenant", "a.b", "a-z"),
            ("tenant", "", "empty"),
            ("share_users", "me", "1000,1001"),
            ("evict_above", "0.9", "92.5%"),
            ("ssd", "/mnt/cache", "100GiB"),
            ("scrub_rate", "slowly", "256MiB"),
            ("evict_to", "101%", "90%"),
            ("mooncake_door", "here", "host:port"),
            ("log", "a=b=c", "filter"),
        ] {
            let error = find(name).unwrap().check(text).unwrap_err();
            assert!(error.contains(says), "{name} = {text}: {error}");
        }
    }
}
