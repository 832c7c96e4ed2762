//! Each rule of the gate, tried over real sockets by somebody who would like to come in.

use crate::toy::{Server, hello, within};
use mooncrate_check::certs::{Authority, Issued};
use mooncrate_core::ids::{HostId, Incarnation, LeaderEpoch, NodeId, TenantId};
use mooncrate_wire::address::Bound;
use mooncrate_wire::auth::{ClusterSecret, Token};
use mooncrate_wire::frame::{RequestId, Stamp, VERSION_HELLO, encode_frame};
use mooncrate_wire::link::Accepted;
use mooncrate_wire::message::*;
use mooncrate_wire::tls::TlsFiles;
use mooncrate_wire::{
    Access, Address, CallError, Credential, Gate, Kind, Link, LinkConfig, LinkKind, RefusalCode,
    ServerConfig,
};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const SERVERS: &[&str] = &["master.mooncrate", "node.mooncrate"];

fn secret() -> ClusterSecret {
    ClusterSecret::from_bytes([5; 32])
}

fn holding(token: Token) -> Access {
    Access { token: Some(Arc::new(token)), ..Access::default() }
}

fn guarded() -> Server {
    let gate = Gate::new(Some(secret()), None);
    Server::start_with("127.0.0.1:0", ServerConfig { gate, ..ServerConfig::default() })
}

fn link(address: &Address, access: Access) -> Result<Link, CallError> {
    let config = LinkConfig { access, ..LinkConfig::default() };
    Link::connect(address, &hello(), &config, within(10_000))
}

#[track_caller]
fn denied(tried: Result<impl std::fmt::Debug, CallError>, says: &[&str]) {
    let error = tried.unwrap_err();
    assert!(error.is_denied(), "{error:?}");
    for part in says {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

fn ping(link: &mut Link) {
    link.call(&Request::Ping(Ping {}), within(10_000)).unwrap();
}

#[test]
fn security_the_right_token_comes_in_and_the_wrong_one_does_not() {
    let server = guarded();
    ping(&mut link(&server.address, holding(Token::Cluster(secret()))).unwrap());
    ping(&mut link(&server.address, holding(secret().derive(Role::Client, "a").unwrap())).unwrap());
    denied(link(&server.address, Access::default()), &["--token-file"]);
    let foreign = ClusterSecret::from_bytes([6; 32]);
    denied(link(&server.address, holding(Token::Cluster(foreign))), &["not of this cluster"]);
    // A tenant that would like to be another one writes a token for itself.
    let Token::Derived { key, .. } = secret().derive(Role::Client, "a").unwrap() else { panic!() };
    let forged = Token::Derived { role: Role::Client, tenant: "b".into(), key };
    denied(link(&server.address, holding(forged)), &["not of this cluster"]);
    let forged = Token::Derived { role: Role::Admin, tenant: "a".into(), key };
    denied(link(&server.address, holding(forged)), &["not of this cluster"]);
}

#[test]
fn security_a_client_with_a_token_does_not_talk_to_a_server_without_one() {
    let server = Server::start();
    denied(
        link(&server.address, holding(Token::Cluster(secret()))),
        &["did not ask for the token"],
    );
    link(&server.address, Access::default()).unwrap();
}

#[test]
fn security_a_claim_counts_only_where_nothing_is_proved() {
    let (a, b) = (TenantId::named("a").unwrap(), TenantId::named("b").unwrap());
    let open = Server::start();
    ping(&mut link(&open.address, Access { tenant: a, ..Access::default() }).unwrap());
    let server = guarded();
    let token = || holding(secret().derive(Role::Client, "a").unwrap());
    ping(&mut link(&server.address, Access { tenant: a, ..token() }).unwrap());
    denied(link(&server.address, Access { tenant: b, ..token() }), &["of another tenant"]);
    // The secret itself is of the default tenant: it names another one by a token of that one.
    let all = holding(Token::Cluster(secret()));
    denied(link(&server.address, Access { tenant: b, ..all }), &["of another tenant"]);
}

#[test]
fn security_a_client_may_not_act_as_a_node() {
    let server = guarded();
    let mut client = link(&server.address, holding(secret().derive(Role::Client, "").unwrap()));
    let client = client.as_mut().unwrap();
    let beat = Request::Heartbeat(Heartbeat { node: NodeId(1), incarnation: Incarnation(1) });
    denied(client.call(&beat, within(5000)), &["a client may not send heartbeat"]);
    ping(client);
    let mut node =
        link(&server.address, holding(secret().derive(Role::Node, "").unwrap())).unwrap();
    node.call(&beat, within(5000)).unwrap();
    let exist = Request::Exist(Exist { keys: vec![&b"k"[..]].into() });
    denied(node.call(&exist, within(5000)), &["a node may not send exist"]);
}

/// Whoever skips the proof is not served, whatever comes instead.
#[test]
fn security_nothing_is_answered_before_the_proof() {
    let server = guarded();
    let Address::Tcp(address) = &server.address else { panic!() };
    let frame = |version, kind, body: &dyn Fn(&mut Vec<u8>)| {
        let request = RequestId(1);
        let stamp = Stamp { version, kind, reply: false, request, deadline_ms: 5000 };
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, stamp, body).unwrap();
        bytes
    };
    let good = frame(VERSION_HELLO, Kind::Hello, &|out| hello().encode(out));
    let seconds = [
        frame(1, Kind::Ping, &|_| ()),
        good.clone(),
        frame(VERSION_HELLO, Kind::Proof, &|out| out.extend([0; 69])),
        frame(VERSION_HELLO, Kind::Proof, &|out| out.extend([0; 3])),
    ];
    for second in seconds {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&[good.clone(), second].concat()).unwrap();
        let mut came = Vec::new();
        stream.read_to_end(&mut came).unwrap();
        // A challenge and a refusal, nothing else.
        let kinds: Vec<u8> = [came[5], came[32 + 32 + 5]].into();
        assert_eq!(kinds, [Kind::Challenge as u8, Kind::Refuse as u8]);
    }
    assert_eq!(server.toy.gone.load(std::sync::atomic::Ordering::SeqCst), 0, "nobody came in");
}

#[test]
fn security_who_says_nothing_is_sent_away() {
    let gate = Gate::new(Some(secret()), None);
    let handshake_time = Duration::from_millis(300);
    let config = ServerConfig { gate, handshake_time, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let Address::Tcp(address) = &server.address else { panic!() };
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut came = Vec::new();
    stream.read_to_end(&mut came).unwrap();
    assert_eq!(came, b"");
}

struct Files {
    folder: TempDir,
    count: u32,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), count: 0 }
    }

    fn write(&mut self, text: &str) -> std::path::PathBuf {
        self.count += 1;
        let path = self.folder.path().join(format!("{}.pem", self.count));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    fn tls(&mut self, issued: Option<&Issued>, ca: Option<&Authority>) -> TlsFiles {
        TlsFiles {
            cert: issued.map(|issued| self.write(&issued.cert)),
            key: issued.map(|issued| self.write(&issued.key)),
            ca: ca.map(|ca| self.write(&ca.cert())),
        }
    }

    fn access(&mut self, issued: Option<&Issued>, ca: &Authority) -> Access {
        let tls = self.tls(issued, Some(ca)).client().unwrap();
        Access { tls: Some(tls), ..Access::default() }
    }
}

fn encrypted(files: &mut Files, issued: &Issued, ca: Option<&Authority>, token: bool) -> Server {
    let tls = files.tls(Some(issued), ca).server().unwrap();
    let gate = Gate::new(token.then(secret), Some(tls));
    Server::start_with("127.0.0.1:0", ServerConfig { gate, ..ServerConfig::default() })
}

#[test]
fn security_certificates_that_are_refused_on_control_links() {
    let (ca, other, mut files) = (Authority::default(), Authority::default(), Files::new());
    let client = ca.issue(&["client.mooncrate"]);
    let server = encrypted(&mut files, &ca.issue(SERVERS), Some(&ca), false);
    let at = &server.address;
    let mut good = link(at, files.access(Some(&client), &ca)).unwrap();
    ping(&mut good);
    // More than one TLS record, both ways.
    let keys: Vec<Vec<u8>> = (0..900_u32).map(|n| vec![n as u8 | 1; 200]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let asked = Request::Exist(Exist { keys: keys.into() });
    let Reply::Exist(found) = good.call(&asked, within(10_000)).unwrap() else { panic!() };
    assert_eq!(found.len(), 900);

    denied(link(at, files.access(None, &ca)), &["--tls-cert"]);
    let expired = ca.issue_expired(&["client.mooncrate"]);
    denied(link(at, files.access(Some(&expired), &ca)), &["expired"]);
    let foreign = other.issue(&["client.mooncrate"]);
    denied(link(at, files.access(Some(&foreign), &ca)), &["same CA"]);
    denied(link(at, files.access(Some(&client), &other)), &["not signed by the CA"]);
    let nameless = ca.issue(&["example.org"]);
    denied(link(at, files.access(Some(&nameless), &ca)), &["client.TENANT.mooncrate"]);
    let tenant = ca.issue(&["client.acme.mooncrate"]);
    denied(link(at, files.access(Some(&tenant), &ca)), &["--token-file"]);

    let old = encrypted(&mut files, &ca.issue_expired(SERVERS), Some(&ca), false);
    denied(link(&old.address, files.access(Some(&client), &ca)), &["expired", "issue a new one"]);
    // A client's certificate does not make a server.
    let thief = encrypted(&mut files, &client, Some(&ca), false);
    denied(link(&thief.address, files.access(Some(&client), &ca)), &["master.mooncrate"]);
}

#[test]
fn security_plain_and_encrypted_links_do_not_mix() {
    let (ca, mut files) = (Authority::default(), Files::new());
    let client = ca.issue(&["client.mooncrate"]);
    let server = encrypted(&mut files, &ca.issue(SERVERS), Some(&ca), false);
    denied(link(&server.address, Access::default()), &["--tls-ca"]);
    let tls = files.tls(Some(&ca.issue(SERVERS)), Some(&ca)).server().unwrap();
    let (address, came) = accept_one(Gate::new(None, Some(tls)));
    denied(data(&address, Access::default()), &["--tls-ca"]);
    assert!(came.join().unwrap().is_err());
    let plain = Server::start();
    denied(link(&plain.address, files.access(Some(&client), &ca)), &["does not speak TLS"]);
}

/// TLS without client certificates encrypts; the token still decides who comes in.
#[test]
fn security_the_token_decides_where_the_certificate_does_not() {
    let (ca, mut files) = (Authority::default(), Files::new());
    let server = encrypted(&mut files, &ca.issue(SERVERS), None, true);
    let tls_only = files.access(None, &ca);
    denied(link(&server.address, tls_only.clone()), &["--token-file"]);
    let token = Some(Arc::new(secret().derive(Role::Client, "a").unwrap()));
    ping(&mut link(&server.address, Access { token, ..tls_only }).unwrap());
}

type Came = JoinHandle<Result<Credential, CallError>>;

/// One data connection is accepted; whom it let in.
fn accept_one(gate: Gate) -> (Address, Came) {
    let bound = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.address().unwrap();
    let work = move || {
        let Bound::Tcp(listener) = bound else { panic!() };
        listener.set_nonblocking(false).unwrap();
        let socket: OwnedFd = listener.accept().unwrap().0.into();
        let ack = |_: &Hello, version| HelloAck {
            version,
            name: "node".into(),
            epoch: LeaderEpoch(1),
            host: HostId(1),
        };
        let config = LinkConfig::default();
        Link::accept(socket, LinkKind::Data, &config, &gate, within(10_000), ack)
            .map(|Accepted { credential, .. }| credential)
    };
    (address, std::thread::Builder::new().spawn(work).unwrap())
}

fn data(address: &Address, access: Access) -> Result<Link, CallError> {
    let config = LinkConfig { access, ..LinkConfig::default() };
    let hello = Hello::new(Role::Client, LinkKind::Data, "test");
    Link::connect(address, &hello, &config, within(10_000))
}

/// The blocking side obeys the same rules, and knows whom it let in.
#[test]
fn security_data_links_ask_for_the_same_credentials() {
    let gate = Gate::new(Some(secret()), None);
    let (address, came) = accept_one(gate.clone());
    let acme = holding(secret().derive(Role::Client, "acme").unwrap());
    data(&address, acme).unwrap();
    let tenant = TenantId::named("acme").unwrap();
    assert_eq!(came.join().unwrap().unwrap(), Credential { role: Role::Client, tenant });

    let (address, came) = accept_one(gate);
    denied(data(&address, holding(Token::Cluster(ClusterSecret::from_bytes([0; 32])))), &["token"]);
    let error = came.join().unwrap().unwrap_err();
    assert!(matches!(error, CallError::Refused { code: RefusalCode::Denied, .. }), "{error}");

    let (ca, mut files) = (Authority::default(), Files::new());
    let tls = files.tls(Some(&ca.issue(SERVERS)), Some(&ca)).server().unwrap();
    let gate = Gate::new(Some(secret()), Some(tls));
    let (address, came) = accept_one(gate.clone());
    let client = ca.issue(&["client.acme.mooncrate"]);
    data(&address, files.access(Some(&client), &ca)).unwrap();
    assert_eq!(came.join().unwrap().unwrap(), Credential { role: Role::Client, tenant });
    let (address, came) = accept_one(gate);
    let expired = ca.issue_expired(&["client.acme.mooncrate"]);
    denied(data(&address, files.access(Some(&expired), &ca)), &["expired"]);
    assert!(came.join().unwrap().unwrap_err().to_string().contains("expired"));
}

/// A certificate and a token of two tenants, or a certificate of two: nobody acts as either.
#[test]
fn security_credentials_that_do_not_agree_are_refused() {
    let (mut files, ca) = (Files::new(), Authority::default());
    let issued = ca.issue(&["master.mooncrate", "node.mooncrate"]);
    let tls = files.tls(Some(&issued), Some(&ca)).server().unwrap();
    let gate = Gate::new(Some(secret()), Some(tls));
    let config = ServerConfig { gate, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let mut access = |names: &[&str], tenant: Option<&str>| {
        let token = tenant.map(|tenant| Arc::new(secret().derive(Role::Client, tenant).unwrap()));
        Access { token, ..files.access(Some(&ca.issue(names)), &ca) }
    };
    let acme = &["client.acme.mooncrate"][..];
    ping(&mut link(&server.address, access(acme, None)).unwrap());
    ping(&mut link(&server.address, access(acme, Some("acme"))).unwrap());
    denied(link(&server.address, access(acme, Some("zeta"))), &["another tenant than the token"]);
    let both = &["client.acme.mooncrate", "client.zeta.mooncrate"][..];
    denied(link(&server.address, access(both, None)), &["two tenants"]);
    // One for a node that is the client of a tenant as well: the role in the hello tells which.
    let node = &["node.mooncrate", "client.acme.mooncrate"][..];
    ping(&mut link(&server.address, access(node, None)).unwrap());
}

#[test]
fn security_a_key_that_others_may_read_is_refused() {
    let (mut files, ca) = (Files::new(), Authority::default());
    let tls = files.tls(Some(&ca.issue(&["master.mooncrate"])), Some(&ca));
    tls.server().unwrap();
    std::fs::set_permissions(tls.key.as_ref().unwrap(), PermissionsExt::from_mode(0o644)).unwrap();
    for refused in [tls.server().map(drop), tls.client().map(drop)] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.contains("chmod 600 /"), "{error}");
    }
}

#[test]
fn security_a_server_says_at_start_that_nobody_will_accept_its_certificate() {
    let (mut files, ca, other) = (Files::new(), Authority::default(), Authority::default());
    let mut check = |issued: &Issued, ca: Option<&Authority>| {
        files.tls(Some(issued), ca).check_server().map_err(|error| error.to_string())
    };
    for names in [&["master.mooncrate"][..], &["node.mooncrate", "client.mooncrate"]] {
        assert_eq!(check(&ca.issue(names), Some(&ca)), Ok(()));
        assert_eq!(check(&ca.issue(names), None), Ok(()));
    }
    // Clients match no wildcard of a single label either.
    for names in [["client.mooncrate"], ["*.mooncrate"]] {
        let issued = ca.issue(&names);
        for ca in [Some(&ca), None] {
            let error = check(&issued, ca).unwrap_err();
            let says = ["no client will accept it", "DNS name"];
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        }
    }
    let old = check(&ca.issue_expired(&["master.mooncrate"]), Some(&ca)).unwrap_err();
    assert!(old.contains("expired"), "{old}");
    let foreign = check(&other.issue(&["master.mooncrate"]), Some(&ca)).unwrap_err();
    assert!(foreign.contains("same CA"), "{foreign}");
}
