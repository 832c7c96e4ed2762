//! Trouble: wrong settings, taken ports, signals in the middle of work, killed nodes.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{ConnectOptions, Store, Stored};
use rustix::process::Signal;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;
use support::{Answer, Cluster, Server, answer, ask, finish, mooncrate, wait};

/// A command that needs no server.
fn plain(args: &[&str], env: &[(&str, &str)], file: Option<&str>) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        std::fs::write(folder.path().join("mooncrate.toml"), text).unwrap();
    }
    answer(&finish(mooncrate(folder.path()).args(args).envs(env.iter().copied()), b""))
}

#[test]
fn settings_are_layered_and_shown_with_their_origin() {
    let env = [("MOONCRATE_SLOTS", "77")];
    let file = Some("slots = 55\nsegment_size = \"1GiB\"\nzone = \"east\"\n");
    let args = ["serve", "--print-config", "--zone", "west"];
    let shown = plain(&args, &env, file).good();
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("segment_size"), "segment_size 1GiB mooncrate.toml:2");
    assert_eq!(row("slots"), "slots 77 $MOONCRATE_SLOTS");
    assert_eq!(row("zone"), "zone west --zone");
    assert_eq!(row("admin"), "admin 127.0.0.1:7412 default");
    let json = plain(&[&args[..], &["--json"]].concat(), &env, file).json();
    assert_eq!(json["slots"]["from"], "$MOONCRATE_SLOTS");
}

/// What Kubernetes tells every pod about a Service named mooncrate, and what a typing error looks like.
#[test]
fn variables_that_are_no_settings_are_told_in_one_line() {
    let env = [
        ("MOONCRATE_SERVICE_HOST", "10.96.3.7"),
        ("MOONCRATE_SERVICE_PORT", "50051"),
        ("MOONCRATE_PORT", "tcp://10.96.3.7:50051"),
        ("MOONCRATE_PORT_50051_TCP_ADDR", "10.96.3.7"),
        ("MOONCRATE_SEGMENTSIZE", "1GiB"),
    ];
    let shown = plain(&["serve", "--print-config"], &env, None);
    assert_eq!(shown.err.lines().count(), 1, "{}", shown.err);
    for word in ["warning", "$MOONCRATE_PORT_50051_TCP_ADDR", "$MOONCRATE_SEGMENT_SIZE?"] {
        assert!(shown.err.contains(word), "{word}: {}", shown.err);
    }
    assert!(shown.good().contains("segment_size"), "it goes on");
    let told = plain(&["serve", "--print-config", "--json"], &env, None);
    assert!(told.err.starts_with("{\"warning\":"), "{}", told.err);
}

#[test]
fn wrong_settings_are_refused_with_2_and_name_what_was_meant() {
    let serve = ["serve"];
    for (answer, says) in [
        (plain(&serve, &[], Some("segmnt_size = 1")), &["mooncrate.toml:1", "segment_size"][..]),
        (plain(&["serve", "--segment-size", "big"], &[], None), &["--segment-size", "256MiB"]),
        (plain(&["stat", "--config", "no.toml"], &[], None), &["no.toml"]),
        (plain(&["serve", "--master", "0.0.0.0:0"], &[], None), &["only loopback", "--master"]),
        (plain(&["serve", "--admin", "0.0.0.0:0"], &[], None), &["loopback only", "--admin off"]),
        (
            plain(&["serve", "--grpc", "0.0.0.0:0"], &[], None),
            &["other machines", "--tls-cert", "--grpc"],
        ),
        (
            plain(&["node", "--node-admin", "0.0.0.0:0"], &[], None),
            &["loopback only", "--node-admin off"],
        ),
        (
            plain(&["node", "--data", "0.0.0.0:0"], &[("MOONCRATE_HOST", "h")], None),
            &["only loopback", "--insecure-listen"],
        ),
        (
            plain(&["serve", "--admin", "[::]:0", "--insecure-listen"], &[], None),
            &["loopback only"],
        ),
        (
            plain(&["node", "--mooncake-door", "0.0.0.0:0"], &[], None),
            &["loopback only", "--mooncake-door off"],
        ),
        (
            plain(&["master", "--mooncake-metadata", "0.0.0.0:0"], &[], None),
            &["loopback only", "--mooncake-metadata off", "--insecure-listen"],
        ),
        (
            plain(&["master", "--evict-above", "80%", "--evict-to", "80%"], &[], None),
            &["--evict-to (80.0%)", "below"],
        ),
        (
            plain(&["serve", "--segment-size", "64TiB"], &[], None),
            &["--segment-size", "64.0 TiB", "the kernel would kill", "--memory-overcommit"],
        ),
        (plain(&["node", "--data", "off", "--unix", "off"], &[], None), &["cannot be reached"]),
        (plain(&["get", "k", "--json"], &[], None), &["-o FILE"]),
        (plain(&["get", "--key-hex", "xyz"], &[], None), &["--key-hex"]),
        (plain(&["get", ""], &[], None), &["the key is empty"]),
        (plain(&["frobnicate"], &[], None), &["frobnicate"]),
    ] {
        assert_eq!(answer.code, Some(2), "{answer:?}");
        assert!(answer.out.is_empty(), "{answer:?}");
        for part in says {
            assert!(answer.err.contains(part), "{part}: {}", answer.err);
        }
    }
}

/// All that Kubernetes puts into a pod beside a Service `mooncrate`, and beside Services whose names begin like settings.
/// Was: no server started there.
#[test]
fn servers_start_beside_services_of_kubernetes() {
    let mut env = Vec::new();
    for service in ["MOONCRATE", "MOONCRATE_MASTER", "MOONCRATE_DATA", "MOONCRATE_METRICS"] {
        for (name, value) in [
            ("SERVICE_HOST", "10.0.0.1"),
            ("SERVICE_PORT", "50051"),
            ("SERVICE_PORT_GRPC", "50051"),
            ("PORT", "tcp://10.0.0.1:50051"),
            ("PORT_50051_TCP", "tcp://10.0.0.1:50051"),
            ("PORT_50051_TCP_PROTO", "tcp"),
            ("PORT_50051_TCP_PORT", "50051"),
            ("PORT_50051_TCP_ADDR", "10.0.0.1"),
        ] {
            env.push((format!("{service}_{name}"), value));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0";
    let serve = ["serve", "--master", any, "--admin", "off", "--data", any, "--log", "warn"];
    let master =
        ["master", "--master", any, "--admin", "off", "--state-file", "off", "--log", "warn"];
    for args in [&serve, &master[..]] {
        let server = Server::start_with(folder.path(), args, |command| {
            command.envs(env.iter().map(|(name, value)| (name, value)));
        });
        assert!(server.address("master").starts_with("127.0.0.1:"));
        let log = std::fs::read_to_string(folder.path().join(format!("{}.log", args[0]))).unwrap();
        assert_eq!(log.lines().count(), 1, "one line of warning: {log}");
        assert!(log.contains("$MOONCRATE_PORT_50051_TCP_ADDR"), "{log}");
        assert!(!log.contains("did you mean"), "{log}");
        let mut shown = mooncrate(folder.path());
        shown.envs(env.iter().map(|(name, value)| (name, value))).args([args[0], "--print-config"]);
        let shown = answer(&finish(&mut shown, b"")).good();
        assert!(!shown.contains("$MOONCRATE"), "none of them is a setting: {shown}");
    }
}

#[test]
fn a_taken_port_names_port_holder_and_flag() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = holder.local_addr().unwrap();
    let (taken, any, me) = (at.to_string(), "127.0.0.1:0", std::process::id());
    let flags = ["--master", "--data", "--admin", "--grpc"];
    for flag in flags {
        let others = flags.into_iter().filter(|other| *other != flag);
        let mut args = vec!["serve", flag, &taken];
        args.extend(others.flat_map(|other| [other, any]));
        let answer = plain(&args, &[], None);
        assert_eq!(answer.code, Some(2), "{answer:?}");
        let port = format!("port {} is taken by process {me} (", at.port());
        assert!(answer.err.contains(&port) && answer.err.contains(flag), "{}", answer.err);
    }
}

#[test]
fn nobody_at_home_is_said_with_the_next_step() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let answer = plain(&["stat", "--master", &free, "--deadline", "2s"], &[], None);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.err.contains(&free) && answer.err.contains("mooncrate serve"), "{}", answer.err);
}

#[test]
fn values_that_are_too_large_are_refused_before_anything_is_sent() {
    let cluster = Cluster::start(&["--segment-size", "16MiB"]);
    let huge = std::fs::File::create(cluster.folder.path().join("huge")).unwrap();
    huge.set_len((3 << 30) + 1).unwrap();
    let answer = cluster.ask(&["put", "k", "huge"], b"");
    assert_eq!(answer.code, Some(1));
    assert!(answer.err.contains("3.0 GiB") && answer.err.contains("in parts"), "{}", answer.err);
    let answer = cluster.ask(&["put", "k"], &vec![0; 20 << 20]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.err.contains("the largest segment has"), "{}", answer.err);
}

/// The server gets SIGTERM while 64 MiB values stream in: it ends with 0, and the writer is told.
#[test]
fn a_signal_in_the_middle_of_a_transfer_ends_both_sides() {
    let mut cluster = Cluster::start(&["--segment-size", "512MiB"]);
    let options = ConnectOptions {
        master: cluster.server.address("master").parse().unwrap(),
        shared_memory: false,
        ..ConnectOptions::default()
    };
    let store = Store::connect(options).unwrap();
    let (told, hear) = std::sync::mpsc::channel();
    let writer = std::thread::Builder::new().spawn(move || {
        let value = vec![0x5a; 64 << 20];
        for n in 0_u32.. {
            let stored = store.put(format!("k{n}").as_bytes(), &value);
            let ended = !matches!(stored, Ok(Stored::New));
            let _ = told.send(n);
            if ended {
                return n;
            }
        }
        unreachable!("a server that has stopped takes no value");
    });
    hear.recv_timeout(Duration::from_mins(1)).expect("the first value is stored");
    // Values follow each other without a pause: the next one is on its way by now.
    std::thread::sleep(Duration::from_millis(5));
    cluster.server.signal(Signal::TERM);
    let status = wait(&mut cluster.server.child, Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{status}");
    for _ in 0..10_000 {
        match hear.recv_timeout(Duration::from_mins(1)) {
            Ok(_) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(error) => panic!("the writer hangs: {error}"),
        }
    }
    assert!(writer.unwrap().join().unwrap() >= 1, "the first put was before the signal");
}

/// A node that waits for a master that is not there can still be stopped.
#[test]
fn a_signal_ends_a_node_that_has_found_no_master() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut child = mooncrate(folder.path())
        .args(["node", "--data", "127.0.0.1:0", "--segment-size", "1MiB", "--master", &free])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let id = rustix::process::Pid::from_child(&child);
    // It may have given up already; then there is nobody to signal.
    let _ = rustix::process::kill_process(id, Signal::TERM);
    let status = wait(&mut child, Duration::from_secs(10));
    assert!(matches!(status.code(), Some(0 | 1)), "{status}");
}

/// After kill -9 the values of a node are gone. Until the node is back, and after it is, a get is a
/// miss or an error, never other bytes.
#[test]
fn a_killed_node_comes_back_empty_and_never_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (here, any) = (folder.path(), "127.0.0.1:0");
    let master = Server::start(here, &["master", "--master", any, "--admin", "off"]);
    let at = master.address("master").to_owned();
    let node = || {
        let own = ["--node-name", "n", "--unix", "n.sock", "--segment-size", "16MiB"];
        Server::start(here, &[&["node", "--master", &at, "--data", any], &own[..]].concat())
    };
    let first = node();
    ask(here, &at, &["put", "k", "--value", "the first life"], b"").good();
    assert_eq!(ask(here, &at, &["get", "k"], b"").good(), "the first life");
    drop(first); // kill -9

    let gone = ask(here, &at, &["get", "k", "--deadline", "2s"], b"");
    assert!(matches!(gone.code, Some(1 | 3)) && gone.out.is_empty(), "{gone:?}");
    let _second = node();
    // The same memory range, most likely, now holds another value.
    ask(here, &at, &["put", "other", "--value", "a second one!!"], b"").good();
    for flags in [&[][..], &["--no-shared-memory"]] {
        let miss = ask(here, &at, &[&["get", "k"], flags].concat(), b"");
        assert_eq!((miss.code, miss.out.len()), (Some(3), 0), "{miss:?}");
    }
    // Processes that mapped the old memory may read it until the first node's word has lapsed, so
    // the key may not change its value before that: the put says when to come back (R10).
    let put = ask(here, &at, &["put", "k", "--value", "the next life"], b"");
    match put.code {
        Some(0) => assert_eq!(ask(here, &at, &["get", "k"], b"").good(), "the next life"),
        _ => assert!(put.code == Some(1) && put.err.contains("may succeed"), "{put:?}"),
    }
}
