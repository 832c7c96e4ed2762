//! Disks as people write them: `PATH=SIZE`, with options behind it.
//!
//! ```text
//!   /mnt/nvme0/cache=500GiB
//!   /mnt/nvme0/cache=500GiB,io=posix,evict=lru;/mnt/nvme1/cache=1TiB
//! ```

use bytesize::ByteSize;
use mooncrate_node::{BackendKind, Evict, Io, SsdConfig};

/// Several disks, with `;` between them.
pub fn parse_ssds(text: &str) -> Result<Vec<SsdConfig>, String> {
    let disks: Vec<SsdConfig> = text.split(';').map(parse_ssd).collect::<Result<_, _>>()?;
    for (at, disk) in disks.iter().enumerate() {
        if disks[..at].iter().any(|other| other.path == disk.path) {
            return Err(format!("{} is named twice", disk.path.display()));
        }
    }
    Ok(disks)
}

/// One disk.
pub fn parse_ssd(text: &str) -> Result<SsdConfig, String> {
    let bad = || format!("`{text}` is no disk; write it as /path/to/directory=100GiB");
    let mut parts = text.split(',');
    let (path, size) = parts.next().and_then(|part| part.rsplit_once('=')).ok_or_else(bad)?;
    let bytes = parse_size(size)?;
    if path.is_empty() {
        return Err(bad());
    }
    let mut disk = SsdConfig::new(path, bytes);
    for part in parts {
        let (name, value) = part.split_once('=').ok_or_else(|| unknown(part))?;
        match name {
            "backend" => disk.backend = backend(value)?,
            "io" => disk.io = io(value)?,
            "evict" => disk.evict = evict(value)?,
            "bucket_size" => disk.bucket_bytes = Some(parse_size(value)?),
            "bucket_keys" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                let bad = || format!("`{value}` is not a whole number of at least 1");
                disk.bucket_records = Some(count.ok_or_else(bad)?);
            }
            "verify" => {
                let bad = |_| format!("`{value}` is neither true nor false");
                disk.verify_values = value.parse().map_err(bad)?;
            }
            _ => return Err(unknown(part)),
        }
    }
    Ok(disk)
}

fn unknown(part: &str) -> String {
    format!(
        "`{part}` is no option of a disk; there are backend, io, evict, bucket_size, bucket_keys and verify"
    )
}

fn parse_size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(bytes)) if bytes >= 1 << 20 => Ok(bytes),
        Ok(_) => Err(format!("`{text}` is too small for a disk; 1MiB is the least")),
        Err(_) => Err(format!("`{text}` is no size; write it as 100GiB")),
    }
}

fn backend(text: &str) -> Result<BackendKind, String> {
    // Mooncake's names of its backends are taken as well.
    Ok(match text {
        "bucket" | "bucket_storage_backend" => BackendKind::Bucket,
        "per_key" | "file_per_key_storage_backend" => BackendKind::PerKey,
        "offset" | "offset_allocator_storage_backend" => BackendKind::Offset,
        _ => return Err(format!("`{text}` is no backend; there are bucket, per_key and offset")),
    })
}

fn io(text: &str) -> Result<Io, String> {
    Ok(match text {
        "auto" => Io::Auto,
        "posix" => Io::Posix,
        "uring" => Io::Uring,
        _ => {
            return Err(format!(
                "`{text}` is no way to read files; there are auto, posix and uring"
            ));
        }
    })
}

fn evict(text: &str) -> Result<Evict, String> {
    Ok(match text {
        "fifo" => Evict::Fifo,
        "lru" => Evict::Lru,
        _ => return Err(format!("`{text}` is no order of eviction; there are fifo and lru")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn disks_are_read_as_people_write_them() {
        let plain = parse_ssd("/a=b/c=2GiB").unwrap();
        assert_eq!((plain.path.as_path(), plain.bytes), (Path::new("/a=b/c"), 2 << 30));
        assert_eq!((plain.backend, plain.io, plain.evict), Default::default());
        let all =
            "/x=1GiB,backend=offset,io=posix,evict=lru,bucket_size=8MiB,bucket_keys=9,verify=true";
        let disk = parse_ssd(all).unwrap();
        assert_eq!(
            (disk.backend, disk.io, disk.evict),
            (BackendKind::Offset, Io::Posix, Evict::Lru)
        );
        assert_eq!((disk.bucket_bytes, disk.bucket_records), (Some(8 << 20), Some(9)));
        assert!(disk.verify_values);
        assert_eq!(parse_ssds("/a=1GiB;/b=2GiB").unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_disk_says_what_is() {
        for (text, says) in [
            ("", "/path/to/directory=100GiB"),
            ("/a", "/path/to/directory=100GiB"),
            ("=1GiB", "/path/to/directory=100GiB"),
            ("/a=many", "100GiB"),
            ("/a=5", "1MiB"),
            ("/a=1GiB,fast", "backend, io"),
            ("/a=1GiB,speed=9", "backend, io"),
            ("/a=1GiB,backend=tape", "per_key"),
            ("/a=1GiB,io=mmap", "uring"),
            ("/a=1GiB,evict=all", "lru"),
            ("/a=1GiB,bucket_keys=0", "at least 1"),
            ("/a=1GiB,verify=maybe", "true"),
            ("/a=1GiB;/a=2GiB", "twice"),
        ] {
            let error = parse_ssds(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
