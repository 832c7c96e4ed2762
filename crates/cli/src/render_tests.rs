//! The screens as people see them.

use super::*;
use mooncrate_core::catalog::Counters;
use mooncrate_core::plan::{Evidence, Medium, SegmentOffer};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, LeaderEpoch, NodeId, Now, ObjectId, Seal, SegmentId,
    Slot, Striping, ZoneId,
};
use mooncrate_wire::message::{ClusterStat, SegmentRow};

fn started() -> Started {
    Started {
        master: Some("127.0.0.1:7411".into()),
        joined: None,
        data: Some("127.0.0.1:7413".into()),
        unix: Some("/run/user/7/mooncrate-7413.sock".into()),
        admin: Some("http://127.0.0.1:7412".into()),
        metrics: None,
        grpc: Some("127.0.0.1:50051".into()),
        metadata: None,
        door: None,
        node_name: Some("box-7413".into()),
        segment_bytes: Some(256 << 20),
        find_master: String::new(),
        program: "mooncrate".into(),
    }
}

#[test]
fn a_server_says_where_it_is_and_how_to_talk_to_it() {
    insta::assert_snapshot!("serve", started_screen(&started()));
    let master = Started {
        data: None,
        unix: None,
        node_name: None,
        segment_bytes: None,
        master: Some("127.0.0.1:9".into()),
        find_master: " --master 127.0.0.1:9".into(),
        ..started()
    };
    insta::assert_snapshot!("master", started_screen(&master));
    let joined = Some("127.0.0.1:7411".into());
    let metrics = Some("http://10.0.0.1:9100/metrics".into());
    let node = Started { master: None, joined, admin: None, metrics, grpc: None, ..started() };
    insta::assert_snapshot!("node", started_screen(&node));
}

/// A value with one copy in the segment below, and one in a segment that has left.
fn located() -> Located {
    let at = |segment| Locator {
        segment,
        incarnation: Incarnation(1),
        slot: Slot(3),
        generation: Generation(1),
        extent: Extent::new(64, 4096).unwrap(),
        stripe: 0,
        grant: None,
    };
    Located {
        object: ObjectId { epoch: LeaderEpoch(7), sequence: 42 },
        striping: Striping::whole(4000),
        seal: Seal(1),
        more_seals: Vec::new(),
        lease_ms: 0,
        replicas: vec![at(SegmentId(0xabc)), at(SegmentId(0xfff))],
    }
}

#[test]
fn a_cluster_is_a_sentence_and_a_table() {
    let row = SegmentRow {
        offer: SegmentOffer {
            segment: SegmentId(0xabc),
            incarnation: Incarnation(1),
            node: NodeId(0xdef),
            medium: Medium::Dram,
            bytes: 256 << 20,
            slots: 100,
            host: HostId(1),
            zone: ZoneId(1),
            tenant: None,
            evidence: Evidence::default(),
        },
        open: true,
        used_bytes: 3 << 20,
        quarantined_bytes: 4096,
        largest_free_run: 200 << 20,
        objects: 12,
    };
    let stat = ClusterStat {
        epoch: LeaderEpoch(7),
        leader: "m1 at 127.0.0.1:7411".into(),
        rebuilding: false,
        nodes: 1,
        objects: 12,
        open_puts: 0,
        capacity_bytes: 256 << 20,
        used_bytes: 3 << 20,
        quarantined_bytes: 4096,
        largest_free_run: 200 << 20,
        counters: Counters { evicted: 5, evicted_bytes: 5000, ..Counters::default() },
        index_bytes: 123_456,
        segments: vec![row],
        tenants: Vec::new(),
        disk_root: String::new(),
    };
    let names = [(NodeId(0xdef), "alpha".to_owned())].into();
    let odd = [(NodeId(0xdef), "al\\\n".to_owned())].into();
    let mut look = Look { at: Now(0), stat, names };
    insta::assert_snapshot!("stat", stat_screen(&look));
    insta::assert_snapshot!("value", value_screen(b"k", &Looked::At(located()), &look));
    let told = value_json(&Looked::At(located()), &look);
    assert_eq!(told["replicas"][0]["node_name"], json!("alpha"));
    // A name is escaped where a person reads it, and nowhere else.
    let other = Look { names: odd, ..look.clone() };
    let told = value_json(&Looked::At(located()), &other);
    assert_eq!(told["replicas"][0]["node_name"], json!("al\\\n"));
    assert!(value_screen(b"k", &Looked::At(located()), &other).contains("al\\\\\\n"));
    assert!(stat_screen(&other).contains("al\\\\\\n"));
    assert_eq!(value_json(&Looked::Writing, &look), json!({ "state": "being written" }));
    look.stat.segments.clear();
    look.stat.rebuilding = true;
    look.stat.leader.clear();
    insta::assert_snapshot!("stat_without_segments", stat_screen(&look));
}

#[test]
fn keys_are_exact_for_programs() {
    let got = key_json(b"a\xff");
    assert_eq!(got, json!({ "key": null, "key_hex": "61ff" }), "it is no text");
    // Exactly the key, however it would be shown, and nothing that moves a cursor.
    let odd = "a\\n\u{1b}[2J\u{202e}\u{9b}\u{e0001} é";
    let line = one_line(&key_json(odd.as_bytes()));
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["key"], json!(odd));
    assert!(line.contains(r#""a\\n\u001b[2J\u202e\u009b\udb40\udc01 é""#), "{line}");
    assert_eq!(with(got, json!({ "x": 1 }))["x"], json!(1));
    assert_eq!(counted(1, "key"), "1 key");
    assert_eq!(counted(0, "key"), "0 keys");
}
