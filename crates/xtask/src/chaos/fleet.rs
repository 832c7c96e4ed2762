//! The processes of a run: one master, or three on etcd; three nodes; four clients that judge every
//! answer; with several masters a watcher that tempts those who lead no longer.
//!
//! What must stay true: a process that ends by itself is a finding, never something to pass over; every
//! process ends with the run.

use crate::chaos::client::Client;
use crate::chaos::dice::now;
use crate::chaos::etcd::{self, Etcd};
use crate::chaos::net::{Host, Net};
use crate::chaos::proxy::Proxy;
use crate::chaos::server::{Server, free_port};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How many there are.
pub(crate) const NODES: usize = 3;
pub(crate) const CLIENTS: usize = 4;
/// Longest wait for the first leader: etcd elects its own first.
const LEADER_MAX: Duration = Duration::from_secs(30);
/// How long a master may take to say whether it leads; a stopped one never does.
const ASK_TIME: Duration = Duration::from_millis(500);
const AUDIT_TIME: Duration = Duration::from_secs(20);
/// So little that values leave it for the disk, and come back from there.
const SEGMENT: &str = "24MiB";
const DISK: &str = "256MiB,bucket_size=8MiB";
/// Shorter than clients are stopped for, so that some wake up after their put was given up.
const PUT_TIMEOUT: &str = "3s";

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) mooncrate: PathBuf,
    pub(crate) bench: PathBuf,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) masters: Vec<Server>,
    /// With several masters.
    pub(crate) etcd: Option<Etcd>,
    pub(crate) nodes: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// Asks masters that lead no longer, with several of them.
    pub(crate) watcher: Option<Client>,
    /// Between everybody and the only master, where there are no namespaces to redirect in.
    pub(crate) control: Option<Proxy>,
    /// What clients that were killed had counted.
    pub(crate) departed: Vec<serde_json::Value>,
    /// Nodes that were started again because they found no master.
    pub(crate) restarts: u64,
    /// Processes that ended by themselves, and other things that must not be.
    pub(crate) findings: Vec<String>,
    pub(crate) net: Net,
    programs: Programs,
    pub(crate) folder: PathBuf,
    /// Of each master.
    admin_ports: Vec<u16>,
    seed: u64,
    next_client: u16,
}

/// The hosts of a run with so many masters.
pub(crate) fn host_names(masters: usize) -> Vec<String> {
    let mut names: Vec<String> = (1..=masters).map(|n| format!("m{n}")).collect();
    names.extend((1..=NODES).map(|n| format!("n{n}")));
    names.extend((1..=CLIENTS).map(|n| format!("c{n}")));
    if masters > 1 {
        names.extend(etcd::host_names());
        names.push("w".to_owned());
    }
    names
}

impl Fleet {
    /// Starts everything and waits until the servers are ready.
    pub(crate) fn start(
        net: Net,
        programs: Programs,
        folder: &Path,
        seed: u64,
        masters: usize,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder.join("shared")).context("the shared folder")?;
        let several = masters > 1;
        let masters: Vec<Server> = (1..=masters)
            .map(|n| Server::new(&net, &format!("m{n}"), 7411))
            .collect::<Result<_>>()?;
        let nodes = (1..=NODES).map(|n| Server::new(&net, &format!("n{n}"), 7413));
        let nodes = nodes.collect::<Result<_>>()?;
        let control = if net.is_private() || several {
            None
        } else {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            Some(Proxy::start(any, masters[0].address(), seed)?)
        };
        let admin_port = |_: &Server| if net.is_private() { Ok(7412) } else { free_port() };
        let mut fleet = Self {
            admin_ports: masters.iter().map(admin_port).collect::<Result<_>>()?,
            masters,
            etcd: if several { Some(Etcd::start(&net, folder)?) } else { None },
            nodes,
            clients: Vec::new(),
            watcher: None,
            control,
            departed: Vec::new(),
            restarts: 0,
            findings: Vec::new(),
            net,
            programs,
            folder: folder.to_owned(),
            seed,
            next_client: 1,
        };
        for master in 0..fleet.masters.len() {
            fleet.start_master(master)?;
            fleet.masters[master].wait_ready(folder)?;
        }
        fleet.wait_for_leader()?;
        for node in 0..NODES {
            fleet.start_node(node)?;
            fleet.nodes[node].wait_ready(folder)?;
        }
        for seat in 0..CLIENTS {
            let client = fleet.new_client(seat)?;
            fleet.clients.push(client);
        }
        if several {
            fleet.watcher = Some(fleet.new_watcher()?);
        }
        Ok(fleet)
    }

    /// Where everybody finds the masters.
    pub(crate) fn master_addresses(&self) -> String {
        if let Some(proxy) = &self.control {
            return proxy.address.to_string();
        }
        let all: Vec<String> = self.masters.iter().map(|m| m.address().to_string()).collect();
        all.join(",")
    }

    /// Which master leads, as they say themselves.
    pub(crate) fn leader(&self) -> Option<usize> {
        if self.masters.len() == 1 {
            return Some(0);
        }
        let leads = |master: &usize| {
            let asked = self.ask_admin(*master, "/v1/usage", ASK_TIME);
            asked.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        (0..self.masters.len()).find(leads)
    }

    fn wait_for_leader(&self) -> Result<()> {
        let began = now();
        while self.leader().is_none() {
            if began.elapsed() > LEADER_MAX {
                bail!("no master leads after {LEADER_MAX:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Asks the admin HTTP of a master; the whole answer.
    fn ask_admin(&self, master: usize, path: &str, most: Duration) -> Result<String> {
        let server = &self.masters[master];
        anyhow::ensure!(server.child.is_some(), "{} does not run", server.host.name);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin_ports[master]));
        Net::inside(&server.host, || {
            let mut stream = TcpStream::connect_timeout(&address, most)?;
            stream.set_read_timeout(Some(most))?;
            let host = "Host: localhost\r\nConnection: close";
            write!(stream, "GET {path} HTTP/1.1\r\n{host}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })?
    }

    /// Asks the admin HTTP of the leader whether every byte is accounted for.
    pub(crate) fn audit(&self) -> Result<serde_json::Value> {
        let leader = self.leader().context("nobody leads")?;
        let answer = self.ask_admin(leader, "/v1/audit", AUDIT_TIME)?;
        let body = answer.split_once("\r\n\r\n").context("no body")?.1;
        serde_json::from_str(body).with_context(|| format!("the answer was {answer:?}"))
    }

    /// A command of the program itself on a server's host.
    fn serving(&self, host: &Host, args: &[&str]) -> Result<Command> {
        let program = self.programs.mooncrate.to_str().context("an odd path")?;
        let mut command = self.net.command(host, program);
        command.args(args).args(["--json", "--log", "info"]);
        if self.net.is_private() {
            // The namespaces of a run are as closed as loopback is.
            command.arg("--insecure-listen");
        }
        Ok(command)
    }

    /// Where the only master keeps its state.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join("master.state")
    }

    pub(crate) fn start_master(&mut self, index: usize) -> Result<()> {
        let server = &self.masters[index];
        let (name, listen) = (server.host.name.clone(), server.address().to_string());
        let admin = format!("127.0.0.1:{}", self.admin_ports[index]);
        let state = self.state().display().to_string();
        // Who stands for election keeps its epoch in etcd; who is alone, in a file.
        let urls = self.etcd.as_ref().map(Etcd::urls);
        let kept = match &urls {
            Some(urls) => ["--etcd", urls, "--name", &name].to_vec(),
            None => ["--state-file", &state].to_vec(),
        };
        let args = ["master", "--master", &listen, "--admin", &admin, "--put-timeout", PUT_TIMEOUT];
        // Every value goes to a disk, so that nodes come back with many of them.
        let disks = ["--offload", "eager"];
        let command = self.serving(&server.host, &[&args[..], &kept, &disks].concat())?;
        self.masters[index].spawn(&self.folder, command)
    }

    /// Starts a node with its disk. One whose forerunner still runs, and holds the disk, starts without.
    pub(crate) fn start_node(&mut self, index: usize) -> Result<()> {
        let disk = self.folder.join(format!("{}.disk", self.nodes[index].host.name));
        self.start_node_with(index, Some(&format!("{}={DISK}", disk.display())))
    }

    pub(crate) fn start_node_with(&mut self, index: usize, disk: Option<&str>) -> Result<()> {
        let masters = self.master_addresses();
        let node = &self.nodes[index];
        let data = node.address().to_string();
        // Another socket at each start: two processes of one name may live at the same time.
        let unix = self.folder.join(format!("{}-{}.sock", node.host.name, node.starts));
        let unix = unix.display().to_string();
        let (name, label) = (node.host.name.clone(), format!("h{}", index + 1));
        let args = ["node", "--master", &masters, "--data", &data, "--unix", &unix];
        let own = ["--segment-size", SEGMENT, "--node-name", &name, "--host", &label];
        let disk = disk.map_or_else(Vec::new, |disk| vec!["--ssd", disk]);
        let command = self.serving(&node.host, &[&args[..], &own, &disk].concat())?;
        self.nodes[index].spawn(&self.folder, command)
    }

    pub(crate) fn start_etcd(&mut self, member: usize) -> Result<()> {
        let etcd = self.etcd.as_mut().context("there is no etcd in this run")?;
        etcd.start_member(member, &self.net, &self.folder)
    }

    /// Another port for a node that starts while its forerunner still has the usual one.
    pub(crate) fn other_port(&mut self, index: usize) -> Result<()> {
        let private = self.net.is_private();
        let node = &mut self.nodes[index];
        node.port = if private { 7413 + (node.port + 1 - 7413) % 2 } else { free_port()? };
        Ok(())
    }

    /// The bench on a host.
    fn bench(&self, host: &Host) -> Result<Command> {
        Ok(self.net.command(host, self.programs.bench.to_str().context("an odd path")?))
    }

    /// A client on this seat, with keys of its own. The first two share a machine with a node.
    pub(crate) fn new_client(&mut self, seat: usize) -> Result<Client> {
        let number = self.next_client;
        self.next_client += 1;
        let host = self.net.host(&format!("c{}", seat + 1)).clone();
        let mut command = self.bench(&host)?;
        let label = if seat < 2 { format!("h{}", seat + 1) } else { format!("c{}", seat + 1) };
        let shared = self.folder.join("shared").display().to_string();
        command
            .args(["verify", "--seconds", "1000000", "--report-ms", "200", "--call-ms", "2000"])
            .args(["--readers", "2", "--writers", "2", "--keys", "400", "--shared", &shared])
            .args(["--master", &self.master_addresses(), "--host-label", &label])
            .args(["--client", &number.to_string(), "--seed", &self.seed.to_string()]);
        let log = self.folder.join(format!("client-{number}.log"));
        command.stdout(Stdio::piped()).stderr(File::create(log)?);
        Client::spawn(number, host, command)
    }

    fn new_watcher(&self) -> Result<Client> {
        let host = self.net.host("w").clone();
        let mut command = self.bench(&host)?;
        command.args(["leaders", "--masters", &self.master_addresses()]);
        let log = self.folder.join("watcher.log");
        command.stdout(Stdio::piped()).stderr(File::create(log)?);
        Client::spawn(0, host, command)
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
        let etcd = self.etcd.iter_mut().flat_map(|etcd| &mut etcd.members);
        let servers = self.masters.iter_mut().chain(&mut self.nodes).chain(etcd);
        self.findings.extend(servers.filter_map(|server| server.last_words(&folder)));
        for client in self.clients.iter_mut().chain(&mut self.watcher) {
            if let Some(status) = client.ended() {
                let (number, seen) = (client.number, client.seen().line);
                let what = format!("client {number} ended by itself ({status}): {seen}");
                self.findings.push(what);
            }
        }
    }

    /// Removes everything with the bench's own command; what it printed.
    pub(crate) fn drain(&self) -> Result<serde_json::Value> {
        let mut command = self.bench(self.net.host("c1"))?;
        let masters = self.master_addresses();
        let output = command.args(["clear", "--seconds", "60", "--master", &masters]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(said.trim()).with_context(|| {
            format!("clear said {said:?} {}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for client in self.clients.iter_mut().chain(&mut self.watcher) {
            client.kill();
        }
        let etcd = self.etcd.iter_mut().flat_map(|etcd| &mut etcd.members);
        for server in self.masters.iter_mut().chain(&mut self.nodes).chain(etcd) {
            server.kill();
        }
    }
}
