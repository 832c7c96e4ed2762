//! Hosts for the processes of a run: one network namespace each, joined by a bridge, or plain loopback
//! where namespaces are not permitted.
//!
//! ```text
//!   mc<pid>-hub   bridge ──┬── mc<pid>-m    10.77.0.1   the master
//!                          ├── mc<pid>-n1   10.77.0.2   a node, and so on
//!                          └── mc<pid>-c1   10.77.0.5   a client, and so on
//! ```
//!
//! What must stay true: nothing outside these namespaces is touched; their names carry the process id, so
//! that what a killed run left behind is known and swept by the next one.

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

const PREFIX: &str = "mc";
/// Rules are added to these chains and flushed from them.
const TABLE: &str = "table ip chaos {
  chain in { type filter hook input priority 0; policy accept; }
  chain out { type filter hook output priority 0; policy accept; }
  chain nat { type nat hook prerouting priority -100; policy accept; }
}
";

/// Where a process runs.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Short: m, n1, c2.
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    namespace: Option<String>,
}

/// All hosts of a run. Dropping it removes their namespaces.
#[derive(Debug)]
pub(crate) struct Net {
    hub: Option<String>,
    hosts: Vec<Host>,
    pdeathsig: bool,
}

impl Net {
    /// One namespace per name.
    pub(crate) fn private(names: &[String]) -> Result<Self> {
        sweep();
        let run = format!("{PREFIX}{}", std::process::id());
        let hub = format!("{run}-hub");
        let mut net = Self { hub: Some(hub.clone()), hosts: Vec::new(), pdeathsig: pdeathsig() };
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        for (index, name) in names.iter().enumerate() {
            let address = Ipv4Addr::new(10, 77, 0, index as u8 + 1);
            let namespace = format!("{run}-{name}");
            ip(&["netns", "add", &namespace])?;
            // Pushed at once, so that a failure below still removes it.
            let namespace = Some(namespace);
            net.hosts.push(Host { name: name.clone(), address, namespace: namespace.clone() });
            let space = namespace.as_deref().expect("just made");
            let (port, with_net) = (format!("to-{name}"), format!("{address}/24"));
            ip(&[
                "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", &port,
                "netns", &hub,
            ])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", space, "addr", "add", &with_net, "dev", "eth0"])?;
            ip(&["-n", space, "link", "set", "eth0", "up"])?;
            ip(&["-n", space, "link", "set", "lo", "up"])?;
            let host = net.hosts.last().expect("just pushed").clone();
            net.nft(&host, TABLE)?;
        }
        Ok(net)
    }

    /// All on 127.0.0.1.
    pub(crate) fn loopback(names: &[String]) -> Self {
        let host = |name: &String| Host {
            name: name.clone(),
            address: Ipv4Addr::LOCALHOST,
            namespace: None,
        };
        Self { hub: None, hosts: names.iter().map(host).collect(), pdeathsig: pdeathsig() }
    }

    /// Whether hosts are apart, so that the network between them can be broken.
    pub(crate) fn is_private(&self) -> bool {
        self.hub.is_some()
    }

    /// The host of this name.
    pub(crate) fn host(&self, name: &str) -> &Host {
        self.hosts.iter().find(|host| host.name == name).expect("the run made this host")
    }

    /// A program on a host. It dies with this process.
    pub(crate) fn command(&self, host: &Host, program: &str) -> Command {
        let mut words: Vec<&str> = Vec::new();
        if let Some(namespace) = &host.namespace {
            words.extend(["ip", "netns", "exec", namespace]);
        }
        if self.pdeathsig {
            words.extend(["setpriv", "--pdeathsig", "KILL"]);
        }
        words.push(program);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command
    }

    /// Runs `work` with the sockets of a host. The threads that it starts stay there, too.
    pub(crate) fn inside<T: Send>(host: &Host, work: impl FnOnce() -> T + Send) -> Result<T> {
        let space = host.namespace.as_ref().map(|name| {
            File::open(format!("/run/netns/{name}")).with_context(|| format!("namespace {name}"))
        });
        let space = space.transpose()?;
        std::thread::scope(|scope| {
            let entered = move || {
                if let Some(space) = space {
                    let kind = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(space.as_fd(), kind).context("entering a host")?;
                }
                Ok(work())
            };
            scope.spawn(entered).join().expect("work inside a host does not panic")
        })
    }

    /// Adds rules to a host's packet filter.
    pub(crate) fn rules(&self, host: &Host, rules: &[String]) -> Result<()> {
        let lines: Vec<String> =
            rules.iter().map(|rule| format!("add rule ip chaos {rule}\n")).collect();
        self.nft(host, &lines.concat())
    }

    /// Takes all rules and queues of a host away.
    pub(crate) fn clear(&self, host: &Host) -> Result<()> {
        let chains = ["in", "out", "nat"].map(|chain| format!("flush chain ip chaos {chain}\n"));
        self.nft(host, &chains.concat())?;
        // Fails where there is no queue, which is what is wanted.
        let mut command = self.command(host, "tc");
        command.args(["qdisc", "del", "dev", "eth0", "root"]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        Ok(())
    }

    /// Makes what a host sends slow.
    pub(crate) fn slow(&self, host: &Host, rate: &str) -> Result<()> {
        let mut command = self.command(host, "tc");
        command.args(["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate]);
        run(command.args(["burst", "16kb", "latency", "400ms"]))
    }

    /// Breaks the established connections of a port of a host.
    pub(crate) fn hang_up(&self, host: &Host, port: u16) -> Result<()> {
        let mut command = self.command(host, "ss");
        command.args(["-K", "-t", "state", "established", "sport", "=", &format!(":{port}")]);
        run(command.stdout(Stdio::null()))
    }

    fn nft(&self, host: &Host, script: &str) -> Result<()> {
        let mut command = self.command(host, "nft");
        let mut child = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut input, script.as_bytes())?;
        drop(input);
        if !child.wait()?.success() {
            bail!("nft refused on {}:\n{script}", host.name);
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let spaces = self.hosts.iter().filter_map(|host| host.namespace.as_ref());
        for space in spaces.chain(&self.hub) {
            let _ = ip(&["netns", "del", space]);
        }
    }
}

/// Why namespaces cannot be used here, if they cannot.
pub(crate) fn lacks() -> Option<String> {
    for (tool, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")] {
        if run(Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null())).is_err() {
            return Some(format!("{tool} is not installed (package {package})"));
        }
    }
    let name = format!("{PREFIX}{}-try", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).output();
    let _ = Command::new("ip").args(["netns", "del", &name]).output();
    match made {
        Ok(made) if made.status.success() => None,
        Ok(made) => Some(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Removes the namespaces of runs whose process is gone.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        let Some(pid) = pid.and_then(|(pid, _)| pid.parse::<u32>().ok()) else { continue };
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn pdeathsig() -> bool {
    run(Command::new("setpriv").arg("--version").stdout(Stdio::null())).is_ok()
}

fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Ok(())
}
