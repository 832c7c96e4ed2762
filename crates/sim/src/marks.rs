//! Marks: rare situations that a run must have reached, or it tested less than it claims.

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A situation worth reaching.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Mark {
            $($(#[$doc])* $name,)*
        }

        impl Mark {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

marks! {
    /// A cached locator met a later life of its slot.
    GenMismatch = "gen_mismatch",
    /// A `put_end` or revoke came with the token of an older put.
    StalePutEnd = "stale_put_end",
    /// A reader's own lease was over when its last byte came.
    LeaseExpiredMidRead = "lease_expired_mid_read",
    /// A lease outlived the request to remove its object.
    RemoveLeased = "remove_leased",
    /// An eviction met a pin and left the object alone.
    EvictSkippedPinned = "evict_skipped_pinned",
    /// An eviction passed over an object with a lease or a pin.
    EvictSkipped = "evict_skipped",
    /// A retired range waited for a lease or a pin.
    GraceHeldFree = "grace_held_free",
    /// A node refused a leader that had been replaced.
    OldEpochRefused = "old_epoch_refused",
    /// The pin of a dead client was taken back.
    PinReaped = "pin_reaped",
    /// A writer stored into a range whose put had been given up.
    ZombieWriterQuarantined = "zombie_writer_quarantined",
    /// A reader found that the owner's leave to serve was over.
    FencedRead = "fenced_read",
    /// A `put_end` was repeated after it had succeeded.
    DuplicateEnd = "duplicate_end",
    /// A get was served from an index that had been rebuilt.
    RebuildServed = "rebuild_served",
    /// A put waited for an eviction and got its room.
    PutReclaimed = "put_reclaimed",
    /// A put was refused because everything was in use.
    Busy = "busy",
    /// A remove could not be confirmed by its deadline.
    DeferredRemove = "deferred_remove",
    /// The master ended a put that took too long.
    WatchdogExpired = "watchdog_expired",
    /// A copy without a pin was torn, and the word or the seal said so.
    TornReadRejected = "torn_read_rejected",
    /// A cached locator was read without asking the master.
    CachedRead = "cached_read",
    /// Such reads were told to a master that knows the same copies.
    ReadTold = "read_told",
    /// They were told when the object was gone, or had other copies.
    ReadOutdated = "read_outdated",
    /// The second copy served after the first did not.
    ReplicaFallback = "replica_fallback",
    /// A value came from another copy after the first one could not be read.
    OtherCopyServed = "other_copy_served",
    /// A put got fewer copies than it asked for, and was content.
    FewerCopies = "fewer_copies",
    /// A put was refused because there are too few nodes for its copies.
    TooFewNodes = "too_few_nodes",
    /// A node published a copy that it had fetched.
    CopyPublished = "copy_published",
    /// It was fetched out of the memory of another process.
    CopyFromMemory = "copy_from_memory",
    /// The next source was asked, because the first one did not serve.
    CopyOtherSource = "copy_other_source",
    /// A copy was given up while it was being fetched.
    CopyAborted = "copy_aborted",
    /// A node refused to copy for a leader that had been replaced.
    OldCopyRefused = "old_copy_refused",
    /// The leader counted a copy as there.
    CopySettled = "copy_settled",
    /// The leader gave a copy up.
    CopyGivenUp = "copy_given_up",
    /// An object had copies because many read it.
    HotCopies = "hot_copies",
    /// A copy that somebody asked for was begun.
    CopyAsked = "copy_asked",
    /// A copy that somebody asked for was there.
    CopyThere = "copy_there",
    /// A drain had moved something.
    DrainMoved = "drain_moved",
    /// A drain could not go on for a while.
    DrainStuck = "drain_stuck",
    /// A node left when it was empty.
    DrainedLeft = "drained_left",
    /// A drain was begun again under a new leader.
    DrainBegunAgain = "drain_begun_again",
    /// A drain was ended before the node was empty.
    Undrained = "undrained",
    /// An upsert replaced a value.
    Replaced = "replaced",
    /// An upsert waited for the owners of what it replaced.
    Replacing = "replacing",
    /// A value was removed, because its time after its first get was over.
    Expired = "expired",
    /// A put was refused because its tenant has enough.
    QuotaRefused = "quota_refused",
    /// A put waited because its tenant's quota was full of what had ended and was not free yet.
    QuotaWaited = "quota_waited",
    /// An open put was given back because its writer had no link any more.
    WriterGone = "writer_gone",
    /// A copy of an open put was planned anew.
    Replanned = "replanned",
    /// A put ended well although an owner had failed it.
    ReplanEnded = "replan_ended",
    /// A striped value was read whole.
    StripedRead = "striped_read",
    /// A node mounted what it had mounted already.
    MountedTwice = "mounted_twice",
    /// A locator of an earlier mount was refused.
    OldMountRefused = "old_mount_refused",
    /// An order for an earlier mount was passed over.
    OldMountOrdered = "old_mount_ordered",
    /// A flipped bit was noticed.
    ChecksumReject = "checksum_reject",
    /// An owner found a replica bad and retired it.
    BadRetired = "bad_retired",
    /// A leader dropped a replica that its owner had found bad.
    BadDropped = "bad_dropped",
    /// A guard confirmed the death of its node, and the leader let it go.
    DeathConfirmed = "death_confirmed",
    /// A guard confirmed the death of a node whose next process had mounted already.
    DeathConfirmedLate = "death_confirmed_late",
    /// A leader that had been replaced still planned a put.
    ZombiePlan = "zombie_plan",
    /// A leader noticed that its time was over and refused a call.
    NotLeader = "not_leader",
    /// A node came back after its serving lease had ended.
    NodeLapsed = "node_lapsed",
    /// A node extended its serving lease, because no process led.
    LeaseExtended = "lease_extended",
    /// A key was given up whose owner was silent for longer than its serving lease.
    LapsedStruck = "lapsed_struck",
    /// The master counted a node as gone.
    NodeGone = "node_gone",
    /// A node mounted again after the master had forgotten it.
    Remounted = "remounted",
    /// A node served what it had told while it told the rest.
    ServedWhileTelling = "served_while_telling",
    /// A call was refused while the index was being rebuilt.
    Rebuilding = "rebuilding",
    /// An owner's own work on links failed while several of their ranges were being stored to.
    OwnerFailed = "owner_failed",
    /// A writer hung up in the middle of its put.
    WriterHungUp = "writer_hung_up",
    /// A disk has taken a copy.
    Offloaded = "offloaded",
    /// A disk has refused a copy.
    OffloadRefused = "offload_refused",
    /// A put waited while a victim went to a disk.
    PutWaitedForDisk = "put_waited_for_disk",
    /// A get was served by a disk.
    DiskRead = "disk_read",
    /// An owner has evicted records from its disk.
    DiskEvicted = "disk_evicted",
    /// An owner has found a record damaged.
    DiskLost = "disk_lost",
    /// A disk that was left out of a start is back.
    DiskPutBack = "disk_put_back",
    /// A node has started with an older copy of its disk.
    DiskRestored = "disk_restored",
    /// A leader has begun without the state of the last one.
    Forgotten = "forgotten",
    /// A put asked for VRAM, and got it.
    VramPut = "vram_put",
    /// A put asked for VRAM while nobody lent any.
    NoVram = "no_vram",
    /// A get was served by VRAM.
    VramRead = "vram_read",
    /// VRAM let go of a value, which moved to memory of a host.
    Demoted = "demoted",
    /// A value came back into memory.
    Promoted = "promoted",
    /// A disk came back with what it held.
    DiskReturned = "disk_returned",
    /// Something that a disk that was away held was ended or replaced.
    DiskLedgerStruck = "disk_ledger_struck",
    /// A node that was without a leader for long came back and was told to drop what was struck.
    LateDropped = "late_dropped",
    /// A disk came back with something that must go.
    DiskDroppedUnknown = "disk_dropped_unknown",
    /// The keys of a disk that was away waited until it was off the durable list.
    DiskOffList = "disk_off_list",
    /// A read went on in the memory of a dead node.
    DeadNodeRead = "dead_node_read",
}

/// How often each mark was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks([u64; Mark::ALL.len()]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; Mark::ALL.len()])
    }
}

impl Marks {
    /// One more hit.
    pub fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// Several hits, counted elsewhere.
    pub fn hit_times(&mut self, mark: Mark, times: u64) {
        self.0[mark as usize] += times;
    }

    /// How often.
    pub fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds the hits of another run.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Marks that were never hit.
    pub fn missing(&self) -> impl Iterator<Item = Mark> + '_ {
        Mark::ALL.iter().copied().filter(|mark| self.count(*mark) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_without_a_hit_is_missing() {
        let mut marks = Marks::default();
        assert_eq!(marks.missing().count(), Mark::ALL.len());
        marks.hit(Mark::Busy);
        let mut sum = Marks::default();
        sum.add(&marks);
        sum.add(&marks);
        assert_eq!(sum.count(Mark::Busy), 2);
        assert!(sum.missing().all(|mark| mark != Mark::Busy));
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = Mark::ALL.iter().map(|mark| mark.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Mark::ALL.len());
    }
}
