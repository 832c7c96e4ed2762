//! Real processes, started with the commands that a person types.

use anyhow::{Context, Result, ensure};
use mooncrate::Address;
use mooncrate_wire::clock::boottime;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

const START_MAX: Duration = Duration::from_mins(1);

/// A server process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    started: Value,
}

impl Server {
    /// Starts a server in a folder, and waits until it is ready.
    pub(crate) fn start(program: &Path, folder: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).args(["--json", "--log", "error"]).current_dir(folder);
        command.env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| {
            format!("cannot run {}; cargo build --release -p mooncrate-cli", program.display())
        })?;
        let line = first_line(child.stdout.take().expect("piped"))?;
        let started = serde_json::from_str(&line).unwrap_or_default();
        // From here on its drop kills it.
        let server = Self { child, started };
        ensure!(server.started.is_object(), "{args:?} did not start: {line:?}");
        Ok(server)
    }

    /// Where its master listens.
    pub(crate) fn master(&self) -> Result<Address> {
        let address = self.started["master"].as_str().context("a server without an address")?;
        address.parse().map_err(anyhow::Error::msg)
    }

    /// What it said of itself when it was ready.
    pub(crate) fn said(&self, field: &str) -> Option<&str> {
        self.started[field].as_str()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and its end awaited.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing a server")?;
        self.child.wait().context("waiting for a server")?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a server says when it is ready. Its output is read on, so that it never writes into a closed
/// pipe.
fn first_line(output: ChildStdout) -> Result<String> {
    let (give, take) = mpsc::channel();
    Builder::new().name("server-output".into()).spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let _ = give.send(lines.next().unwrap_or_default());
        lines.for_each(drop);
    })?;
    take.recv_timeout(START_MAX).context("a server said nothing")
}

/// One master and its nodes.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) master: Address,
    /// By name.
    pub(crate) nodes: Vec<(&'static str, Server)>,
    program: PathBuf,
    segment: String,
    _master: Server,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts a master and one node per name.
    pub(crate) fn start(program: &Path, names: &[&'static str], segment: &str) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the cluster")?;
        let any = "127.0.0.1:0";
        let master = ["master", "--master", any, "--admin", any, "--state-file", "master.state"];
        let master = Server::start(program, folder.path(), &master)?;
        let mut cluster = Self {
            master: master.master()?,
            nodes: Vec::new(),
            program: program.to_owned(),
            segment: segment.to_owned(),
            _master: master,
            folder,
        };
        for name in names {
            let node = cluster.start_node(name)?;
            cluster.nodes.push((*name, node));
        }
        Ok(cluster)
    }

    /// Starts a node, for the first time or again.
    pub(crate) fn start_node(&self, name: &str) -> Result<Server> {
        let (address, any) = (self.master.to_string(), "127.0.0.1:0");
        let who = ["node", "--master", &address, "--node-name", name];
        let what = ["--segment-size", &self.segment, "--data", any];
        Server::start(&self.program, self.folder.path(), &[&who[..], &what].concat())
    }
}

/// The `mooncrate` that was built beside this program.
pub(crate) fn program_beside() -> Result<PathBuf> {
    let own = std::env::current_exe().context("the path of this program")?;
    Ok(own.with_file_name("mooncrate"))
}

/// Waits until `done`, at most `most`; how long it took, or `None` if it did not happen.
pub(crate) fn wait_until(most: Duration, mut done: impl FnMut() -> bool) -> Option<Duration> {
    let began = boottime();
    loop {
        if done() {
            return Some(boottime().since(began));
        }
        if boottime().since(began) > most {
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
