//! The members of etcd that several masters elect their leader through: Debian's, as it comes.
//!
//! They do not sync their disks. No fault cuts the power, and what a killed process has written stays
//! with the kernel; a disk that others keep busy would only end leases that nobody meant to end.

use crate::chaos::net::Net;
use crate::chaos::server::{Server, free_port};
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};

/// How many there are: one may fail.
pub(crate) const MEMBERS: usize = 3;

/// All members, each on a host of its own.
#[derive(Debug)]
pub(crate) struct Etcd {
    pub(crate) members: Vec<Server>,
    peer_ports: Vec<u16>,
}

/// Whether this machine has etcd.
pub(crate) fn installed() -> bool {
    let mut asked = Command::new("etcd");
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

pub(crate) fn host_names() -> impl Iterator<Item = String> {
    (1..=MEMBERS).map(|n| format!("e{n}"))
}

impl Etcd {
    /// Starts all members. Masters wait for them by themselves.
    pub(crate) fn start(net: &Net, folder: &Path) -> Result<Self> {
        let members =
            host_names().map(|name| Server::new(net, &name, 2379)).collect::<Result<Vec<_>>>()?;
        let peer_port = |_: &Server| if net.is_private() { Ok(2380) } else { free_port() };
        let peer_ports = members.iter().map(peer_port).collect::<Result<_>>()?;
        let mut etcd = Self { members, peer_ports };
        for member in 0..MEMBERS {
            etcd.start_member(member, net, folder)?;
        }
        Ok(etcd)
    }

    /// Starts one member, which goes on with the data of its earlier lives.
    pub(crate) fn start_member(&mut self, member: usize, net: &Net, folder: &Path) -> Result<()> {
        let all: Vec<String> = (0..MEMBERS)
            .map(|one| format!("{}={}", self.members[one].host.name, self.peer_url(one)))
            .collect();
        let (client, peer) = (url(&self.members[member]), self.peer_url(member));
        let server = &mut self.members[member];
        let name = server.host.name.clone();
        let mut command = net.command(&server.host, "etcd");
        command
            .args(["--name", &name, "--log-level", "warn", "--unsafe-no-fsync", "--data-dir"])
            .arg(folder.join(format!("{name}.data")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")]);
        server.spawn(folder, command)
    }

    /// What masters are told.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> = self.members.iter().map(url).collect();
        urls.join(",")
    }

    fn peer_url(&self, member: usize) -> String {
        format!("http://{}:{}", self.members[member].host.address, self.peer_ports[member])
    }
}

fn url(member: &Server) -> String {
    format!("http://{}", member.address())
}
