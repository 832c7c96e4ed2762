//! Canaries: bugs on purpose, switched on one at a time. The simulator must catch each, or it proves
//! nothing.

use mooncrate_core::canary::Canary;

/// How a canary is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// By this simulator.
    Here,
    /// By the world of shipped code alone: this simulator has not what is broken, or meets it too rarely.
    Shipped,
    /// By this simulator's rig for disks.
    OnDisks,
    /// By the model checker, in the named tests of `crates/mem/tests/loom`: one event here is one step
    /// of a thread there, and this simulator is sequentially consistent.
    ByLoom(&'static str),
    /// There is no such code that could be broken.
    NothingToBreak(&'static str),
}

/// Who catches what.
pub const fn caught(canary: Canary) -> Caught {
    match canary {
        Canary::SeparateReaderCount => {
            Caught::ByLoom("a_separate_reader_count_lets_a_reader_into_freed_memory")
        }
        Canary::MissingFence => Caught::ByLoom(
            "without_the_readers_fence_a_torn_copy_passes, \
             without_the_writers_fence_a_torn_copy_passes",
        ),
        Canary::NoFdatasync
        | Canary::RecoveryWithoutCrc
        | Canary::DeletedBeforeAnswer
        | Canary::ShortReadAccepted
        | Canary::LoadWithoutVerify
        | Canary::FailedSyncRetried => Caught::OnDisks,
        Canary::PatternWaitsForNobody
        | Canary::LateOnlyOnce
        | Canary::LateDroppedAtOnce
        | Canary::AddedStandsForAll
        | Canary::FailedOwnerFrees => Caught::Shipped,
        Canary::CacheBeforeVerify => {
            Caught::NothingToBreak("the client caches locators, never bytes")
        }
        _ => Caught::Here,
    }
}

/// Those that the world of shipped code catches, too, each with the seed that did the last time: it runs first. Where it
/// no longer does, because the draws have changed, all seeds are searched from 0 on, and the one that is printed belongs
/// here.
pub const CAUGHT_SHIPPED: [(Canary, u64); 31] = [
    (Canary::NoGenerationCheck, 0),
    (Canary::FreeBeforeBump, 0x2d73_a776_aea9_34a5),
    (Canary::WallClockLease, 0x2302_3005_a36a_7af7),
    (Canary::EarlyPublish, 0x2302_3005_a36a_7af7),
    (Canary::NoTokenCheck, 0x9752_10a0_7c26_0e90),
    (Canary::NoTakeoverGrace, 0x63d0_32f5_3cbf_1de9),
    (Canary::LeakOnFailedReserve, 0x260c_bc41_9da1_ca37),
    (Canary::EarlyRemoveReply, 0x2d73_a776_aea9_34a5),
    (Canary::NoServeUntil, 0x30a2_40f4_f891_a554),
    (Canary::CopyToldEarly, 0xf7ff_963f_960a_c346),
    (Canary::DrainFreesEarly, 0xf7c2_4645_f8a1_bc5e),
    (Canary::UpsertKeepsOld, 0x0),
    (Canary::StandbyKeepsEpoch, 0xf230_ed14_42db_7159),
    (Canary::DiskBelievedTooLong, 0x26_25fc),
    (Canary::LedgerNotStruck, 0x27_ac42),
    (Canary::BadCopyKept, 0x76f9_75e6_3e85_62fe),
    (Canary::DeadButReadable, 0x701e_76e1_3110_7e62),
    (Canary::NewnessAssumed, 0x1162_591f_67ca_c864),
    (Canary::StampIgnored, 0x2d73_a776_aea9_34a5),
    (Canary::LateMemoryServes, 0x30_d433),
    (Canary::VramUnasked, 0x260c_bc41_9da1_ca37),
    (Canary::LapsesAtOnce, 0x1e76_12fe_336a_c8c8),
    (Canary::StruckServes, 0x456d_2773_fcef_68b5),
    (Canary::ExtendsUnproved, 0x6aab_2535_5965_c76b),
    (Canary::EarlierUpsertForgotten, 0x69d3_6692_3058_bfcc),
    (Canary::MoveOutlivesSegment, 0x59ae_f74e_d20f_73e7),
    (Canary::PatternWaitsForNobody, 0xb83f_b291_673c_39e6),
    (Canary::LateOnlyOnce, 0x1162_591f_67ca_c864),
    (Canary::LateDroppedAtOnce, 0x0000_0000_0000_8ff7),
    (Canary::AddedStandsForAll, 0x6b5),
    (Canary::FailedOwnerFrees, 0x7f50_668c_e270_5db8),
];

/// A seed that catches a canary which few seeds catch. It runs first; where it no longer fails, because the draws have
/// changed, all seeds are searched from 0 on, and the one that is printed belongs here.
pub const fn seed_that_caught(canary: Canary) -> Option<u64> {
    match canary {
        Canary::DiskBelievedTooLong => Some(0x658f_3465_7c74_c6ba),
        Canary::HiddenCountsAsGone => Some(0x11e6_81f2_ed0a_9ef0),
        Canary::StampIgnored => Some(0x7c12_65c2_335f_5045),
        _ => None,
    }
}

#[cfg(canary)]
pub use hunt::{Found, hunt, hunt_on_disks, hunt_shipped};

#[cfg(canary)]
mod hunt {
    use crate::disk;
    use crate::runner::Job;
    use crate::shipped;
    use crate::twin::{self, Outcome};
    use crate::world::Watch;
    use mooncrate_core::canary::{self, Canary};
    use mooncrate_mem::clock::boottime;
    use std::time::Duration;

    /// Operations per seed: many short runs find a bug sooner than few long ones.
    const OPS_PER_SEED: u64 = 8_000;
    /// The same on disks, where runs are short.
    const OPS_PER_SEED_ON_DISKS: u64 = 600;
    /// The same of the roles as they ship.
    const OPS_PER_SEED_SHIPPED: u64 = 3_000;
    /// How long one bug may hide.
    const LIMIT: Duration = Duration::from_mins(5);

    /// What a hunt came to.
    #[derive(Clone, Debug)]
    pub struct Found {
        /// The seed, and the rule that was broken.
        pub caught: Option<(u64, crate::Failure)>,
        /// Operations until then.
        pub ops: u64,
        /// Real time.
        pub took: Duration,
    }

    /// Switches a bug on and runs seeds until one fails; with `None`, a control round that must not. The seed that
    /// caught a rare bug the last time runs first.
    pub fn hunt(bug: Option<Canary>, threads: usize, control_ops: u64) -> Found {
        canary::choose(bug);
        let (started, seed) = (boottime(), bug.and_then(super::seed_that_caught));
        let first = seed.map(|seed| twin::run_seed(seed, Some(OPS_PER_SEED), Watch::default()));
        let found = match first {
            Some(Outcome { seed, ops, failure: Some(failure), .. }) => {
                let took = boottime().since(started);
                Found { caught: Some((seed, failure)), ops, took }
            }
            _ => {
                let sum = twin::run(&job(bug, threads, control_ops, OPS_PER_SEED), |_| {});
                Found { caught: sum.failed, ops: sum.ops, took: sum.took }
            }
        };
        canary::choose(None);
        found
    }

    /// The same with the rig for disks.
    pub fn hunt_on_disks(bug: Option<Canary>, threads: usize, control_ops: u64) -> Found {
        canary::choose(bug);
        let job = job(bug, threads, control_ops, OPS_PER_SEED_ON_DISKS);
        let sum = disk::runner::run(&job, &disk::Real, |_| {});
        canary::choose(None);
        Found { caught: sum.failed, ops: sum.ops, took: sum.took }
    }

    /// The same with the roles as they ship.
    pub fn hunt_shipped(bug: Option<Canary>, threads: usize, control_ops: u64) -> Found {
        let job = job(bug, threads, control_ops, OPS_PER_SEED_SHIPPED);
        let known = super::CAUGHT_SHIPPED.iter().find(|(canary, _)| Some(*canary) == bug);
        let first = known.map(|(_, seed)| Job { seed: *seed, ops: 1, span: None, ..job });
        let hunt = |job: &Job| shipped::runner::run(job, bug, |_| {});
        let first = first.map(|job| hunt(&job)).filter(|sum| sum.failed.is_some());
        let sum = first.unwrap_or_else(|| hunt(&job));
        Found { caught: sum.failed, ops: sum.ops, took: sum.took }
    }

    fn job(bug: Option<Canary>, threads: usize, ops: u64, per_seed: u64) -> Job {
        let span = bug.map(|_| LIMIT);
        Job { seed: 0, ops, ops_per_seed: Some(per_seed), threads, span }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_canary_has_its_catcher() {
        let here: Vec<u32> = Canary::ALL
            .into_iter()
            .filter(|canary| caught(*canary) == Caught::Here)
            .map(Canary::number)
            .collect();
        assert_eq!(
            here,
            [
                1, 2, 3, 4, 7, 11, 13, 16, 17, 18, 19, 20, 21, 22, 25, 26, 27, 28, 29, 30, 31, 32,
                33, 34, 35, 36, 37, 38
            ]
        );
        let shipped = Canary::ALL.into_iter().filter(|canary| caught(*canary) == Caught::Shipped);
        let pinned = |canary: &Canary| CAUGHT_SHIPPED.iter().any(|(known, _)| known == canary);
        assert!(
            shipped.clone().all(|canary| pinned(&canary)),
            "only the world of shipped code can catch these"
        );
        assert_eq!(shipped.map(Canary::number).collect::<Vec<_>>(), [39, 40, 41, 42, 43]);
        let on_disks = |canary: &Canary| caught(*canary) == Caught::OnDisks;
        let numbers: Vec<u32> =
            Canary::ALL.into_iter().filter(on_disks).map(Canary::number).collect();
        assert_eq!(numbers, [5, 6, 9, 10, 23, 24]);
    }
}
