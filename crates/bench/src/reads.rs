//! `reads`: whether reads that ask nobody count for the life of what they read.
//!
//! ```text
//!   hot    some values are read all the time by one client while another one puts cold values
//!   disk   more than memory holds; some of it is read three times and must come back into memory
//!   trace  a trace of requests through a real server, beside the same policy simulated exactly
//! ```
//!
//! What must stay true: readers are native clients that remember places, so most reads make no call; every
//! value is stamped and judged.

mod disk;
mod hot;
mod trace;

use crate::servers::{Server, program_beside};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use mooncrate::{ClientConfig, ConnectOptions, Store};
use mooncrate_check::{PutId, payload};
use mooncrate_core::key;
use std::path::PathBuf;
use std::time::Duration;

/// Longer than any put waits for room.
const CALL_TIME: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Reads {
    #[command(subcommand)]
    what: What,
    /// The `mooncrate` to run [default: the one beside this program]
    #[arg(long, global = true, value_name = "FILE")]
    mooncrate: Option<PathBuf>,
    /// Memory of the node [default: 256MiB, and 128MiB with a disk]
    #[arg(long, global = true, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Bytes of a value [default: 1MiB; of a trace: 16000]
    #[arg(long, global = true, value_name = "SIZE")]
    value: Option<ByteSize>,
    /// The eviction policy of the server [default: lru; of a trace: all of them]
    #[arg(long, global = true)]
    policy: Option<String>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Read some values all the time while cold ones are put
    Hot(hot::Hot),
    /// Read values of a disk three times each
    Disk(disk::Disk),
    /// Replay a trace of requests
    Trace(trace::Trace),
}

/// Runs it; whether all is as it must be.
pub(crate) fn run(wanted: &Reads) -> Result<bool> {
    match &wanted.what {
        What::Hot(hot) => hot::run(wanted, hot),
        What::Disk(disk) => disk::run(wanted, disk),
        What::Trace(trace) => trace::run(wanted, trace),
    }
}

/// A server, and the folder that it lives in.
#[derive(Debug)]
struct Home {
    server: Server,
    _folder: tempfile::TempDir,
}

impl Home {
    fn serve(wanted: &Reads, memory: u64, policy: &str, disk_bytes: Option<u64>) -> Result<Self> {
        let program = wanted.mooncrate.clone().map_or_else(program_beside, Ok)?;
        let folder = tempfile::tempdir().context("a folder for the server")?;
        let (any, memory) = ("127.0.0.1:0", memory.to_string());
        let disk =
            disk_bytes.map(|bytes| format!("{}={bytes}", folder.path().join("disk").display()));
        let mut args = vec!["serve", "--master", any, "--admin", any, "--data", any];
        args.extend(["--segment-size", &memory, "--evict-policy", policy]);
        if let Some(disk) = &disk {
            args.extend(["--ssd", disk]);
        }
        let server = Server::start(&program, folder.path(), &args)?;
        Ok(Self { server, _folder: folder })
    }

    fn client(&self) -> Result<Store> {
        Ok(Store::connect(ConnectOptions {
            master: self.server.master()?.into(),
            client: ClientConfig { call_time: CALL_TIME, ..ClientConfig::default() },
            ..ConnectOptions::default()
        })?)
    }
}

/// The key of a number.
fn name(number: u32) -> Vec<u8> {
    format!("reads/{number}").into_bytes()
}

/// The value of a number.
fn value(number: u32, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    payload::fill(&mut value, PutId::new(1, 1, number), key::hash(&name(number)));
    value
}

/// Whether this is, to the last byte, the value of a number.
fn is_right(number: u32, len: usize, found: &[u8]) -> bool {
    let id = PutId::new(1, 1, number);
    found.len() == len && payload::examine_as(found, id, key::hash(&name(number))).is_ok()
}
