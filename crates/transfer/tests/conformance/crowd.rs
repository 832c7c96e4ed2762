//! Callers that say nothing at the data port, and those who do.

use crate::rig::Rig;
use mooncrate_transfer::{DataServerConfig, Path};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::Unpin;
use mooncrate_wire::{Address, DataRequest, Hello, Link, LinkConfig, LinkKind, Role};
use rustix::net::recv;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);

/// A connection on which nothing is ever said.
fn silent(address: &Address) -> OwnedFd {
    match address {
        Address::Tcp(name) => std::net::TcpStream::connect(name).unwrap().into(),
        Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).unwrap().into(),
    }
}

fn link(address: &Address) -> Link {
    let hello = Hello::new(Role::Client, LinkKind::Data, "a test");
    let deadline = boottime().deadline_in(Duration::from_mins(1));
    // While threads of many that were displaced end, the next caller waits: it is not sent away.
    Link::connect(address, &hello, &LinkConfig::default(), deadline).unwrap()
}

fn works(link: &mut Link) {
    let ask = DataRequest::Unpin(Unpin { ids: Cow::Owned(Vec::new()) });
    let deadline = boottime().deadline_in(Duration::from_mins(1));
    link.call_data(&ask, &[], deadline).unwrap();
}

/// More than may be here say nothing, and have an hour to do so: whoever says hello is let in, and whoever
/// has said it stays.
#[test]
fn security_silent_callers_do_not_keep_others_out() {
    let rig = Rig::new(Path::Local);
    let config =
        DataServerConfig { connections_max: 32, hello_time: HOUR, ..DataServerConfig::default() };
    let (server, addresses) = rig.serve_as(config);
    for address in &addresses {
        let mut known = link(address);
        // Its hello was heard before the crowd comes; whoever has not said who it is may be displaced.
        works(&mut known);
        let crowd: Vec<OwnedFd> = (0..100).map(|_| silent(address)).collect();
        let mut late = link(address);
        works(&mut late);
        works(&mut known);
        // Its thread has ended, an hour early.
        let count = recv(&crowd[0], &mut [0_u8; 1][..], rustix::net::RecvFlags::empty());
        assert!(matches!(count, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{count:?}");
    }
    server.stop(Duration::ZERO);
}
