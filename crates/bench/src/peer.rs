//! This program once more, in a process of its own: a server, or the other end of a plain program.
//!
//! A peer says one line when it is ready and ends when its standard input does, so that it cannot
//! outlive a bench that was killed.

use crate::cores::Placement;
use crate::neighbours;
use crate::render;
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, CatalogConfig, MasterOptions, NodeOptions, Security, run_both};
use mooncrate_mem::clock::boottime;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a peer may take to end before it is killed.
const END_TIME: Duration = Duration::from_secs(5);

/// A running peer. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    said: String,
}

impl Peer {
    /// Starts this program with these arguments and waits until it is ready.
    pub(crate) fn start(placement: &Placement, arguments: &[&str]) -> Result<Self> {
        let mut peer = Self::spawn(placement, arguments)?;
        peer.await_ready()?;
        Ok(peer)
    }

    /// Starts this program with these arguments; [`Peer::await_ready`] comes later.
    pub(crate) fn spawn(placement: &Placement, arguments: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = placement
            .for_peer(|| command.spawn())?
            .with_context(|| format!("cannot start {}", arguments[0]))?;
        Ok(Self { child, said: String::new() })
    }

    /// Waits for the line that says that it is ready.
    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let out = self.child.stdout.take().context("it said that it is ready before")?;
        BufReader::new(out).read_line(&mut self.said)?;
        self.said.truncate(self.said.trim_end().len());
        ensure!(!self.said.is_empty(), "a peer ended before it was ready");
        Ok(())
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as a failing machine would, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The line that it said: where it listens.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let end = boottime().deadline_in(END_TIME);
        while !end.passed(boottime()) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // It hangs; there is nobody to tell but the one who looks at the process table.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Milliseconds of CPU that a process has used; 0 where the system does not say.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn cpu_ms(process: u32) -> f64 {
    // Ticks of 10 ms, as everywhere on Linux.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    neighbours::own_ticks(&stat).unwrap_or(0) as f64 * 10.0
}

/// The peer's side: says that it is ready, and waits for its end.
pub(crate) fn until_the_end(ready: &str) -> Result<()> {
    render::say(ready)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A peer with a master and a node, as `mooncrate serve` runs them.
pub(crate) fn serve_cluster(bytes: u64, security: Option<&Path>, tls: bool) -> Result<()> {
    let read = || match security {
        Some(folder) => crate::tls::read_credentials(folder, tls).security(),
        None => Ok(Security::default()),
    };
    let folder = tempfile::tempdir()?;
    let anywhere = Address::Tcp("127.0.0.1:0".into());
    let master =
        MasterOptions { listen: anywhere.clone(), security: read()?, ..MasterOptions::default() };
    let node = NodeOptions {
        listen: Some(anywhere),
        unix: Some(folder.path().join("node.sock")),
        segment_bytes: bytes,
        security: read()?,
        ..NodeOptions::default()
    };
    let running = run_both(master, node)?;
    let address = running.master_address().context("it runs a master")?;
    until_the_end(&address.to_string())?;
    running.stop();
    Ok(())
}

/// A catalog that is never short of time: the nodes of the bench send no heartbeats.
pub(crate) fn patient() -> CatalogConfig {
    const LONG: Duration = Duration::from_hours(24);
    CatalogConfig {
        put_timeout: LONG,
        registration: LONG,
        silent_after: LONG,
        order_retry: LONG,
        ..CatalogConfig::default()
    }
}
