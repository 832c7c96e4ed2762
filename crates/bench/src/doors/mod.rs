//! `doors`: whoever has a credential calls at every port, while others crowd it.
//!
//! ```text
//!   server   the `mooncrate serve` of a person, with a secret, every port on loopback
//!   caller   a new connection, a proof, one call, hung up: again and again
//!   flood    so many connections that say nothing, half a hello, or a byte now and then;
//!            whoever is hung up on comes back a second later
//! ```
//!
//! What must stay true: the flood shows no credential; all is on loopback and ends after its seconds; a row in
//! which no call came through fails the run.

mod callers;
mod flood;

use crate::render::{bytes, note, say};
use crate::servers::{Server, program_beside};
use anyhow::{Context, Result};
use callers::{Caller, Calls};
use flood::{Flood, Manner};
use mooncrate::ClusterSecret;
use mooncrate_wire::door::raise_descriptors;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doors {
    /// The `mooncrate` to run [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    mooncrate: Option<PathBuf>,
    /// Connections of a flood
    #[arg(long, default_value_t = 5000)]
    connections: usize,
    /// Time of a row, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    seconds: u64,
}

/// A port and how it is called.
struct Port {
    name: &'static str,
    caller: Caller,
}

/// Calls at every port, alone and in every flood; whether calls came through in every row.
pub(crate) fn run(wanted: &Doors) -> Result<bool> {
    let allowed = raise_descriptors().context("raising the limit of open files")?;
    let most = usize::try_from(allowed / 2).unwrap_or(usize::MAX);
    let connections = wanted.connections.min(most);
    if connections < wanted.connections {
        note(&format!(
            "doors: {connections} connections, because only {allowed} files may be open"
        ));
    }
    let program = wanted.mooncrate.clone().map_or_else(program_beside, Ok)?;
    let folder = tempfile::tempdir().context("a folder for the server")?;
    let secret = ClusterSecret::generate()?;
    let token = folder.path().join("cluster.token");
    std::fs::write(&token, secret.to_hex())?;
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600))?;
    let time = Duration::from_secs(wanted.seconds);
    say(&format!(
        "{:<9} {:<9} {:>7} {:>9} {:>9} {:>7} {:>9} {:>7}",
        "port", "flood", "open", "calls/s", "worst ms", "failed", "memory", "files"
    ))?;
    let mut good = true;
    for at in 0..callers::PORTS {
        // A server of its own: what one flood left behind shall not show in the next row.
        let server = start(&program, folder.path(), &token)?;
        let port = callers::port(at, &server, &secret)?;
        for manner in [None, Some(Manner::Silent), Some(Manner::Half), Some(Manner::Slow)] {
            good &= row(&port, manner, connections, time, &server)?;
        }
    }
    Ok(good)
}

fn start(program: &Path, folder: &Path, token: &Path) -> Result<Server> {
    let (any, token) = ("127.0.0.1:0", token.to_string_lossy());
    let args = ["serve", "--master", any, "--data", any, "--admin", any, "--grpc", any];
    let more = ["--segment-size", "64MiB", "--token-file", &token];
    Server::start(program, folder, &[&args[..], &more].concat())
}

/// One row; whether a call came through.
fn row(
    port: &Port,
    manner: Option<Manner>,
    connections: usize,
    time: Duration,
    server: &Server,
) -> Result<bool> {
    let flood = manner.map(|manner| {
        let first = port.caller.first_bytes();
        Flood::start(port.caller.address().clone(), first, manner, connections)
    });
    let flood = flood.transpose()?;
    if let Some(flood) = &flood {
        flood.wait_until_it_came();
    }
    let Calls { done, failed, worst } = port.caller.call_for(time);
    let (memory, files) = (resident(server.pid())?, files(server.pid())?);
    let open = flood.map_or(0, Flood::end);
    say(&format!(
        "{:<9} {:<9} {open:>7} {:>9.0} {:>9.1} {failed:>7} {:>9} {files:>7}",
        port.name,
        manner.map_or("none", Manner::name),
        f64::from(done) / time.as_secs_f64(),
        worst.as_secs_f64() * 1e3,
        bytes(memory),
    ))?;
    Ok(done > 0)
}

/// Memory of a process.
fn resident(pid: u32) -> Result<u64> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("the server ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = number.context("a process without memory")?.parse()?;
    Ok(kib << 10)
}

/// Files that a process has open.
fn files(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("the server ended")?.count())
}
