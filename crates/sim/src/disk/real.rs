//! The backends of `mooncrate-ssd`, as a seed sets them up.

use super::harm::{Role, Weak};
use super::rig::Opens;
use super::swarm::Swarm;
use mooncrate_ssd::disk::Disk;
use mooncrate_ssd::disk::sim::BLOCK;
use mooncrate_ssd::{Backend, Config, Evict, Kind, Record, Recovery, open};
use std::path::Path;
use std::sync::Arc;

/// Those that a seed chooses from.
const BACKENDS: &[Kind] = &Kind::ALL;

/// The real ones.
#[derive(Clone, Copy, Debug)]
pub struct Real;

impl Opens for Real {
    fn backends(&self) -> usize {
        BACKENDS.len()
    }

    /// A bucket without metadata is read from head to head; a head that is damaged ends that. Zeros over the head
    /// of a record in the one file are its removal.
    fn weak(&self, swarm: &Swarm) -> Weak {
        let kind = BACKENDS[swarm.backend];
        Weak { role, shadows: kind == Kind::Bucket, overwrites: kind == Kind::Offset }
    }

    /// The one file of the offset backend is made in its full length.
    fn takes_all(&self, swarm: &Swarm) -> bool {
        BACKENDS[swarm.backend] == Kind::Offset
    }

    /// A third copy of the file `format` stands beside the two for a moment. Removals must be possible however
    /// full a directory is, and buckets log them: in blocks of 100, each twice.
    fn over(&self, swarm: &Swarm) -> u64 {
        let log = if BACKENDS[swarm.backend] == Kind::Bucket { 64 << 10 } else { 0 };
        BLOCK + log
    }

    fn open(
        &self,
        swarm: &Swarm,
        disk: Arc<dyn Disk>,
        found: &mut dyn FnMut(Record),
    ) -> Result<(Arc<dyn Backend>, Recovery), String> {
        let config = Config {
            bucket_bytes_max: swarm.bucket_bytes,
            bucket_records_max: swarm.bucket_records,
            open_buckets_max: swarm.open_buckets,
            handles_max: swarm.handles,
            evict: if swarm.lru { Evict::Lru } else { Evict::Fifo },
            verify_values: swarm.verify_values,
            token: Some(swarm.seed),
            ..Config::new(BACKENDS[swarm.backend], swarm.limit)
        };
        open(disk, &config, found, &mut |_| {}).map_err(|error| error.to_string())
    }
}

/// What a file of any backend is for. Files in directories hold a record each, also while they are written.
fn role(path: &Path) -> Role {
    let name = path.to_string_lossy();
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        _ if name.contains('/') => Role::Records,
        _ if name.starts_with("format") => Role::Identity,
        _ if name.starts_with("removed") => Role::Log,
        Some("meta" | "tmp") => Role::Table,
        _ => Role::Records,
    }
}
