//! A short run of the proof that `./dev soak` makes by command: the same code, without its times.

#[path = "../examples/full_pool/judge.rs"]
mod judge;
#[path = "../examples/full_pool/proof.rs"]
mod proof;
#[path = "../examples/full_pool/report.rs"]
mod report;
#[path = "../examples/full_pool/worker.rs"]
mod worker;

use std::time::Duration;

/// Proves M13, fault row 23.
#[test]
fn a_full_pool_reclaims_or_says_busy_and_leaks_nothing() {
    let report = proof::Proof {
        load_time: Duration::from_secs(3),
        pinned_time: Duration::from_millis(300),
        segment_bytes: 64 << 20,
        ..proof::Proof::default()
    }
    .run()
    .unwrap();
    println!("{report}");
    assert_eq!(report.breaches, Vec::<String>::new());
    // A run in which nothing happened proves nothing.
    assert!(report.evicted_bytes > 64 << 20 && report.gets_verified > 100, "{report}");
    assert!(report.views_verified > 100 && report.pinned_busy > 100, "{report}");
}
