//! A server with few descriptors, and a tenant that would like to have them all. A program of its own, because the
//! limit is the process's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[expect(dead_code, reason = "the tests of security use the rest")]
#[path = "security/cluster.rs"]
mod cluster;

use cluster::{Guarded, access, within};
use mooncrate_wire::message::{Hello, Role};
use mooncrate_wire::{Address, Link, LinkConfig, LinkKind};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Opens links of a tenant until the server says that these are enough.
fn take_all(address: &Address, kind: LinkKind) -> Vec<Link> {
    let config = LinkConfig { access: access(Role::Client, "evil"), ..LinkConfig::default() };
    let hello = Hello::new(Role::Client, kind, "evil");
    let dial = |_| Link::connect(address, &hello, &config, within(10_000)).ok();
    (0..1024).map_while(dial).collect()
}

/// The story: with a limit of 1,024 descriptors the data port has 192 places, and 1,024 links per tenant were
/// allowed: one tenant took all of them, nobody displaces whoever has proved who it is, and the puts of all
/// others failed.
#[test]
fn security_a_tenant_leaves_half_of_few_places_to_others() {
    let few = Some(1024);
    setrlimit(Resource::Nofile, Rlimit { current: few, maximum: few }).unwrap();
    let cluster = Guarded::start(None);
    for (kind, address) in [
        (LinkKind::Data, cluster.running.data_address().unwrap()),
        (LinkKind::Control, cluster.master()),
    ] {
        let taken = take_all(&address, kind);
        let other = cluster.store("other", false);
        let stored = other.put(format!("{kind:?}").as_bytes(), b"value");
        assert!(stored.is_ok(), "{stored:?}, beside {} links of another tenant", taken.len());
        assert!(taken.len() >= 64, "a tenant has its half: {}", taken.len());
    }
}
