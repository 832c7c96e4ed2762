//! A process of a run that serves others: a master, a node, a member of etcd.

use crate::chaos::dice::now;
use crate::chaos::net::{Host, Net};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const START_MAX: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);

/// A server, running or not.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) host: Host,
    pub(crate) child: Option<Child>,
    /// Where it listens: for calls, or for data.
    pub(crate) port: u16,
    /// Seconds that its wall clock is off when it starts next.
    pub(crate) clock: i32,
    /// How often it was started.
    pub(crate) starts: u32,
}

impl Server {
    /// One that is not running. In a namespace of its own it has the usual port.
    pub(crate) fn new(net: &Net, name: &str, usual: u16) -> Result<Self> {
        let port = if net.is_private() { usual } else { free_port()? };
        Ok(Self { host: net.host(name).clone(), child: None, port, clock: 0, starts: 0 })
    }

    /// Where it is reached.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host.address, self.port))
    }

    /// A file of the process that runs, or ran last.
    pub(crate) fn file(&self, folder: &Path, what: &str) -> PathBuf {
        folder.join(format!("{}-{}.{what}", self.host.name, self.starts))
    }

    /// Whether the process that runs, or ran last, has said that it is ready.
    pub(crate) fn was_ready(&self, folder: &Path) -> bool {
        std::fs::read_to_string(self.file(folder, "out")).is_ok_and(|said| said.contains('\n'))
    }

    /// Waits for the line that a server prints when it is ready.
    pub(crate) fn wait_ready(&mut self, folder: &Path) -> Result<()> {
        let began = now();
        while !self.was_ready(folder) {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || began.elapsed() > START_MAX {
                let log = std::fs::read_to_string(self.file(folder, "log")).unwrap_or_default();
                bail!("{} did not start: {log}", self.host.name);
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Starts a command, which runs on this server's host; what it says goes into files.
    pub(crate) fn spawn(&mut self, folder: &Path, mut command: Command) -> Result<()> {
        self.starts += 1;
        if let (Some(library), true) = (faketime(), self.clock != 0) {
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}", self.clock));
            // Wall time only: nothing that runs on one kernel sees two boot clocks.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdout(File::create(self.file(folder, "out"))?);
        command.stderr(File::create(self.file(folder, "log"))?);
        self.child = Some(command.spawn().with_context(|| format!("starting {command:?}"))?);
        Ok(())
    }

    /// What it says last, if it ended and nobody asked it to. It counts as gone from then on.
    pub(crate) fn last_words(&mut self, folder: &Path) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        let text = std::fs::read_to_string(self.file(folder, "log")).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(5).collect();
        self.child = None;
        Some(format!("{} ended by itself ({status}): {last:?}", self.host.name))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            send(child, signal);
        }
    }

    /// Kills it and waits.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            end(child);
        }
    }

    /// Asks it to end, and kills it if it takes too long; whether it ended well.
    pub(crate) fn leave(&mut self, most: Duration) -> bool {
        let Some(mut child) = self.child.take() else { return true };
        send(&child, Signal::TERM);
        let began = now();
        while began.elapsed() < most {
            if let Ok(Some(status)) = child.try_wait() {
                return status.success();
            }
            std::thread::sleep(STEP);
        }
        end(child);
        false
    }
}

/// Sends a signal to a child, which is ours and not yet waited for.
pub(crate) fn send(child: &Child, signal: Signal) {
    // Fails if it has just ended, which is found out elsewhere.
    let _ = kill_process(Pid::from_child(child), signal);
}

/// Kills a child and waits for it.
pub(crate) fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The library that lets a process see another time, if it is installed.
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    files.into_iter().find(|file| file.exists())
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
