//! Variables that other programs of this field know for the same settings. They count as the environment
//! does, below our own names. A name that says nothing here is passed over: it is somebody else's.
//!
//! The disk tier: `MOONCAKE_OFFLOAD_FILE_STORAGE_PATH` names the directory and switches it on; the others
//! say how it is used. Two have no meaning here: offloads wait for no heartbeat
//! (`…_HEARTBEAT_INTERVAL_SECONDS`), and keys are limited by bytes (`…_TOTAL_KEYS_LIMIT`).

use std::collections::BTreeMap;

const PATH: &str = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH";
/// What is used of a disk when nobody says how much.
const BYTES: &str = "2000000000000";
const BYTES_NAMES: &[&str] = &[
    "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE",
    "MOONCAKE_BUCKET_MAX_TOTAL_SIZE",
    "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
];
/// Name there, option of a disk here.
const OPTIONS: &[(&str, &str)] = &[
    ("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "backend"),
    ("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", "bucket_size"),
    ("MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", "bucket_keys"),
    ("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "evict"),
    ("MOONCAKE_BUCKET_EVICTION_POLICY", "evict"),
];
const URING: &[&str] = &["MOONCAKE_OFFLOAD_USE_URING", "MOONCAKE_USE_URING"];
const STAGING: &str = "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES";
const ENABLED: &str = "MOONCAKE_OFFLOAD_ENABLED";

/// A setting that a foreign variable gives: setting, value, and the variable.
pub(super) type Alias = (&'static str, String, &'static str);

/// The settings that foreign variables give.
pub(super) fn settings(variables: &BTreeMap<String, String>) -> Vec<Alias> {
    let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let mut found = Vec::new();
    if let Some(bytes) = get(STAGING) {
        found.push(("staging_size", bytes.clone(), STAGING));
    }
    let Some(path) = get(PATH).filter(|_| get(ENABLED).is_none_or(|value| is_true(value))) else {
        return found;
    };
    let bytes = BYTES_NAMES.iter().find_map(|name| get(name).filter(|bytes| *bytes != "0"));
    let mut disk = format!("{path}={}", bytes.map_or(BYTES, String::as_str));
    let mut given = Vec::new();
    for (name, option) in OPTIONS {
        // `none` is their word for a disk that is never made room on; ours always is.
        let value = get(name).filter(|value| !value.eq_ignore_ascii_case("none"));
        if let Some(value) = value.filter(|_| !given.contains(option)) {
            disk.extend([",", option, "=", &value.to_ascii_lowercase()]);
            given.push(option);
        }
    }
    if let Some(uring) = URING.iter().find_map(|name| get(name)) {
        disk.push_str(if is_true(uring) { ",io=uring" } else { ",io=posix" });
    }
    found.push(("ssd", disk, PATH));
    found
}

fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let map = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        settings(&map).into_iter().map(|(key, value, _)| (key, value)).collect()
    }

    #[test]
    fn foreign_names_make_a_disk() {
        assert_eq!(given(&[("MOONCAKE_USE_URING", "true")]), []);
        let plain = given(&[(PATH, "/data/file_storage")]);
        assert_eq!(plain, [("ssd", "/data/file_storage=2000000000000".to_owned())]);
        let all = given(&[
            (PATH, "/d"),
            (STAGING, "1342177280"),
            ("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "5000000000"),
            ("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "offset_allocator_storage_backend"),
            ("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", "268435456"),
            ("MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", "500"),
            ("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "LRU"),
            ("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "10"),
            ("MOONCAKE_OFFLOAD_USE_URING", "1"),
        ]);
        let disk = "/d=5000000000,backend=offset_allocator_storage_backend,bucket_size=268435456,\
                    bucket_keys=500,evict=lru,io=uring";
        assert_eq!(all, [("staging_size", "1342177280".to_owned()), ("ssd", disk.to_owned())]);
        for (_, value) in &all[1..] {
            mooncrate::parse_ssds(value).unwrap();
        }
        assert_eq!(given(&[(PATH, "/d"), (ENABLED, "false")]), []);
        let bucket = given(&[
            (PATH, "/d"),
            ("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", "7000000"),
            ("MOONCAKE_BUCKET_EVICTION_POLICY", "none"),
        ]);
        assert_eq!(bucket, [("ssd", "/d=7000000".to_owned())]);
    }
}
