//! A client of a run: `mooncrate-bench verify` as a process, and what it last said.

use crate::chaos::dice::now;

use crate::chaos::net::Host;
use crate::chaos::server::{end, send};
use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// What a client last said, and when.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: Value,
    pub(crate) at: Instant,
}

impl Seen {
    /// A number of the last line.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.line[name].as_u64().unwrap_or(0)
    }

    /// When the thing was that the line says is so many milliseconds ago.
    fn moment(&self, name: &str) -> Option<Instant> {
        self.at.checked_sub(Duration::from_millis(self.line[name].as_u64()?))
    }

    /// When its last call failed.
    pub(crate) fn trouble(&self) -> Option<Instant> {
        self.moment("trouble_ago_ms")
    }

    /// When its last call went well.
    pub(crate) fn well(&self) -> Option<Instant> {
        self.moment("well_ago_ms")
    }

    pub(crate) fn is_final(&self) -> bool {
        self.line["final"] == true
    }
}

/// A client process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) number: u16,
    pub(crate) host: Host,
    pub(crate) child: Option<Child>,
    seen: Arc<Mutex<Seen>>,
}

impl Client {
    pub(crate) fn spawn(number: u16, host: Host, mut command: Command) -> Result<Self> {
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let seen = Arc::new(Mutex::new(Seen { line: Value::Null, at: now() }));
        let shared = Arc::clone(&seen);
        Builder::new().name(format!("client-{number}")).spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Ok(line) = serde_json::from_str(&line) {
                    *shared.lock().expect("no holder panics") = Seen { line, at: now() };
                }
            }
        })?;
        Ok(Self { number, host, child: Some(child), seen })
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().expect("no holder panics").clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            send(child, signal);
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            end(child);
        }
    }

    /// How it ended, if it did and nobody asked it to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Asks it to end and waits for its last line; how it ended, or `None` if it had to be killed.
    pub(crate) fn finish(&mut self, most: Duration) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        let began = now();
        while began.elapsed() < most {
            let ended = self.child.as_mut()?.try_wait().ok()?;
            // The reader thread may still be at the last line.
            if ended.is_some() && (self.seen().is_final() || began.elapsed() > most / 2) {
                self.child = None;
                return ended;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        None
    }
}
