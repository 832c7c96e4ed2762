//! The admin HTTP over a real socket, in front of a master with a node that holds nothing but
//! promises.

use super::*;
use crate::MasterConfig;
use mooncrate_core::plan::{PutConfig, SegmentOffer};
use mooncrate_core::{HostId, Incarnation, LeaderEpoch, NodeId, Seal, SegmentId, ZoneId};
use mooncrate_wire::message::{Mount, NodeInfo, PutEndItem, PutItem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const NEVER: Deadline = Deadline::NEVER;

/// A master that knows one segment and the given keys.
fn master(keys: &[&[u8]]) -> Arc<Master> {
    let master = Master::new(MasterConfig::default(), LeaderEpoch(3)).unwrap();
    let node = NodeId(u64::MAX);
    let offer = SegmentOffer {
        segment: SegmentId::of(node, 0),
        incarnation: Incarnation(7),
        node,
        medium: Medium::Dram,
        bytes: 1 << 20,
        slots: 64,
        host: HostId(1),
        zone: ZoneId(2),
    };
    let info = NodeInfo {
        node,
        name: "n".into(),
        tcp: String::new(),
        unix: String::new(),
        host: HostId(1),
        zone: ZoneId(2),
    };
    let mount = Mount { info, seen: LeaderEpoch(0), offers: vec![offer.clone()], young: false };
    master.mount(&mount, NEVER).unwrap().unwrap();
    master.open_segment(offer.segment, offer.incarnation).unwrap();
    for key in keys {
        let items = [PutItem { key, len: 100 }];
        let plans = master.put_start(&PutConfig::default(), &items, NEVER).unwrap();
        let token = plans[0].as_ref().unwrap().token;
        let seal = Seal::default();
        let ended = master.put_end(&[PutEndItem { key, token, seal }], NEVER).unwrap();
        ended[0].as_ref().unwrap();
    }
    master
}

/// Sends requests one after the other; status and body of each.
fn exchange(master: Arc<Master>, requests: &[&str]) -> Vec<(u16, Value)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = serve(listener, master, async move { drop(stopped.await) });
        let asking = async move {
            let mut answers = Vec::new();
            for request in requests {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
                let body = answer.split_once("\r\n\r\n").unwrap().1;
                answers.push((status, serde_json::from_str(body).unwrap_or_default()));
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

#[test]
fn health_stat_and_segments_tell_what_the_master_knows() {
    let answers = get_all(master(&[b"a", b"b"]), &["/health", "/stat", "/segments", "/nowhere"]);
    assert_eq!(answers[0], (200, json!({ "status": "ok", "epoch": 3 })));
    let (status, stat) = &answers[1];
    assert_eq!((*status, &stat["objects"], &stat["nodes"]), (200, &json!(2), &json!(1)));
    let segment = &stat["segments"][0];
    assert_eq!(segment["node"], json!("ffffffffffffffff"), "ids are not rounded");
    assert_eq!((&segment["medium"], &segment["objects"]), (&json!("dram"), &json!(2)));
    assert_eq!(answers[2], (200, json!({ "segments": stat["segments"] })));
    assert_eq!(answers[3].0, 404);
    assert!(answers[3].1["error"].as_str().unwrap().contains("/stat"));
}

#[test]
fn keys_come_in_pages_and_may_be_any_bytes() {
    let keys: [&[u8]; 4] = [b"a/1", b"a/2", b"b/1", b"\xff\x00"];
    let paths = ["/keys", "/keys?prefix=a%2F&limit=1", "/keys?prefix=%FF", "/keys?limit=0"];
    let answers = get_all(master(&keys), &paths);
    assert_eq!(answers[0].1["keys"].as_array().unwrap().len(), 4);
    assert_eq!(answers[0].1["next"], Value::Null);
    assert_eq!(answers[1].1["keys"][0]["key"], json!("a/1"));
    assert!(answers[1].1["next"].is_u64(), "more follows");
    let raw = &answers[2].1["keys"][0];
    assert_eq!((&raw["key"], &raw["key_hex"]), (&json!("\\xff\\u{0}"), &json!("ff00")));
    assert_eq!(answers[3].0, 400);

    // Following the cursor meets each key once.
    let mut found = Vec::new();
    let mut path = "/keys?limit=1".to_owned();
    for _ in 0..10 {
        let answer = get_all(master(&keys), &[&path]).remove(0).1;
        for key in answer["keys"].as_array().unwrap() {
            found.push(key["key_hex"].clone());
        }
        let Some(next) = answer["next"].as_u64() else { break };
        path = format!("/keys?limit=1&cursor={next}");
    }
    assert_eq!(found, ["612f31", "612f32", "622f31", "ff00"]);
}

#[test]
fn nothing_can_be_changed_and_other_names_are_refused() {
    let post =
        "POST /stat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let rebound = "GET /keys HTTP/1.1\r\nHost: evil.example:7412\r\nConnection: close\r\n\r\n";
    let answers = exchange(master(&[b"a"]), &[post, rebound]);
    assert_eq!(answers[0].0, 405);
    assert_eq!(answers[1].0, 403);
    assert!(answers[1].1["keys"].is_null());
}

#[test]
fn hosts_of_this_machine_are_known() {
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:7412", "[::1]", "[::1]:9"] {
        assert!(is_this_host(host), "{host}");
    }
    for host in ["", "localhost.evil.example", "10.0.0.1:80", "evil:localhost", "127.0.0.1.nip.io"]
    {
        assert!(!is_this_host(host), "{host}");
    }
}

#[test]
fn queries_are_read_as_bytes_and_bad_ones_refused() {
    let page = Page::parse("prefix=a+b%2f%ff&cursor=5&limit=1000").unwrap();
    assert_eq!(page, Page { prefix: b"a b/\xff".to_vec(), cursor: 5, limit: 1000 });
    assert_eq!(Page::parse("").unwrap().limit, PAGE);
    for bad in ["prefix=%f", "prefix=%+1", "prefix=%zz", "cursor=x", "limit=1001", "offset=1"] {
        assert!(Page::parse(bad).is_err(), "{bad}");
    }
}
