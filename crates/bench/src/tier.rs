//! `tier`: a server with little memory and a disk, put to work by judges.
//!
//! ```text
//!   fill   more than memory holds is put, read and judged; then kill -9, a new start, and all is read again
//!   evict  more than the disk holds is put while readers ask for what is being evicted
//!   recover  many small records, closed and opened: how fast they are known again
//!   slow   the disk is throttled; gets from memory go on, puts wait instead of growing
//! ```
//!
//! What must stay true: no answer is wrong, a get ends with the value or with a plain miss, and what was put is
//! read where nothing had to make room for it.

mod evict;
mod fill;
mod recover;
mod slow;
mod throttle;

use crate::servers::{Server, program_beside};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use mooncrate::{ClientConfig, ConnectOptions, Store};
use mooncrate_check::{PutId, payload};
use mooncrate_core::{KeyHash, key};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any put waits for a disk that works.
const CALL_TIME: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Tier {
    #[command(subcommand)]
    what: What,
    /// The `mooncrate` to run [default: the one beside this program]
    #[arg(long, global = true, value_name = "FILE")]
    mooncrate: Option<PathBuf>,
    /// Where the disk's directory goes [default: the folder for temporary files]
    #[arg(long, global = true, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Memory of the node
    #[arg(long, global = true, value_name = "SIZE", default_value = "128MiB")]
    memory: ByteSize,
    /// Bytes of its disk
    #[arg(long, global = true, value_name = "SIZE", default_value = "2GiB")]
    disk: ByteSize,
    /// How records lie on it: bucket, `per_key` or offset
    #[arg(long, global = true, default_value = "bucket")]
    backend: String,
    /// When values go to it: eager, watermark or evict
    #[arg(long, global = true, default_value = "watermark")]
    offload: String,
    /// Bytes of a value
    #[arg(long, global = true, value_name = "SIZE", default_value = "256KiB")]
    value: ByteSize,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Put more than memory holds, read all of it, restart, read all of it again
    Fill(fill::Fill),
    /// Read what is being evicted from the disk
    Evict(evict::Evict),
    /// Open a directory of many small records
    Recover(recover::Recover),
    /// Throttle the disk and watch the gets from memory (root, a loop device, control groups)
    Slow(slow::Slow),
}

/// Runs it; whether all is as it must be.
pub(crate) fn run(wanted: &Tier) -> Result<bool> {
    match &wanted.what {
        What::Fill(fill) => fill::run(wanted, fill),
        What::Evict(evict) => evict::run(wanted, evict),
        What::Recover(recover) => recover::run(wanted, recover),
        What::Slow(slow) => slow::run(wanted, slow),
    }
}

/// A folder that a server lives in, across restarts.
#[derive(Debug)]
struct Home {
    program: PathBuf,
    disk: PathBuf,
    folder: tempfile::TempDir,
}

impl Home {
    fn new(wanted: &Tier) -> Result<Self> {
        let program = wanted.mooncrate.clone().map_or_else(program_beside, Ok)?;
        let mut folder = tempfile::Builder::new();
        folder.prefix("mooncrate-tier-");
        let folder = match &wanted.folder {
            Some(parent) => folder.tempdir_in(parent),
            None => folder.tempdir(),
        };
        let folder = folder.context("a folder for the server")?;
        Ok(Self { program, disk: folder.path().join("disk"), folder })
    }

    /// A server with this disk, and a client of it.
    fn serve(&self, wanted: &Tier) -> Result<(Server, Store)> {
        let any = "127.0.0.1:0";
        let memory = wanted.memory.0.to_string();
        let disk = format!("{}={},backend={}", self.disk.display(), wanted.disk.0, wanted.backend);
        let server = Server::start(
            &self.program,
            self.folder.path(),
            &[
                "serve",
                "--master",
                any,
                "--admin",
                any,
                "--data",
                any,
                "--segment-size",
                &memory,
                "--ssd",
                &disk,
                "--offload",
                &wanted.offload,
            ],
        )?;
        let store = Store::connect(ConnectOptions {
            master: server.master()?.into(),
            client: ClientConfig { call_time: CALL_TIME, ..ClientConfig::default() },
            ..ConnectOptions::default()
        })?;
        Ok((server, store))
    }

    fn disk(&self) -> &Path {
        &self.disk
    }
}

/// The key of a number, and what its value is stamped with.
fn stamp(number: u64) -> (Vec<u8>, KeyHash, PutId) {
    let name = format!("tier/{number}").into_bytes();
    let hash = key::hash(&name);
    (name, hash, PutId::new(1, 1, number as u32))
}

/// Puts the value of a number.
fn put(store: &Store, number: u64, value: &mut [u8]) -> Result<(), mooncrate::Error> {
    let (name, hash, id) = stamp(number);
    payload::fill(value, id, hash);
    store.put(&name, value).map(|_| ())
}

/// What a get of a number came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Right,
    Wrong,
    Miss,
}

/// Gets a value and judges all of its bytes.
fn get(store: &Store, number: u64, len: u64) -> Result<Got, mooncrate::Error> {
    Ok(judge(store.get(&stamp(number).0)?.as_deref(), number, len))
}

fn judge(value: Option<&[u8]>, number: u64, len: u64) -> Got {
    let (_, hash, id) = stamp(number);
    let Some(value) = value else { return Got::Miss };
    let right = value.len() as u64 == len && payload::examine_as(value, id, hash).is_ok();
    if right { Got::Right } else { Got::Wrong }
}
