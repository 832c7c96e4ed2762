//! Every call of the door, from a gRPC client over a socket, into a real master with a real node;
//! bytes move over data frames as for any client.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate_grpc::pb::buf_handle::BufStatus;
use mooncrate_grpc::pb::replica_info::ReplicaStatus;
use mooncrate_grpc::pb::{self, StatusCode};
use mooncrate_grpc::{GrpcConfig, Parts, View};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::{DataError, Gate, Role};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use support::Cluster;
use tonic::{Code, Request};

const OK: i32 = 0;

fn code(code: StatusCode) -> i32 {
    code.into()
}

#[test]
fn a_value_is_put_found_read_and_removed() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    let value: Vec<u8> = (0..5000_u32).map(|n| (n * 7) as u8).collect();

    let planned = client.put_start("k", value.len());
    assert_eq!(planned.status_code, OK, "{planned:?}");
    let [replica] = &planned.replica_list[..] else { panic!("{planned:?}") };
    assert_eq!(replica.status(), ReplicaStatus::Initialized);
    let [handle] = &replica.handles[..] else { panic!("{replica:?}") };
    assert_eq!((handle.status(), handle.value_bytes()), (BufStatus::Init, 5000));
    assert_eq!((handle.node(), handle.data_address()), ("a", &*cluster.data));
    assert!(handle.size >= 5000 && handle.size.is_multiple_of(64));

    let found = client.find("k", 0);
    assert_eq!(found.status_code, code(StatusCode::NotFound));
    assert_eq!(found.replica_list[0].status(), ReplicaStatus::Processing);
    assert!(found.replica_list[0].handles[0].label.is_none());

    let seal = client.write(&planned, &value);
    // By the key alone, as clients of the Mooncake Store preview do; but a value that nobody can verify is not published.
    let ended = client.put_end("k", None, &[]);
    assert_eq!(ended.status_code, code(StatusCode::BadSeals));
    assert!(ended.detail.unwrap().message().contains("`seals`"));
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
    let ended = client.put_end("k", None, &[seal]);
    assert_eq!(ended.status_code, OK, "{ended:?}");
    assert_eq!(ended.replica_list[0].status(), ReplicaStatus::Complete);

    let found = client.find("k", 0);
    assert_eq!((found.status_code, found.value_length()), (OK, 5000), "{found:?}");
    let handle = found.replica_list[0].handles[0].clone();
    assert_eq!((handle.status(), handle.seal()), (BufStatus::Complete, seal));
    assert_eq!(client.read(&handle), Ok(value));

    let removed = client.remove("k", false);
    assert_eq!(removed.status_code, OK, "{removed:?}");
    assert_eq!(removed.replica_list[0].status(), ReplicaStatus::Removed);
    assert_eq!(removed.replica_list[0].handles[0].status(), BufStatus::Unregistered);
    assert!(client.read(&handle).is_err(), "an old handle is dead");
    let found = client.find("k", 0);
    assert_eq!((found.status_code, found.replica_list.len()), (code(StatusCode::NotFound), 0));
    assert_eq!(client.remove("k", false).status_code, code(StatusCode::NotFound));
}

#[test]
fn a_put_that_is_given_up_frees_its_key() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    let planned = client.put_start("k", 10);
    let again = client.put_start("k", 10);
    assert_eq!(again.status_code, code(StatusCode::InProgress));
    assert_eq!(again.detail.unwrap().advice(), pb::Advice::Retry);

    let wrong = client.put_end("k", Some(planned.put_token() ^ 1), &[1]);
    assert_eq!(wrong.status_code, code(StatusCode::NoSuchPut));
    let two = client.put_end("k", None, &[1, 2]);
    assert_eq!(two.status_code, code(StatusCode::BadSeals));

    let ask =
        pb::PutEndRequest { key: "k".into(), revoke: Some(true), ..pb::PutEndRequest::default() };
    let revoked = client.call(|c| c.put_end(ask)).unwrap();
    assert_eq!(revoked.status_code, OK, "{revoked:?}");
    assert_eq!(revoked.replica_list[0].status(), ReplicaStatus::Failed);
    assert_eq!(client.put_end("k", None, &[1]).status_code, code(StatusCode::NoSuchPut));
    assert_eq!(client.put_start("k", 10).status_code, OK);
}

#[test]
fn leases_hold_a_removal_up_and_force_does_not_wait() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    client.store("k", b"leased");
    let found = client.find("k", 5000);
    assert!(found.lease_ms() > 0, "{found:?}");
    let kept = client.remove("k", false);
    assert_eq!(kept.status_code, code(StatusCode::Leased));
    assert!(kept.replica_list.is_empty());
    assert!(kept.detail.unwrap().after_ms() > 0);
    let removed = client.remove("k", true);
    assert_eq!(removed.status_code, OK, "{removed:?}");
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
}

#[test]
fn segments_come_and_go_by_name() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    client.store("k", b"v");
    let size = support::SEGMENT_BYTES;
    for (name, bytes, buffer, expected) in [
        ("a/0", size, 0, StatusCode::Exists),
        ("a", size, 0, StatusCode::Exists),
        ("a/0", 4096, 0, StatusCode::BadSegment),
        ("b/0", 4096, 0, StatusCode::UnknownNode),
        ("a/x", 4096, 0, StatusCode::InvalidArgument),
        ("a/1", 0, 0, StatusCode::InvalidArgument),
        ("a/1", 4097, 0, StatusCode::InvalidArgument),
        ("a/1", size, 64, StatusCode::InvalidArgument),
    ] {
        let refused = client.mount(name, bytes, buffer);
        assert_eq!(refused.status_code, code(expected), "{name} {refused:?}");
        assert!(refused.detail.is_some());
    }
    assert_eq!(cluster.node.segments().all().len(), 1, "nothing was mounted");
    assert_eq!(client.unmount("b/0").status_code, code(StatusCode::UnknownNode));
    assert_eq!(client.unmount("a/7").status_code, code(StatusCode::UnknownSegment));

    let mounted = client.mount("a/7", 2 * size, 0);
    assert_eq!(mounted.status_code, OK, "{mounted:?}");
    let sizes: Vec<u64> =
        cluster.node.segments().all().iter().map(|segment| segment.spec().bytes).collect();
    assert!(sizes.len() == 2 && sizes.contains(&(2 * size)), "the node has it: {sizes:?}");
    let again = client.mount("a/7", 2 * size, 0);
    assert_eq!(again.status_code, code(StatusCode::Exists));
    assert_eq!(again.detail.unwrap().advice(), pb::Advice::TreatAsDone);
    let other = client.mount("a/7", size, 0).detail.unwrap();
    assert!(other.message().contains("overlap"), "{other:?}");

    assert_eq!(client.unmount("a/0").status_code, OK);
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
    assert_eq!(
        client.unmount("a/0").status_code,
        code(StatusCode::UnknownSegment),
        "it stays away"
    );
    client.store("l", b"in the other one");
    // A node without any is still there, and gets memory again.
    assert_eq!(client.unmount("a/7").status_code, OK);
    assert!(cluster.node.segments().all().is_empty());
    support::eventually("the node is known again, and mounts", || {
        let mounted = client.mount("a/0", size, 0).status_code;
        assert!(mounted == OK || mounted == code(StatusCode::UnknownNode), "{mounted}");
        mounted == OK
    });
    client.store("m", b"as before");
    let handle = client.find("m", 0).replica_list[0].handles[0].clone();
    assert_eq!(client.read(&handle).unwrap(), b"as before");
}

/// Who calls is decided by its token: other objects, other rights, or no answer.
#[test]
fn security_a_token_decides_what_a_caller_sees_and_may() {
    let cluster = Cluster::guarded();
    let mut nobody = cluster.client();
    let refused = |client: &mut support::Client| {
        let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
        let ask = client.request(ask);
        client.call(|c| c.remove(ask)).unwrap_err()
    };
    let status = refused(&mut nobody);
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("mooncrate token derive"), "{status:?}");
    for (wrong, says) in [
        (format!("client.acme.{}", "0".repeat(64)), "not of this cluster"),
        ("nonsense".to_owned(), "not of this cluster"),
        (support::secret().to_hex(), "never sent"),
    ] {
        nobody.bearer = Some(wrong);
        let status = refused(&mut nobody);
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains(says), "{status:?}");
    }

    let mut acme = cluster.client_as(Role::Client, "acme");
    acme.store("k", b"of acme");
    let handle = acme.find("k", 0).replica_list[0].handles[0].clone();
    assert_eq!(acme.read(&handle).unwrap(), b"of acme", "the grant came with the place");
    let planned = acme.put_start("open", 1);

    let mut zeta = cluster.client_as(Role::Client, "zeta");
    assert_eq!(zeta.find("k", 0).status_code, code(StatusCode::NotFound));
    assert_eq!(zeta.remove("k", true).status_code, code(StatusCode::NotFound));
    assert_eq!(zeta.read(&handle), Err(DataError::Denied), "the grant is for another tenant");
    // Not even that somebody writes under this key, nor an end of it by its key alone.
    assert!(zeta.find("open", 0).replica_list.is_empty());
    assert_eq!(zeta.put_end("open", None, &[1]).status_code, code(StatusCode::NoSuchPut));
    let stolen = zeta.put_end("open", planned.put_token, &[1]);
    assert_eq!(stolen.status_code, code(StatusCode::NoSuchPut));

    // The table of roles of control links: clients mount nothing, nodes remove nothing.
    let ask = zeta.request(pb::UnmountSegmentRequest { segment_name: "a/0".into() });
    let status = zeta.call(|c| c.unmount_segment(ask)).unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let status = refused(&mut cluster.client_as(Role::Node, ""));
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    let mut admin = cluster.client_as(Role::Admin, "");
    assert_eq!(admin.mount("a/3", support::SEGMENT_BYTES, 0).status_code, OK);
    assert_eq!(acme.find("k", 0).status_code, OK, "and it is all still there");
}

/// Guesses wait, one after the other; the others of this door do not wait with them.
#[test]
fn security_wrong_tokens_are_answered_slowly_and_hold_nobody_up() {
    let cluster = Cluster::start_with(Gate::new(Some(support::secret()), None), |parts| {
        (parts, GrpcConfig { calls: 1, ..GrpcConfig::default() })
    });
    let mut acme = cluster.client_as(Role::Client, "acme");
    acme.store("k", b"v");
    let thief = cluster.client();
    let began = boottime();
    let guesses = (0..8).map(|n| {
        let mut grpc = thief.grpc.clone();
        let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
        let mut ask = Request::new(ask);
        let guess = format!("Bearer client.acme.{n:064x}").parse().unwrap();
        ask.metadata_mut().insert("authorization", guess);
        thief.runtime.spawn(async move { grpc.remove(ask).await })
    });
    let guesses: Vec<_> = guesses.collect();
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            thief.runtime.block_on(async {
                let mut codes = Vec::new();
                for guess in guesses {
                    codes.push(guess.await.unwrap().unwrap_err().code());
                }
                codes
            })
        });
        // The one place for calls is never taken by a guess.
        while !answers.is_finished() {
            assert_eq!(acme.find("k", 0).status_code, OK);
        }
        assert_eq!(answers.join().unwrap(), vec![Code::Unauthenticated; 8]);
    });
    // A lower bound: a busy machine only makes it longer.
    let took = boottime().since(began);
    assert!(took >= Duration::from_millis(8 * 100), "{took:?}");
}

/// A master that was stopped and wakes does not say what it did when its time was over (G7).
#[test]
fn a_master_whose_time_is_over_answers_nothing() {
    let leads = Arc::new(AtomicBool::new(true));
    let lead = Arc::clone(&leads);
    let cluster = Cluster::start_with(Gate::default(), move |parts| {
        let view = Arc::clone(&parts.view);
        let view = move |tenant| {
            let lead = Arc::clone(&lead);
            Ok(View { leads: Arc::new(move || lead.load(Ordering::SeqCst)), ..view(tenant)? })
        };
        (Parts { view: Arc::new(view), ..parts }, GrpcConfig::default())
    });
    let mut client = cluster.client();
    client.store("k", b"v");
    leads.store(false, Ordering::SeqCst);
    let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
    assert_eq!(client.call(|c| c.remove(ask)).unwrap_err().code(), Code::Unavailable);
}

/// The caller's time reaches the work behind the door: a node that does not obey.
#[test]
fn a_node_that_does_not_obey_costs_a_caller_its_deadline() {
    let cluster = Cluster::start();
    cluster.add_ghost("ghost");
    let mut client = cluster.client();
    let size = support::SEGMENT_BYTES;
    let ask = pb::MountSegmentRequest { buffer: 0, size, segment_name: "ghost/0".into() };
    let mut ask = Request::new(ask);
    ask.set_timeout(Duration::from_secs(1));
    let status = client.call(|c| c.mount_segment(ask)).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("its log"), "{status:?}");
}

/// One busy call does not hold the next one up: it is told.
#[test]
fn calls_end_by_their_deadline_and_are_bounded() {
    let (go_on, wait) = mpsc::channel::<()>();
    let (wait, slow) = (mooncrate_lock::Mutex::new(wait), AtomicBool::new(true));
    let cluster = Cluster::start_with(Gate::default(), move |parts| {
        let view = Arc::clone(&parts.view);
        let view = move |tenant| {
            if slow.swap(false, Ordering::SeqCst) {
                let _ = wait.lock().recv_timeout(Duration::from_mins(1));
            }
            view(tenant)
        };
        let config = GrpcConfig { calls: 1, ..GrpcConfig::default() };
        (Parts { view: Arc::new(view), ..parts }, config)
    });
    let mut client = cluster.client();
    let mut request = Request::new(pb::UnmountSegmentRequest { segment_name: "a/9".into() });
    request.set_timeout(Duration::from_secs(2));
    let mut other = client.grpc.clone();
    let (slow, refused) = client.runtime.block_on(async {
        let mut first = client.grpc.clone();
        let ask = || pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
        // The slow call is let in first, or else one of these is and waits in its place.
        let others = async {
            loop {
                let mut ask = Request::new(ask());
                ask.set_timeout(Duration::from_secs(2));
                match other.remove(ask).await {
                    Err(status) if status.code() == Code::ResourceExhausted => return status,
                    _ => {}
                }
            }
        };
        tokio::join!(first.unmount_segment(request), others)
    });
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let status = slow.unwrap_err();
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::ResourceExhausted),
        "{status:?}"
    );
    // The work itself ends: its place is free.
    go_on.send(()).unwrap();
    support::eventually("the next call is let in", || {
        let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
        client.call(|c| c.remove(ask)).is_ok()
    });
}
