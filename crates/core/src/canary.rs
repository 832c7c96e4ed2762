//! Bugs on purpose. A build with `--cfg canary` carries them all, switched off; the rig switches one
//! on and must catch it. In every other build [`on`] is the constant `false` and the compiler drops
//! the broken branch. One build for all canaries: rebuilding the workspace once per bug would cost
//! more than the checks themselves.

/// The bugs, by their number in the table of `docs/testing.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Canary {
    /// 1: a reader compares the state only, not the generation.
    NoGenerationCheck = 1,
    /// 2: the range goes back to the allocator before the owner bumped the generation.
    FreeBeforeBump = 2,
    /// 3: leases are reckoned on the wall clock.
    WallClockLease = 3,
    /// 4: READY is published before the last chunk is in place.
    EarlyPublish = 4,
    /// 5: a record is told as kept before its data are on the disk.
    NoFdatasync = 5,
    /// 6: recovery offers records without comparing their checksums.
    RecoveryWithoutCrc = 6,
    /// 7: `put_end` ignores its token.
    NoTokenCheck = 7,
    /// 8: the reader count lies apart from the state: look at the state, then increment.
    SeparateReaderCount = 8,
    /// 9: an evicted file is deleted before the master has answered.
    DeletedBeforeAnswer = 9,
    /// 10: a read that came back short counts as whole.
    ShortReadAccepted = 10,
    /// 11: a new leader frees without waiting for leases it cannot know.
    NoTakeoverGrace = 11,
    /// 12: the client's cache is filled before the bytes are verified.
    CacheBeforeVerify = 12,
    /// 13: a failed `put_start` keeps one of its ranges.
    LeakOnFailedReserve = 13,
    /// 15: one of the two fences around an unpinned copy is missing.
    MissingFence = 15,
    /// 16: remove answers before the owner has retired the slot.
    EarlyRemoveReply = 16,
    /// 17: a node obeys a leader that has been replaced.
    OldEpochAccepted = 17,
    /// 18: a reader does not ask whether the owner may still serve.
    NoServeUntil = 18,
    /// 19: a copy is told as done before it is published.
    CopyToldEarly = 19,
    /// 20: a drain lets a replica go before its copy is there.
    DrainFreesEarly = 20,
    /// 21: an upsert answers while the old value can still be read.
    UpsertKeepsOld = 21,
    /// 22: a standby leads on under the epoch it finds.
    StandbyKeepsEpoch = 22,
    /// 23: a load gives what lies on the disk, without comparing label and checksum.
    LoadWithoutVerify = 23,
    /// 24: a sync that failed is tried again, and believed.
    FailedSyncRetried = 24,
    /// 25: keys of a disk that is away are given up while the next leader would still believe it.
    DiskBelievedTooLong = 25,
    /// 26: a put or a remove does not strike what disks that are away hold.
    LedgerNotStruck = 26,
    /// 27: a remove is answered when the owner of a disk has hidden the record, before it is gone.
    HiddenCountsAsGone = 27,
    /// 28: an owner that is told of a bad replica says that it is good.
    BadCopyKept = 28,
    /// 29: the death of a node is confirmed while its memory can still be read.
    DeadButReadable = 29,
    /// 30: a master that knows nothing takes its cluster for new.
    NewnessAssumed = 30,
    /// 31: a disk is believed by its name, whatever its stamp.
    StampIgnored = 31,
    /// 32: memory that came late serves before it has dropped what it must.
    LateMemoryServes = 32,
    /// 33: a replica that nobody asked VRAM for lands there.
    VramUnasked = 33,
    /// 34: the key of a silent node is given up before its serving lease has ended.
    LapsesAtOnce = 34,
    /// 35: a node that stood still serves before it has dropped what was given up meanwhile.
    StruckServes = 35,
    /// 36: a node extends its serving lease without proof that no master leads.
    ExtendsUnproved = 36,
    /// 37: an upsert waits for the value before it alone, not for what that one had replaced.
    EarlierUpsertForgotten = 37,
    /// 38: a move continues after its source segment was dropped.
    MoveOutlivesSegment = 38,
    /// 39: a remove by pattern does not wait for what others remove.
    PatternWaitsForNobody = 39,
    /// 40: a node reports an ended serving lease at its first mount only.
    LateOnlyOnce = 40,
    /// 41: values that late memory drops are freed without waiting for leases of an earlier leader.
    LateDroppedAtOnce = 41,
    /// 42: a segment that is added is offered alone, and stands for the whole node.
    AddedStandsForAll = 42,
    /// 43: an owner that ends a connection by itself frees what its peer may still store to.
    FailedOwnerFrees = 43,
}

impl Canary {
    /// All of them, in order.
    pub const ALL: [Self; 42] = [
        Self::NoGenerationCheck,
        Self::FreeBeforeBump,
        Self::WallClockLease,
        Self::EarlyPublish,
        Self::NoFdatasync,
        Self::RecoveryWithoutCrc,
        Self::NoTokenCheck,
        Self::SeparateReaderCount,
        Self::DeletedBeforeAnswer,
        Self::ShortReadAccepted,
        Self::NoTakeoverGrace,
        Self::CacheBeforeVerify,
        Self::LeakOnFailedReserve,
        Self::MissingFence,
        Self::EarlyRemoveReply,
        Self::OldEpochAccepted,
        Self::NoServeUntil,
        Self::CopyToldEarly,
        Self::DrainFreesEarly,
        Self::UpsertKeepsOld,
        Self::StandbyKeepsEpoch,
        Self::LoadWithoutVerify,
        Self::FailedSyncRetried,
        Self::DiskBelievedTooLong,
        Self::LedgerNotStruck,
        Self::HiddenCountsAsGone,
        Self::BadCopyKept,
        Self::DeadButReadable,
        Self::NewnessAssumed,
        Self::StampIgnored,
        Self::LateMemoryServes,
        Self::VramUnasked,
        Self::LapsesAtOnce,
        Self::StruckServes,
        Self::ExtendsUnproved,
        Self::EarlierUpsertForgotten,
        Self::MoveOutlivesSegment,
        Self::PatternWaitsForNobody,
        Self::LateOnlyOnce,
        Self::LateDroppedAtOnce,
        Self::AddedStandsForAll,
        Self::FailedOwnerFrees,
    ];

    /// Its number in the table of `docs/testing.md`.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(canary)]
static CHOSEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Switches one bug on for this process.
#[cfg(canary)]
pub fn choose(canary: Option<Canary>) {
    CHOSEN.store(canary.map_or(0, Canary::number), std::sync::atomic::Ordering::Relaxed);
}

/// Whether this bug is switched on.
#[cfg(canary)]
pub fn on(canary: Canary) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == canary.number()
}

/// Whether this bug is switched on: never, in this build.
#[cfg(not(canary))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "the broken branch must vanish even in debug builds")]
pub const fn on(_canary: Canary) -> bool {
    false
}
