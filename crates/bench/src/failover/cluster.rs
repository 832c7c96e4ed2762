//! Three masters, three nodes and etcd, as processes of their own in a folder of their own.

use anyhow::{Context, Result, bail, ensure};
use mooncrate::{ClientConfig, ConnectOptions, Masters, Store};
use mooncrate_core::LeaderEpoch;
use mooncrate_wire::clock::boottime;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Values in the cluster.
pub(crate) const KEYS: u32 = 200;
const NODES: [&str; 3] = ["a", "b", "c"];
/// Longest wait for a part to start or to settle.
const PATIENCE: Duration = Duration::from_mins(1);

/// A process; killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All of them.
pub(crate) struct Cluster {
    program: PathBuf,
    masters: Vec<Process>,
    nodes: Vec<Process>,
    _etcd: Process,
    etcd: String,
    pub(crate) addresses: Masters,
    asks: Option<Store>,
    folder: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn start() -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("mooncrate");
        let build = "cargo build --release -p mooncrate-cli";
        ensure!(program.exists(), "{} is missing; build it: {build}", program.display());
        let folder = tempfile::tempdir()?;
        let etcd = format!("http://127.0.0.1:{}", free_port()?);
        let etcd_process = start_etcd(folder.path(), &etcd)?;
        let ports = [free_port()?, free_port()?, free_port()?];
        let all: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let addresses: Masters = all.join(",").parse().map_err(anyhow::Error::msg)?;
        let mut cluster = Self {
            program,
            masters: Vec::new(),
            nodes: Vec::new(),
            _etcd: etcd_process,
            etcd,
            addresses,
            asks: None,
            folder,
        };
        for index in 0..ports.len() {
            let master = cluster.master(index)?;
            cluster.masters.push(master);
        }
        for name in NODES {
            let all = cluster.addresses.to_string();
            let socket = cluster.folder.path().join(format!("{name}.sock"));
            let socket = socket.display().to_string();
            let args = ["node", "--master", &all, "--data", "127.0.0.1:0", "--unix", &socket];
            let own = ["--node-name", name, "--segment-size", "32MiB"];
            let node = cluster.launch(name, &[&args[..], &own].concat())?;
            cluster.nodes.push(node);
        }
        cluster.asks = Some(cluster.connect(true)?);
        Ok(cluster)
    }

    fn master(&self, index: usize) -> Result<Process> {
        let (at, name) = (self.addresses.all()[index].to_string(), format!("m{index}"));
        let args = ["master", "--master", &at, "--admin", "off", "--name", &name];
        self.launch(&name, &[&args[..], &["--etcd", &self.etcd]].concat())
    }

    /// Starts a server and waits for the line that says it is ready.
    fn launch(&self, name: &str, args: &[&str]) -> Result<Process> {
        let log = std::fs::File::create(self.folder.path().join(format!("{name}.log")))?;
        let mut child = Command::new(&self.program)
            .args(args)
            .arg("--json")
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let stdout = child.stdout.take().context("the pipe that was asked for")?;
        let process = Process(child);
        let mut line = String::new();
        // It ends by itself if it cannot start, so this line or the end comes.
        BufReader::new(stdout).read_line(&mut line)?;
        if !line.contains("started") {
            let log = std::fs::read_to_string(self.folder.path().join(format!("{name}.log")));
            bail!("{name} did not start: {}", log.unwrap_or_default());
        }
        Ok(process)
    }

    pub(crate) fn restart(&mut self, index: usize) -> Result<()> {
        self.masters[index] = self.master(index)?;
        Ok(())
    }

    pub(crate) fn connect(&self, shared_memory: bool) -> Result<Store> {
        let client = ClientConfig { call_time: Duration::from_secs(5), ..ClientConfig::default() };
        let master = self.addresses.clone();
        let options = ConnectOptions { master, shared_memory, client, ..ConnectOptions::default() };
        patiently("a client connects", || Store::connect(options.clone()))
    }

    fn asks(&self) -> &Store {
        self.asks.as_ref().expect("made at the start")
    }

    /// Which master leads, and under which epoch.
    pub(crate) fn leader(&self) -> Result<(usize, LeaderEpoch)> {
        let stat = patiently("the leader", || self.asks().stat())?;
        let leads = |at: &mooncrate::Address| stat.leader.ends_with(&format!(" at {at}"));
        let index = self.addresses.all().iter().position(leads).context("one of ours leads")?;
        Ok((index, stat.epoch))
    }

    /// Waits until all nodes have announced, and a little more, so that rounds do not overlap.
    pub(crate) fn settle(&self) -> Result<()> {
        patiently("all nodes are known", || match self.asks().stat() {
            Ok(stat) if stat.nodes == NODES.len() as u32 && !stat.rebuilding => Ok(()),
            Ok(stat) => Err(format!("{} nodes", stat.nodes)),
            Err(error) => Err(error.to_string()),
        })?;
        // Keep-alives come every 0.7 s: without this all rounds would hit the same phase of them.
        std::thread::sleep(Duration::from_millis(500 + boottime().0 % 700));
        Ok(())
    }

    pub(crate) fn signal(&mut self, index: usize, signal: Signal) -> Result<()> {
        let child = &mut self.masters[index].0;
        kill_process(Pid::from_child(child), signal)?;
        if signal == Signal::KILL {
            child.wait()?;
        }
        Ok(())
    }
}

/// etcd, without syncing its disk: no round cuts the power, and the disk is not what is measured.
fn start_etcd(folder: &Path, client: &str) -> Result<Process> {
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let child = Command::new("etcd")
        .args(["--name", "e", "--log-level", "error", "--unsafe-no-fsync"])
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("e={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting etcd; Debian's package is etcd-server")?;
    let process = Process(child);
    let host = client.trim_start_matches("http://");
    patiently("etcd listens", || TcpStream::connect(host))?;
    Ok(process)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Asks again until it works.
pub(crate) fn patiently<T, E: std::fmt::Display>(
    what: &str,
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<T> {
    let end = boottime().deadline_in(PATIENCE);
    loop {
        match call() {
            Ok(answer) => return Ok(answer),
            Err(error) if end.passed(boottime()) => bail!("{what}: still {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

pub(crate) fn key(n: u32) -> Vec<u8> {
    format!("failover/{n}").into_bytes()
}

pub(crate) fn value(n: u32) -> Vec<u8> {
    (0..4096 + n).map(|at| (at ^ n.wrapping_mul(0x9e37)) as u8).collect()
}
