//! A real master with a real node behind a door, a client of the door, and a client of the node.

use mooncrate_core::plan::Locator;
use mooncrate_core::{Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, TenantId};
use mooncrate_grpc::pb::master_service_client::MasterServiceClient;
use mooncrate_grpc::pb::{self, BufHandle};
use mooncrate_grpc::{GrpcConfig, GrpcServing, Parts, View, serve_grpc};
use mooncrate_master::{Master, MasterConfig, Serving, serve};
use mooncrate_mem::SliceSums;
use mooncrate_node::{Node, NodeConfig};
use mooncrate_wire::address::Bound;
use mooncrate_wire::auth::ClusterSecret;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Abandon, BeginWrite, Mount, NodeInfo, Read, ReadReply, Signal, Write,
};
use mooncrate_wire::{
    Access, Address, DataError, DataReply, DataRequest, Gate, Hello, Link, LinkConfig, LinkKind,
    MasterApi, NodeApi, Role, ServerConfig,
};
use std::future::Future;
use std::io::IoSlice;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

pub(crate) const SEGMENT_BYTES: u64 = 4 << 20;
/// Longest wait for anything, on a machine that is busy with other things.
const LONG: Duration = Duration::from_mins(1);

fn any_port() -> Bound {
    Bound::listen(&Address::Tcp("127.0.0.1:0".into())).unwrap()
}

/// A cluster of one node. Ended in the order of its fields.
pub(crate) struct Cluster {
    door: GrpcServing,
    pub(crate) node: Arc<Node>,
    _serving: Serving,
    master: Arc<Master>,
    /// Where the node serves data.
    pub(crate) data: String,
}

/// The secret of a guarded cluster.
pub(crate) fn secret() -> ClusterSecret {
    ClusterSecret::from_bytes([9; 32])
}

/// A door that asks for what `gate` says.
pub(crate) fn parts(gate: Gate, master: &Arc<Master>) -> Parts {
    let (asked, leader) = (Arc::clone(master), Arc::clone(master));
    let view = move |tenant| {
        let master = Arc::clone(&asked);
        Ok(View { api: asked.scope(tenant), leads: Arc::new(move || master.leads()) })
    };
    let leads = Arc::new(move || leader.leads());
    Parts { gate, view: Arc::new(view), leads, audit: mooncrate_master::audit::line }
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(Gate::default(), |parts| (parts, GrpcConfig::default()))
    }

    /// One that asks everybody for a token.
    pub(crate) fn guarded() -> Self {
        let gate = Gate::new(Some(secret()), None);
        Self::start_with(gate, |parts| (parts, GrpcConfig::default()))
    }

    pub(crate) fn start_with(gate: Gate, door: impl FnOnce(Parts) -> (Parts, GrpcConfig)) -> Self {
        let grants = gate.grants().cloned();
        let config = MasterConfig { grants, ..MasterConfig::default() };
        let master = Master::new(config, LeaderEpoch(1)).unwrap();
        let serving = serve(&master, &[], &ServerConfig::default(), 1).unwrap();
        let config = NodeConfig {
            name: "a".into(),
            segment_bytes: SEGMENT_BYTES,
            incarnation: Incarnation(1),
            heartbeat: Duration::from_millis(50),
            gate: gate.clone(),
            ..NodeConfig::default()
        };
        let api = master.scope(TenantId::DEFAULT);
        let node = Node::new(config, api, vec![any_port()]).unwrap();
        let orders: Weak<dyn NodeApi> = Arc::downgrade(&(Arc::clone(&node) as Arc<dyn NodeApi>));
        master.set_local_node(node.id(), orders);
        node.register(true).unwrap();
        let (parts, config) = door(parts(gate, &master));
        let door = serve_grpc(any_port(), parts, config).unwrap();
        let data = node.info().tcp.clone();
        Self { door, node, _serving: serving, master, data }
    }

    /// Registers a node that does nothing.
    pub(crate) fn add_ghost(&self, name: &str) {
        let info =
            NodeInfo { node: NodeId::named(name), name: name.into(), ..self.node.info().clone() };
        let mount = Mount {
            info,
            seen: LeaderEpoch(0),
            offers: Vec::new(),
            fence_ms: None,
            draining: Vec::new(),
        };
        let scope = self.master.scope(TenantId::DEFAULT);
        scope.mount(&mount, boottime().deadline_in(LONG)).unwrap().unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let at = Endpoint::from_shared(format!("http://{}", self.door.address())).unwrap();
        let channel = runtime.block_on(at.connect()).unwrap();
        Client {
            runtime,
            grpc: MasterServiceClient::new(channel),
            bearer: None,
            access: Access::default(),
        }
    }

    /// Where the door is.
    pub(crate) fn door_address(&self) -> std::net::SocketAddr {
        self.door.address()
    }

    /// Bytes of answers that wait at the door.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.door.unsent_bytes()
    }

    /// A client with the token of a role and a tenant.
    pub(crate) fn client_as(&self, role: Role, tenant: &str) -> Client {
        let token = secret().derive(role, tenant).unwrap();
        let bearer = Some(token.to_text());
        let access = Access { token: Some(Arc::new(token)), ..Access::default() };
        Client { bearer, access, ..self.client() }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.node.stop();
    }
}

/// A client of the door.
pub(crate) struct Client {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) grpc: MasterServiceClient<Channel>,
    /// Its credential.
    pub(crate) bearer: Option<String>,
    /// The same, for nodes.
    pub(crate) access: Access,
}

type Asked<T> = Result<Response<T>, Status>;

impl Client {
    /// One call, with an end.
    pub(crate) fn call<'a, T, F: Future<Output = Asked<T>>>(
        &'a mut self,
        ask: impl FnOnce(&'a mut MasterServiceClient<Channel>) -> F,
    ) -> Result<T, Status> {
        let Self { runtime, grpc, .. } = self;
        let answer = runtime.block_on(async { tokio::time::timeout(LONG, ask(grpc)).await });
        answer.expect("an answer in time").map(Response::into_inner)
    }

    /// A request with the credential.
    pub(crate) fn request<R>(&self, message: R) -> Request<R> {
        let mut request = Request::new(message);
        if let Some(token) = &self.bearer {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    pub(crate) fn put_start(&mut self, key: &str, len: usize) -> pb::PutStartResponse {
        let ask = self.request(pb::PutStartRequest {
            key: key.into(),
            value_length: i64::try_from(len).unwrap(),
            config: pb::ReplicateConfig { replica_num: Some(1), ..pb::ReplicateConfig::default() },
            ..pb::PutStartRequest::default()
        });
        self.call(|c| c.put_start(ask)).unwrap()
    }

    pub(crate) fn put_end(
        &mut self,
        key: &str,
        put_token: Option<u64>,
        seals: &[u64],
    ) -> pb::PutEndResponse {
        let (key, seals) = (key.into(), seals.to_vec());
        let ask = self.request(pb::PutEndRequest { key, put_token, seals, ..Default::default() });
        self.call(|c| c.put_end(ask)).unwrap()
    }

    pub(crate) fn find(&mut self, key: &str, lease_ms: u32) -> pb::GetReplicaListResponse {
        let ask = self.request(pb::GetReplicaListRequest {
            key: key.into(),
            lease_ms: Some(lease_ms),
            key_bytes: None,
        });
        self.call(|c| c.get_replica_list(ask)).unwrap()
    }

    pub(crate) fn remove(&mut self, key: &str, force: bool) -> pb::RemoveResponse {
        let ask = pb::RemoveRequest { key: key.into(), force: Some(force), key_bytes: None };
        let ask = self.request(ask);
        self.call(|c| c.remove(ask)).unwrap()
    }

    pub(crate) fn mount(&mut self, name: &str, size: u64, buffer: u64) -> pb::MountSegmentResponse {
        let segment_name = name.into();
        let ask = self.request(pb::MountSegmentRequest { buffer, size, segment_name });
        self.call(|c| c.mount_segment(ask)).unwrap()
    }

    pub(crate) fn unmount(&mut self, name: &str) -> pb::UnmountSegmentResponse {
        let ask = self.request(pb::UnmountSegmentRequest { segment_name: name.into() });
        self.call(|c| c.unmount_segment(ask)).unwrap()
    }

    /// A whole put.
    pub(crate) fn store(&mut self, key: &str, value: &[u8]) {
        let planned = self.put_start(key, value.len());
        assert_eq!(planned.status_code, 0, "{planned:?}");
        let seal = self.write(&planned, value);
        assert_eq!(self.put_end(key, None, &[seal]).status_code, 0);
    }
}

fn link(handle: &BufHandle, access: &Access) -> Link {
    let address = Address::Tcp(handle.data_address().into());
    let hello = Hello::new(Role::Client, LinkKind::Data, "test");
    let config = LinkConfig { access: access.clone(), ..LinkConfig::default() };
    Link::connect(&address, &hello, &config, boottime().deadline_in(LONG)).unwrap()
}

fn locator(handle: &BufHandle) -> Locator {
    let mut body = handle.locator().to_vec();
    body.extend(0_u64.to_le_bytes());
    Abandon::decode(&body).unwrap().locator
}

/// Waits for what comes about by itself.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = boottime().deadline_in(LONG);
    while !so() {
        assert!(!until.passed(boottime()), "{what}: not in {LONG:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Client {
    /// Writes a value to the one replica of a plan and publishes it there; its seal.
    pub(crate) fn write(&self, planned: &pb::PutStartResponse, value: &[u8]) -> u64 {
        let handle = &planned.replica_list[0].handles[0];
        let mut link = link(handle, &self.access);
        let (locator, token) = (locator(handle), PutToken(planned.put_token()));
        let epoch = LeaderEpoch(planned.object_epoch());
        let put = BeginWrite {
            locator,
            token,
            object: ObjectId { epoch, sequence: planned.object_sequence() },
            epoch: LeaderEpoch(planned.leader_epoch()),
            len: value.len() as u64,
            label: handle.label(),
        };
        let deadline = boottime().deadline_in(LONG);
        let request = DataRequest::Write(Write { put });
        let reply = link.call_data(&request, &[IoSlice::new(value)], deadline).unwrap();
        assert_eq!(reply, DataReply::Write(Ok(())));
        let mut sums = SliceSums::new();
        sums.update(value);
        let seal = sums.seal();
        let request = DataRequest::Signal(Signal { locator, token, seal });
        let reply = link.call_data(&request, &[], deadline).unwrap();
        assert_eq!(reply, DataReply::Signal(Ok(())));
        seal.0
    }

    /// Reads a replica, and compares it with its seal.
    pub(crate) fn read(&self, handle: &BufHandle) -> Result<Vec<u8>, DataError> {
        let mut link = link(handle, &self.access);
        let deadline = boottime().deadline_in(LONG);
        let len = handle.value_bytes();
        let request = DataRequest::Read(Read { locator: locator(handle), start: 0, len });
        let reply = link.call_data(&request, &[], deadline).unwrap();
        let DataReply::Read(ReadReply { result }) = reply else { panic!("{reply:?}") };
        let mut value = vec![0; usize::try_from(result?).unwrap()];
        let mut sums = SliceSums::new();
        link.recv_attachment(&mut value, |piece| sums.update(piece), deadline).unwrap();
        assert_eq!(sums.seal().0, handle.seal());
        Ok(value)
    }
}
