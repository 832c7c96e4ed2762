//! The admin HTTP over a real socket, in front of a master with a node that holds nothing but
//! promises.

use super::*;
use crate::{MasterConfig, MasterMetrics};
use mooncrate_core::plan::{Evidence, Medium, PutConfig, SegmentOffer};
use mooncrate_core::{HostId, Incarnation, LeaderEpoch, NodeId, Seal, SegmentId, ZoneId};
use mooncrate_lock::Mutex;
use mooncrate_wire::message::{Mount, NodeInfo, PutEndItem, PutItem, SealList};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const NEVER: Deadline = Deadline::NEVER;

/// The mount of a node with one segment.
pub(crate) fn mount_of(node: NodeId, incarnation: Incarnation) -> Mount {
    let (host, zone) = (HostId(1), ZoneId(2));
    let offer = SegmentOffer {
        segment: SegmentId::of(node, 0),
        incarnation,
        node,
        medium: Medium::Dram,
        bytes: 1 << 20,
        slots: 1024,
        host,
        zone,
        tenant: None,
        evidence: Evidence::default(),
    };
    let (tcp, unix) = (String::new(), String::new());
    let info = NodeInfo { node, name: node.to_string(), tcp, unix, host, zone };
    let (seen, offers) = (LeaderEpoch(0), vec![offer]);
    Mount { info, seen, offers, fence_ms: None, draining: Vec::new() }
}

/// A master and a segment that has mounted and is not open yet.
pub(crate) fn mounting() -> (Arc<Master>, SegmentOffer) {
    let master = Master::new(MasterConfig::default(), LeaderEpoch(3)).unwrap();
    let mut mount = mount_of(NodeId(u64::MAX), Incarnation(7));
    mount.info.name = "n".into();
    master.scope(TenantId::DEFAULT).mount(&mount, NEVER).unwrap().unwrap();
    (master, mount.offers.remove(0))
}

/// A master that knows one segment and the given keys.
pub(crate) fn master(keys: &[&[u8]]) -> Arc<Master> {
    let (master, offer) = mounting();
    master.open_segment(offer.segment, offer.incarnation).unwrap();
    let scope = master.scope(TenantId::DEFAULT);
    for key in keys {
        let items = [PutItem::new(key, 100)];
        let plans = scope.put_start(&PutConfig::default(), &items, NEVER).unwrap();
        let token = plans[0].as_ref().unwrap().token;
        let seals = SealList::encode(&[Seal::default()]);
        let end = PutEndItem { key, token, seals: SealList::of(&seals) };
        let ended = scope.put_end(&[end], NEVER).unwrap();
        ended[0].as_ref().unwrap();
    }
    master
}

/// What is logged on this thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let lines = self.clone();
        let make = move || lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(make).finish();
        tracing::subscriber::set_default(log)
    }

    pub(crate) fn take(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends requests one after the other; status and body of each.
fn exchange(master: Arc<Master>, requests: &[&str]) -> Vec<(u16, Value)> {
    exchange_at(Gate::default(), master, requests)
}

/// The same, where `gate` asks for tokens.
pub(crate) fn exchange_at(gate: Gate, master: Arc<Master>, requests: &[&str]) -> Vec<(u16, Value)> {
    let routes = routes(Arc::clone(&master), registry(master), gate);
    let json =
        |(status, body): (u16, String)| (status, serde_json::from_str(&body).unwrap_or_default());
    exchange_over(routes, requests).into_iter().map(json).collect()
}

/// What a master's `/metrics` shows.
pub(crate) fn registry(master: Arc<Master>) -> Arc<Registry> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MasterMetrics(master)));
    Arc::new(registry)
}

/// Sends requests to these routes; status and body of each.
pub(crate) fn exchange_over(routes: Router, requests: &[&str]) -> Vec<(u16, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let routes = mooncrate_admin::window(routes);
        let stop_asked = async move { drop(stopped.await) };
        let serving = mooncrate_admin::serve(
            listener,
            routes,
            mooncrate_admin::Settings::new("a test"),
            stop_asked,
        );
        let asking = async move {
            let mut answers = Vec::new();
            for request in requests {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
                let body = answer.split_once("\r\n\r\n").unwrap().1;
                answers.push((status, body.to_owned()));
            }
            stop.send(()).unwrap();
            answers
        };
        let all = async { tokio::join!(serving, asking) };
        let (served, answers) = tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
        served.unwrap();
        answers
    })
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost:7412\r\nConnection: close\r\n\r\n")
}

fn get_all(master: Arc<Master>, paths: &[&str]) -> Vec<(u16, Value)> {
    let requests: Vec<String> = paths.iter().map(|path| get_request(path)).collect();
    exchange(master, &requests.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn request(verb: &str, path: &str, more: &str) -> String {
    format!("{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}Connection: close\r\n\r\n")
}

#[test]
fn health_usage_segments_and_nodes_tell_what_the_master_knows() {
    let paths = ["/healthz", "/v1/usage", "/v1/segments", "/v1/nodes", "/v1/audit", "/nowhere"];
    let answers = get_all(master(&[b"a", b"b"]), &paths);
    assert_eq!(answers[0], (200, json!({ "status": "ok", "reasons": [], "epoch": 3 })));
    let (status, stat) = &answers[1];
    assert_eq!((*status, &stat["objects"], &stat["nodes"]), (200, &json!(2), &json!(1)));
    assert_eq!(stat["counters"]["puts"], json!(2));
    let segment = &stat["segments"][0];
    assert_eq!(segment["node"], json!("ffffffffffffffff"), "ids are not rounded");
    assert_eq!((&segment["medium"], &segment["objects"]), (&json!("dram"), &json!(2)));
    assert_eq!(answers[2], (200, json!({ "segments": stat["segments"] })));
    let node = &answers[3].1["nodes"][0];
    assert_eq!((&node["name"], node["silent_ms"].is_u64()), (&json!("n"), true));
    assert_eq!(node["segments"][0], segment["segment"]);
    assert_eq!(answers[4], (200, json!({ "adds_up": true })));
    assert_eq!(answers[5].0, 404);
    assert!(answers[5].1["error"].as_str().unwrap().contains("/v1/usage"));
}

#[test]
fn a_master_without_segments_is_not_healthy_and_says_why() {
    let empty = Master::new(MasterConfig::default(), LeaderEpoch(3)).unwrap();
    let (status, body) = get_all(empty, &["/healthz"]).remove(0);
    assert_eq!((status, &body["status"]), (503, &json!("not ready")));
    assert!(body["reasons"][0].as_str().unwrap().contains("no segment is mounted"), "{body}");
}

#[test]
fn keys_are_removed_one_at_a_time_and_the_log_hashes_them() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let master = master(&[b"a/b c", b"kept"]);
    let asked = [
        request("DELETE", "/v1/keys/a%2Fb%20c", ""),
        request("DELETE", "/v1/keys/nobody", ""),
        request("DELETE", "/v1/keys/kept?force=perhaps", ""),
        request("DELETE", "/v1/keys/%zz", ""),
        request("POST", "/v1/keys/kept", "Content-Length: 0\r\n"),
        get_request("/v1/keys"),
    ];
    let answers = exchange(master, &asked.each_ref().map(String::as_str));
    // Nobody carries the order out here, so the master says that the removal is under way.
    assert_eq!(
        answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
        [202, 404, 400, 400, 405, 200]
    );
    let left = answers[5].1["keys"].as_array().unwrap().clone();
    assert_eq!((left.len(), &left[0]["key"]), (1, &json!("kept")));
    let said = lines.take();
    let hash = format!("{:016x}", key::hash(b"a/b c").0);
    let audit: Vec<&String> = said.iter().filter(|line| line.contains("remove key")).collect();
    assert_eq!(audit.len(), 2, "one line per change that was tried: {said:?}");
    assert!(audit[0].contains(&hash) && audit[0].contains("127.0.0.1:"), "{audit:?}");
    assert!(audit[1].contains("no such key"), "{audit:?}");
    let named = |line: &&String| line.contains("a/b") || line.contains("nobody");
    assert!(!said.iter().any(|line| named(&line)), "no key in the log: {said:?}");
}

#[test]
fn keys_come_in_pages_and_may_be_any_bytes() {
    let odd = "c\\n\n\u{202e}";
    let keys: [&[u8]; 5] = [b"a/1", b"a/2", b"b/1", odd.as_bytes(), b"\xff\x00"];
    let paths = [
        "/v1/keys",
        "/v1/keys?prefix=a%2F&limit=1",
        "/v1/keys?prefix=%FF",
        "/v1/keys?limit=0",
        "/v1/keys?prefix=c",
    ];
    let answers = get_all(master(&keys), &paths);
    assert_eq!(answers[0].1["keys"].as_array().unwrap().len(), 5);
    assert_eq!(answers[0].1["next"], Value::Null);
    assert_eq!(answers[1].1["keys"][0]["key"], json!("a/1"));
    assert!(answers[1].1["next"].is_u64(), "more follows");
    let raw = &answers[2].1["keys"][0];
    assert_eq!((&raw["key"], &raw["key_hex"]), (&Value::Null, &json!("ff00")), "it is no text");
    assert_eq!(answers[3].0, 400);
    assert_eq!(answers[4].1["keys"][0]["key"], json!(odd), "exactly the key");

    // Following the cursor meets each key once.
    let mut found = Vec::new();
    let mut path = "/v1/keys?limit=1".to_owned();
    for _ in 0..10 {
        let answer = get_all(master(&keys), &[&path]).remove(0).1;
        for key in answer["keys"].as_array().unwrap() {
            found.push(key["key_hex"].clone());
        }
        let Some(next) = answer["next"].as_u64() else { break };
        path = format!("/v1/keys?limit=1&cursor={next}");
    }
    assert_eq!(found, ["612f31", "612f32", "622f31", "635c6e0ae280ae", "ff00"]);
}

#[test]
fn other_names_and_foreign_pages_are_refused() {
    let rebound = "GET /v1/keys HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let page = request("DELETE", "/v1/keys/a", "Origin: https://evil.example\r\n");
    let read = get_request("/v1/keys");
    let answers = exchange(master(&[b"a"]), &[rebound, &page, &read]);
    assert_eq!((answers[0].0, answers[1].0), (403, 403));
    assert!(answers[0].1["keys"].is_null());
    assert_eq!(answers[2].1["keys"][0]["key"], json!("a"), "it is still there");
}

/// HTTP/2 without a window: the preface, settings, and streams whose answers nobody takes.
fn unread_streams(count: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // INITIAL_WINDOW_SIZE = 0
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    for stream in 0..count {
        // GET / over http, from the table that every peer has.
        bytes.extend([0, 0, 3, 1, 5]);
        bytes.extend((2 * stream + 1).to_be_bytes());
        bytes.extend([0x82, 0x86, 0x84]);
    }
    bytes
}

/// The story: one connection to the admin port spoke HTTP/2, asked 200 times and took nothing. Its answers stayed in
/// memory, 1.6 GiB of them, for as long as it answered pings. Whoever speaks HTTP/1.1 has one answer at a time.
#[test]
fn security_many_answers_at_once_cannot_be_asked_for() {
    let master = master(&[]);
    let routes = routes(Arc::clone(&master), registry(master), Gate::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let settings = mooncrate_admin::Settings::new("a test");
        let routes = mooncrate_admin::window(routes);
        let serving = mooncrate_admin::serve(listener, routes, settings, std::future::pending());
        let asking = async move {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(&unread_streams(200)).await.unwrap();
            let mut answer = Vec::new();
            // What it was told before it was hung up on; a server that speaks HTTP/2 does not hang up.
            let ended =
                tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
            let ended = ended.await;
            let plain = answer.is_empty() || answer.starts_with(b"HTTP/1.1 ");
            assert!(
                plain,
                "{} bytes of HTTP/2: {:02x?}",
                answer.len(),
                &answer[..answer.len().min(24)]
            );
            assert!(ended.is_ok(), "it was not hung up on");
        };
        tokio::select! {
            () = asking => {}
            ended = serving => panic!("{ended:?}"),
        }
    });
}
