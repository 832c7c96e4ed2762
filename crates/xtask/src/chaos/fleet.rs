//! The processes of a run: one master, three nodes, four clients that judge every answer.
//!
//! What must stay true: a process that ends by itself is a finding, never something to pass over; every
//! process ends with the run.

use crate::chaos::client::Client;
use crate::chaos::dice::now;
use crate::chaos::net::{Host, Net};
use crate::chaos::proxy::Proxy;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How many there are.
pub(crate) const NODES: usize = 3;
pub(crate) const CLIENTS: usize = 4;
const START_MAX: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);
const SEGMENT: &str = "128MiB";
/// Shorter than clients are stopped for, so that some wake up after their put was given up.
const PUT_TIMEOUT: &str = "3s";

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) mooncrate: PathBuf,
    pub(crate) bench: PathBuf,
}

/// A master or a node.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) host: Host,
    pub(crate) child: Option<Child>,
    /// Where it listens: for calls, or for data.
    pub(crate) port: u16,
    /// Seconds that its wall clock is off when it starts next.
    pub(crate) clock: i32,
    starts: u32,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) master: Server,
    pub(crate) nodes: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// Between everybody and the master, where there are no namespaces to redirect in.
    pub(crate) control: Option<Proxy>,
    /// What clients that were killed had counted.
    pub(crate) departed: Vec<serde_json::Value>,
    /// Nodes that were started again because they found no master.
    pub(crate) restarts: u64,
    /// Processes that ended by themselves, and other things that must not be.
    pub(crate) findings: Vec<String>,
    pub(crate) net: Net,
    programs: Programs,
    folder: PathBuf,
    admin_port: u16,
    seed: u64,
    next_client: u16,
}

/// The hosts of a run.
pub(crate) fn host_names() -> Vec<String> {
    let nodes = (1..=NODES).map(|n| format!("n{n}"));
    let clients = (1..=CLIENTS).map(|n| format!("c{n}"));
    std::iter::once("m".to_owned()).chain(nodes).chain(clients).collect()
}

impl Fleet {
    /// Starts everything and waits until the servers are ready.
    pub(crate) fn start(net: Net, programs: Programs, folder: &Path, seed: u64) -> Result<Self> {
        std::fs::create_dir_all(folder.join("shared")).context("the shared folder")?;
        let private = net.is_private();
        let port = |usual: u16| if private { Ok(usual) } else { free_port() };
        let server = |name: &str, usual| -> Result<Server> {
            Ok(Server {
                host: net.host(name).clone(),
                child: None,
                port: port(usual)?,
                clock: 0,
                starts: 0,
            })
        };
        let master = server("m", 7411)?;
        let nodes = (1..=NODES).map(|n| server(&format!("n{n}"), 7413)).collect::<Result<_>>()?;
        let control = if private {
            None
        } else {
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, master.port));
            Some(Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), target, seed)?)
        };
        let mut fleet = Self {
            master,
            nodes,
            clients: Vec::new(),
            control,
            departed: Vec::new(),
            restarts: 0,
            findings: Vec::new(),
            admin_port: port(7412)?,
            net,
            programs,
            folder: folder.to_owned(),
            seed,
            next_client: 1,
        };
        fleet.start_master()?;
        fleet.wait_ready("m")?;
        for node in 0..NODES {
            fleet.start_node(node)?;
            fleet.wait_ready(&format!("n{}", node + 1))?;
        }
        for seat in 0..CLIENTS {
            let client = fleet.new_client(seat)?;
            fleet.clients.push(client);
        }
        Ok(fleet)
    }

    /// Where everybody finds the master.
    pub(crate) fn master_address(&self) -> SocketAddr {
        match &self.control {
            Some(proxy) => proxy.address,
            None => SocketAddr::from((self.master.host.address, self.master.port)),
        }
    }

    /// Where the admin HTTP is, seen from the master's host.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin_port))
    }

    pub(crate) fn start_master(&mut self) -> Result<()> {
        let Self { net, programs, folder, admin_port, .. } = self;
        let state = folder.join("master.state").display().to_string();
        let listen = format!("{}:{}", self.master.host.address, self.master.port);
        let admin = format!("127.0.0.1:{admin_port}");
        let args = [
            "master",
            "--master",
            &listen,
            "--admin",
            &admin,
            "--state-file",
            &state,
            "--put-timeout",
            PUT_TIMEOUT,
        ];
        self.master.spawn(net, programs, folder, &args)
    }

    pub(crate) fn start_node(&mut self, index: usize) -> Result<()> {
        let master = self.master_address().to_string();
        let Self { net, programs, folder, nodes, .. } = self;
        let node = &mut nodes[index];
        let data = format!("{}:{}", node.host.address, node.port);
        // Another socket at each start: two processes of one name may live at the same time.
        let unix = folder.join(format!("{}-{}.sock", node.host.name, node.starts));
        let unix = unix.display().to_string();
        let (name, label) = (node.host.name.clone(), format!("h{}", index + 1));
        let args = [
            "node",
            "--master",
            &master,
            "--data",
            &data,
            "--unix",
            &unix,
            "--segment-size",
            SEGMENT,
            "--node-name",
            &name,
            "--host",
            &label,
        ];
        node.spawn(net, programs, folder, &args)
    }

    /// Another port for a node that starts while its forerunner still has the usual one.
    pub(crate) fn other_port(&mut self, index: usize) -> Result<()> {
        let private = self.net.is_private();
        let node = &mut self.nodes[index];
        node.port = if private { 7413 + (node.port + 1 - 7413) % 2 } else { free_port()? };
        Ok(())
    }

    /// A client on this seat, with keys of its own. The first two share a machine with a node.
    pub(crate) fn new_client(&mut self, seat: usize) -> Result<Client> {
        let number = self.next_client;
        self.next_client += 1;
        let host = self.net.host(&format!("c{}", seat + 1)).clone();
        let master = self.master_address().to_string();
        let mut command =
            self.net.command(&host, self.programs.bench.to_str().context("an odd path")?);
        let label = if seat < 2 { format!("h{}", seat + 1) } else { format!("c{}", seat + 1) };
        let shared = self.folder.join("shared").display().to_string();
        command
            .args(["verify", "--seconds", "1000000", "--report-ms", "200", "--call-ms", "2000"])
            .args(["--readers", "2", "--writers", "2", "--keys", "400", "--shared", &shared])
            .args(["--master", &master, "--host-label", &label])
            .args(["--client", &number.to_string(), "--seed", &self.seed.to_string()]);
        let log = self.folder.join(format!("client-{number}.log"));
        command.stdout(Stdio::piped()).stderr(File::create(log)?);
        Client::spawn(number, host, command)
    }

    /// Waits for the line that a server prints when it is ready.
    fn wait_ready(&mut self, name: &str) -> Result<()> {
        let began = now();
        loop {
            let folder = self.folder.clone();
            let servers = std::iter::once(&mut self.master).chain(&mut self.nodes);
            let server = servers.into_iter().find(|server| server.host.name == name);
            let server = server.context("no such server")?;
            if server.was_ready(&folder) {
                return Ok(());
            }
            let ended = server.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || began.elapsed() > START_MAX {
                let log = std::fs::read_to_string(server.file(&folder, "log")).unwrap_or_default();
                bail!("{name} did not start: {log}");
            }
            std::thread::sleep(STEP);
        }
    }

    /// Starts nodes again that found no master when they started, as any supervisor of services does,
    /// and notes processes that ended by themselves otherwise.
    pub(crate) fn look_for_dead(&mut self) {
        let folder = self.folder.clone();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            let ended =
                node.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            if ended && !node.was_ready(&folder) {
                self.restarts += 1;
                if let Err(error) = self.start_node(index) {
                    self.findings.push(format!("{error:#}"));
                }
            }
        }
        for server in std::iter::once(&mut self.master).chain(&mut self.nodes) {
            let Some(child) = &mut server.child else { continue };
            if let Ok(Some(status)) = child.try_wait() {
                let log = server.file(&folder, "log");
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(5).collect();
                let name = &server.host.name;
                self.findings.push(format!("{name} ended by itself ({status}): {last:?}"));
                server.child = None;
            }
        }
        for client in &mut self.clients {
            if let Some(status) = client.ended() {
                let (number, seen) = (client.number, client.seen().line);
                let what = format!("client {number} ended by itself ({status}): {seen}");
                self.findings.push(what);
            }
        }
    }

    /// Removes everything with the bench's own command; what it printed.
    pub(crate) fn drain(&self) -> Result<serde_json::Value> {
        let host = self.net.host("c1");
        let mut command =
            self.net.command(host, self.programs.bench.to_str().context("an odd path")?);
        let master = self.master_address().to_string();
        let output = command.args(["clear", "--seconds", "60", "--master", &master]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(said.trim()).with_context(|| {
            format!("clear said {said:?} {}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

impl Server {
    fn file(&self, folder: &Path, what: &str) -> PathBuf {
        folder.join(format!("{}-{}.{what}", self.host.name, self.starts))
    }

    /// Whether the process that runs, or ran last, has said that it is ready.
    fn was_ready(&self, folder: &Path) -> bool {
        std::fs::read_to_string(self.file(folder, "out")).is_ok_and(|said| said.contains('\n'))
    }

    fn spawn(
        &mut self,
        net: &Net,
        programs: &Programs,
        folder: &Path,
        args: &[&str],
    ) -> Result<()> {
        self.starts += 1;
        let program = programs.mooncrate.to_str().context("an odd path")?;
        let mut command = net.command(&self.host, program);
        command.args(args).args(["--json", "--log", "info"]);
        if let (Some(library), true) = (faketime(), self.clock != 0) {
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+}", self.clock));
            // Wall time only: nothing that runs on one kernel sees two boot clocks.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        if net.is_private() {
            // The namespaces of a run are as closed as loopback is.
            command.arg("--insecure-listen");
        }
        command.stdout(File::create(self.file(folder, "out"))?);
        command.stderr(File::create(self.file(folder, "log"))?);
        self.child = Some(command.spawn().with_context(|| format!("starting {command:?}"))?);
        Ok(())
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

impl Drop for Fleet {
    fn drop(&mut self) {
        for client in &mut self.clients {
            client.kill();
        }
        for server in std::iter::once(&mut self.master).chain(&mut self.nodes) {
            server.kill();
        }
    }
}

/// The library that lets a process see another time, if it is installed.
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    files.into_iter().find(|file| file.exists())
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
