//! A cluster with a secret, its clients, and links to it that obey nobody.

use mooncrate::{
    Address, CatalogConfig, ClusterSecret, ConnectOptions, MasterOptions, NodeOptions, Running,
    Security, SsdConfig, Store, TierConfig, Token, run_both,
};
use mooncrate_core::TenantId;
use mooncrate_core::catalog::Offload;
use mooncrate_core::plan::{Locator, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    DataReply, DataRequest, Hello, Locate, PutItem, PutStart, Reply, Request, Role,
};
use mooncrate_wire::{Access, DataError, Gate, Link, LinkConfig, LinkKind, PoolConfig};
use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

pub(crate) fn secret() -> ClusterSecret {
    ClusterSecret::from_bytes([9; 32])
}

pub(crate) fn any_port() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

pub(crate) fn within(ms: u64) -> Deadline {
    boottime().deadline_in(Duration::from_millis(ms))
}

pub(crate) fn access(role: Role, tenant: &str) -> Access {
    let token = secret().derive(role, tenant).unwrap();
    Access { token: Some(Arc::new(token)), ..Access::default() }
}

pub(crate) fn security() -> Security {
    let token = Some(Arc::new(Token::Cluster(secret())));
    Security {
        gate: Gate::new(Some(secret()), None),
        access: Access { token, ..Access::default() },
        insecure_listen: false,
    }
}

/// A master and a node.
pub(crate) struct Guarded {
    pub(crate) running: Running,
    pub(crate) folder: TempDir,
    /// Links that planned a put: the put is given back when its writer has none.
    planning: Mutex<Vec<Link>>,
}

impl Guarded {
    pub(crate) fn start(dedicated: Option<&str>) -> Self {
        Self::with_tier(dedicated, |_| TierConfig::default())
    }

    /// With a disk, to which every put is copied.
    pub(crate) fn with_disk(dedicated: Option<&str>) -> Self {
        Self::with_tier(dedicated, |folder| {
            let disks = vec![SsdConfig::new(folder.join("ssd"), 64 << 20)];
            TierConfig { disks, ..TierConfig::default() }
        })
    }

    fn with_tier(dedicated: Option<&str>, tier: impl Fn(&Path) -> TierConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog = CatalogConfig { offload: Offload::Eager, ..CatalogConfig::default() };
        let master = MasterOptions {
            listen: any_port(),
            security: security(),
            catalog,
            ..MasterOptions::default()
        };
        let node = NodeOptions {
            name: "n".into(),
            listen: Some(any_port()),
            unix: Some(folder.path().join("n.sock")),
            segment_bytes: SEGMENT_BYTES,
            security: security(),
            tenant: dedicated.map(|name| TenantId::named(name).unwrap()),
            tier: tier(folder.path()),
            ..NodeOptions::default()
        };
        let running = run_both(master, node).unwrap();
        Self { running, folder, planning: Mutex::default() }
    }

    pub(crate) fn master(&self) -> Address {
        self.running.master_address().unwrap()
    }

    pub(crate) fn unix(&self) -> Address {
        Address::Unix(self.folder.path().join("n.sock"))
    }

    pub(crate) fn store(&self, tenant: &str, shared_memory: bool) -> Store {
        let link = LinkConfig { access: access(Role::Client, tenant), ..LinkConfig::default() };
        let options = ConnectOptions {
            master: self.master().into(),
            shared_memory,
            links: PoolConfig { link, ..PoolConfig::default() },
            ..ConnectOptions::default()
        };
        Store::connect(options).unwrap()
    }

    pub(crate) fn data(&self, tenant: &str) -> Link {
        let address = self.running.data_address().unwrap();
        link(LinkKind::Data, &address, Role::Client, tenant)
    }

    /// What the master tells a tenant of a key.
    pub(crate) fn locate(&self, tenant: &str, key: &[u8]) -> Option<Locator> {
        self.locate_all(tenant, key).into_iter().next()
    }

    /// All its copies.
    pub(crate) fn locate_all(&self, tenant: &str, key: &[u8]) -> Vec<Locator> {
        let mut link = link(LinkKind::Control, &self.master(), Role::Client, tenant);
        let ask = Locate { lease_ms: 0, keys: Cow::Owned(vec![key]) };
        match link.call(&Request::Locate(ask), within(10_000)).unwrap() {
            Reply::Locate(found) => {
                found[0].as_ref().map_or_else(|_| Vec::new(), |located| located.replicas.clone())
            }
            other => panic!("{other:?}"),
        }
    }

    /// A put that is only planned.
    pub(crate) fn plan(&self, tenant: &str, key: &[u8], len: u64) -> WritePlan {
        let mut link = link(LinkKind::Control, &self.master(), Role::Client, tenant);
        let config = Cow::Owned(PutConfig::default());
        let items = Cow::Owned(vec![PutItem::new(key, len)]);
        let ask = Request::PutStart(PutStart { config, items });
        let planned = link.call(&ask, within(10_000)).unwrap();
        self.planning.lock().unwrap().push(link);
        match planned {
            Reply::PutStart(mut plans) => plans.remove(0).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// A link that sends what it is told to.
pub(crate) fn link(kind: LinkKind, address: &Address, role: Role, tenant: &str) -> Link {
    let config = LinkConfig { access: access(role, tenant), ..LinkConfig::default() };
    let hello = Hello::new(role, kind, "attacker");
    Link::connect(address, &hello, &config, within(10_000)).unwrap()
}

/// What a node answers.
pub(crate) fn ask(link: &mut Link, request: &DataRequest<'_>) -> Result<(), DataError> {
    match link.call_data(request, &[], within(10_000)).unwrap() {
        DataReply::Attach(result) => result.map(|_| ()),
        DataReply::Begin(result)
        | DataReply::Write(result)
        | DataReply::Signal(result)
        | DataReply::Abandon(result)
        | DataReply::Open(result)
        | DataReply::WritePart(result) => result,
        DataReply::Read(read) => {
            link.skip_attachment(within(10_000)).unwrap();
            read.result.map(|_| ())
        }
        DataReply::Pin(pins) => pins[0].map(|_| ()),
        other => panic!("{other:?}"),
    }
}
