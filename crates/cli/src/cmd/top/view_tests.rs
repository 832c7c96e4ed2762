//! The picture as people see it, and rates that cannot lie.

use super::*;
use mooncrate_core::plan::{Evidence, Medium, SegmentOffer};
use mooncrate_core::{HostId, Incarnation, LeaderEpoch, NodeId, Now, SegmentId, ZoneId};
use std::time::Duration;

fn row(node: u64, segment: u64, used: u64) -> SegmentRow {
    SegmentRow {
        offer: SegmentOffer {
            segment: SegmentId(segment),
            incarnation: Incarnation(1),
            node: NodeId(node),
            medium: Medium::Dram,
            bytes: 1 << 30,
            slots: 100,
            host: HostId(1),
            zone: ZoneId(1),
            tenant: None,
            evidence: Evidence::default(),
        },
        open: node != 3,
        used_bytes: used,
        quarantined_bytes: 4096,
        largest_free_run: (1 << 30) - used,
        objects: used >> 20,
    }
}

fn look(second: u64, counters: &Counters) -> Look {
    let segments = vec![row(3, 30, 0), row(2, 20, 1 << 29), row(1, 10, 1)];
    let stat = ClusterStat {
        epoch: LeaderEpoch(7),
        leader: String::new(),
        rebuilding: false,
        nodes: 3,
        objects: 513,
        open_puts: 1,
        capacity_bytes: 3 << 30,
        used_bytes: (1 << 29) + 1,
        quarantined_bytes: 3 * 4096,
        largest_free_run: 1 << 30,
        counters: *counters,
        index_bytes: 123_456,
        segments,
        tenants: Vec::new(),
        disk_root: String::new(),
    };
    let names = [(NodeId(1), "alpha".to_owned()), (NodeId(2), "beta".to_owned())].into();
    Look { at: Now(0).plus(Duration::from_secs(second)), stat, names }
}

fn busy_second() -> Counters {
    Counters {
        puts: 100,
        hits: 900,
        misses: 100,
        removed: 3,
        evicted: 50,
        evicted_bytes: 50 << 20,
        busy: 1,
        ..Counters::default()
    }
}

#[test]
fn a_cluster_at_work_is_one_picture() {
    let mut view = View::new("127.0.0.1:7411".into());
    view.see(look(10, &Counters::default()));
    view.see(look(12, &busy_second()));
    insta::assert_snapshot!("top", view.lines(110, 40).join("\n"));
    view.lost("connection refused".into());
    let lines = view.lines(110, 40);
    assert!(lines[0].contains("NO ANSWER"), "{}", lines[0]);
    assert_eq!(lines[1], "connection refused");
    assert!(lines[4].contains("- lookups"), "old rates are not shown as new: {}", lines[4]);
}

#[test]
fn a_small_terminal_is_not_overrun() {
    let mut view = View::new("127.0.0.1:7411".into());
    view.see(look(1, &Counters::default()));
    for (width, height) in [(40, 12), (1, 1), (80, 5), (200, 13)] {
        let lines = view.lines(width, height);
        assert!(lines.len() <= height, "{width}x{height}: {lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}x{height}");
    }
    let lines = view.lines(110, 10);
    assert_eq!(lines.last().unwrap(), "and 2 more segments");
}

#[test]
fn rates_are_per_second_and_end_with_the_leader() {
    let before = look(10, &Counters::default());
    let rates = rates(&before, &look(12, &busy_second())).unwrap();
    assert_eq!((rates.puts, rates.lookups, rates.hit_percent), (50.0, 500.0, Some(90.0)));
    let mut replaced = look(12, &busy_second());
    replaced.stat.epoch = LeaderEpoch(8);
    assert_eq!(super::rates(&before, &replaced), None, "another leader counts from 0");
    assert_eq!(super::rates(&look(12, &busy_second()), &look(13, &Counters::default())), None);
    let idle = super::rates(&before, &look(11, &Counters::default())).unwrap();
    assert_eq!(idle.hit_percent, None, "nothing was asked for");
}

#[test]
fn bars_are_full_only_when_full() {
    assert_eq!(bar(0, 100, 4), "[....]   0 %");
    assert_eq!(bar(1, 1 << 40, 4), "[#...]   0 %");
    assert_eq!(bar(99, 100, 4), "[###.]  99 %");
    assert_eq!(bar(100, 100, 4), "[####] 100 %");
    assert_eq!(bar(5, 0, 4), "[....]   0 %", "no capacity");
}
