//! Fault row 21: wall time numbers the starts of a node, and wall clocks are set back. The start that
//! lives must join all the same, under a number that is later than that of the one before.

use mooncrate_core::{Incarnation, LeaderEpoch, TenantId};
use mooncrate_master::{Master, MasterConfig};
use mooncrate_node::{Node, NodeConfig};
use mooncrate_wire::MasterApi;
use mooncrate_wire::clock::boottime;
use std::sync::Arc;
use std::time::Duration;

const NOW: u64 = 1_800_000_000_000_000;
const HOUR: u64 = 3_600_000_000;

fn start(master: &Arc<Master>, incarnation: u64) -> Arc<Node> {
    let config = NodeConfig {
        name: "a".into(),
        segment_bytes: 1 << 20,
        shared: false,
        incarnation: Incarnation(incarnation),
        ..NodeConfig::default()
    };
    let node = Node::new(config, master.scope(TenantId::DEFAULT), Vec::new()).expect("a node");
    node.register(true).expect("it joins");
    node
}

#[test]
fn a_node_joins_after_its_clock_was_set_back() {
    let master = Master::new(MasterConfig::default(), LeaderEpoch(1)).unwrap();
    let mounted = || {
        let scope = master.scope(TenantId::DEFAULT);
        let stat = scope.stat(boottime().deadline_in(Duration::from_secs(5))).unwrap();
        // A mount that left stays listed until it is swept.
        let open: Vec<_> = stat.segments.iter().filter(|segment| segment.open).collect();
        assert_eq!(open.len(), 1, "{stat:?}");
        open[0].offer.incarnation.0
    };
    let first = start(&master, NOW);
    assert_eq!(mounted(), NOW);
    first.stop();
    let mut last = NOW;
    for behind in [1, HOUR, 24 * HOUR, 400 * 24 * HOUR] {
        let again = start(&master, NOW - behind);
        assert!(mounted() > last, "{behind}: {} after {last}", mounted());
        last = mounted();
        again.stop();
    }
}
