//! Every call of the door, from a gRPC client over a socket, into a real master with a real node;
//! bytes move over data frames as for any client.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

mod support;

use mooncrate_core::TenantId;
use mooncrate_core::time::Deadline;
use mooncrate_grpc::pb::buf_handle::BufStatus;
use mooncrate_grpc::pb::replica_info::ReplicaStatus;
use mooncrate_grpc::pb::{self, StatusCode};
use mooncrate_grpc::{
    Caller, GrpcConfig, MetadataMap, Mounted, Parts, SegmentAdmin, SegmentError, Status,
};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::{CallError, MasterApi, Role};
use std::sync::Arc;
use std::time::Duration;
use support::{Cluster, read, write};
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

    let seal = write(&planned, &value);
    // By the key alone, as the seed does; but a value that nobody can verify is not published.
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
    assert_eq!(read(&handle), Ok(value));

    let removed = client.remove("k", false);
    assert_eq!(removed.status_code, OK, "{removed:?}");
    assert_eq!(removed.replica_list[0].status(), ReplicaStatus::Removed);
    assert_eq!(removed.replica_list[0].handles[0].status(), BufStatus::Unregistered);
    assert!(read(&handle).is_err(), "an old handle is dead");
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
fn segments_are_confirmed_and_taken_out_by_name() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    client.store("k", b"v");
    for (name, bytes, buffer, expected) in [
        ("a/0", support::SEGMENT_BYTES, 0, OK),
        ("a", support::SEGMENT_BYTES, 0, OK),
        ("a/0", 4096, 0, code(StatusCode::BadSegment)),
        ("a/1", 4096, 0, code(StatusCode::UnknownSegment)),
        ("b/0", 4096, 0, code(StatusCode::UnknownNode)),
        ("a/x", 4096, 0, code(StatusCode::InvalidArgument)),
        ("a/0", support::SEGMENT_BYTES, 64, code(StatusCode::InvalidArgument)),
    ] {
        let mounted = client.mount(name, bytes, buffer);
        assert_eq!(mounted.status_code, expected, "{name} {mounted:?}");
        assert_eq!(mounted.detail.is_none(), expected == OK);
    }
    assert_eq!(client.unmount("b/0").status_code, code(StatusCode::UnknownNode));
    assert_eq!(client.unmount("a/7").status_code, code(StatusCode::UnknownSegment));
    assert_eq!(client.unmount("a/0").status_code, OK);
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
    // The node runs on: it comes back, empty.
    support::eventually("the node mounts anew", || {
        client.mount("a/0", support::SEGMENT_BYTES, 0).status_code == OK
    });
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
    support::eventually("a put succeeds again", || client.put_start("l", 1).status_code == OK);
}

/// Who calls is decided by its credential: other objects, other rights, or no answer.
#[test]
fn a_credential_decides_what_a_caller_sees() {
    let cluster = Cluster::start_with(|master| {
        let everybody: Arc<dyn MasterApi> = master.scope(TenantId::DEFAULT);
        let parts = Parts::open(everybody, Arc::new(Mounted));
        let master = Arc::clone(master);
        let authenticate = move |metadata: &MetadataMap| {
            let bearer = metadata.get("authorization").and_then(|value| value.to_str().ok());
            let name = bearer
                .and_then(|bearer| bearer.strip_prefix("Bearer "))
                .ok_or_else(|| Status::unauthenticated("a bearer token is needed"))?;
            let tenant = TenantId::named(name).map_err(|_| Status::permission_denied(name))?;
            Ok(Caller { api: master.scope(tenant), tenant, role: Role::Client })
        };
        (Parts { authenticate: Arc::new(authenticate), ..parts }, GrpcConfig::default())
    });
    let mut client = cluster.client();
    let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
    let status = client.call(|c| c.remove(ask)).unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);

    client.bearer = Some("acme");
    client.store("k", b"of acme");
    assert_eq!(client.find("k", 0).status_code, OK);
    let planned = client.put_start("open", 1);
    client.bearer = Some("zeta");
    assert_eq!(client.find("k", 0).status_code, code(StatusCode::NotFound));
    // Not even that somebody writes under this key, nor an end of it by its key alone.
    assert!(client.find("open", 0).replica_list.is_empty());
    assert_eq!(client.put_end("open", None, &[1]).status_code, code(StatusCode::NoSuchPut));
    let stolen = client.put_end("open", planned.put_token, &[1]);
    assert_eq!(stolen.status_code, code(StatusCode::NoSuchPut));
    let ask = client.request(pb::UnmountSegmentRequest { segment_name: "a/0".into() });
    let status = client.call(|c| c.unmount_segment(ask)).unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

/// Waits until its deadline and says so.
struct Slow;

impl SegmentAdmin for Slow {
    fn mount(&self, _: &dyn MasterApi, _: &str, _: u16, _: u64, deadline: Deadline) -> Waited {
        self.unmount_until(deadline)
    }

    fn unmount(&self, _: &dyn MasterApi, _: &str, _: u16, deadline: Deadline) -> Waited {
        self.unmount_until(deadline)
    }
}

type Waited = Result<Result<(), SegmentError>, CallError>;

impl Slow {
    #[expect(clippy::unused_self, reason = "reads as a method where it is used")]
    fn unmount_until(&self, deadline: Deadline) -> Waited {
        while !deadline.passed(boottime()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(CallError::Deadline { awaited: "a slow node" })
    }
}

/// The caller's time reaches the work behind the door, and one busy call does not hold the next one
/// up: it is told.
#[test]
fn calls_end_by_their_deadline_and_are_bounded() {
    let cluster = Cluster::start_with(|master| {
        let config = GrpcConfig { calls: 1, ..GrpcConfig::default() };
        (Parts::open(master.scope(TenantId::DEFAULT), Arc::new(Slow)), config)
    });
    let mut client = cluster.client();
    let mut request = Request::new(pb::UnmountSegmentRequest { segment_name: "a/0".into() });
    request.set_timeout(Duration::from_secs(2));
    let mut other = client.grpc.clone();
    let (slow, refused) = client.runtime.block_on(async {
        let mut slow = client.grpc.clone();
        tokio::join!(slow.unmount_segment(request), async {
            loop {
                let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
                // The slow call has perhaps not arrived yet.
                if let Err(status) = other.remove(ask).await {
                    return status;
                }
            }
        })
    });
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let status = slow.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    // The work itself ended too: its place is free.
    support::eventually("the next call is let in", || {
        let ask = pb::RemoveRequest { key: "k".into(), ..pb::RemoveRequest::default() };
        client.call(|c| c.remove(ask)).is_ok()
    });
}
