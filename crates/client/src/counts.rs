//! What a client counts, for the program that embeds it.
//!
//! What must stay true: counting costs a hot get nothing that its threads would notice. The numbers
//! lie in stripes, each on cache lines of its own; an object always adds to the same one, and a
//! reader sums them up.

use crate::get::Source;
use mooncrate_core::tally::Count;
use mooncrate_transfer::Path;

const STRIPES: usize = 16;

/// What a client counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stripes: [Stripe; STRIPES],
}

/// Numbers of some of the objects. Aligned to a pair of cache lines, because processors fetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Stripe {
    pub(crate) cached: Count,
    pub(crate) stale: Count,
    pub(crate) corrupt: Count,
    pub(crate) misses: Count,
    pub(crate) fallbacks: Count,
    pub(crate) local: Count,
    pub(crate) shared: Count,
    pub(crate) stream: Count,
    pub(crate) disk: Count,
    pub(crate) bytes_read: Count,
    pub(crate) puts: Count,
    pub(crate) bytes_written: Count,
}

impl Stripe {
    /// A value was read: this many bytes from there.
    pub(crate) fn hit(&self, from: Source, bytes: u64) {
        if from.disk {
            self.disk.one();
        }
        match from.path {
            Path::Local => self.local.one(),
            Path::Shared => self.shared.one(),
            Path::Stream => self.stream.one(),
        }
        if from.copy > 0 {
            self.fallbacks.one();
        }
        self.bytes_read.add(bytes);
    }
}

/// What a client counted, as a snapshot. Every get that found its value is in exactly one of
/// `local`, `shared` and `stream`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that began without asking the master where the value is.
    pub cached: u64,
    /// Locators that turned out stale.
    pub stale: u64,
    /// Values refused because their checksum was wrong.
    pub corrupt: u64,
    /// Gets of keys that have no value.
    pub misses: u64,
    /// Values that came from a later copy, because an earlier one failed.
    pub fallbacks: u64,
    /// Values read in this process.
    pub local: u64,
    /// Values read through the memory of another process of this host.
    pub shared: u64,
    /// Values read over a socket.
    pub stream: u64,
    /// Of all values read, those that their owner had to load from a disk; the others were in memory.
    pub disk: u64,
    /// Bytes of all values read.
    pub bytes_read: u64,
    /// Values stored.
    pub puts: u64,
    /// Their bytes, each value counted once however many copies it has.
    pub bytes_written: u64,
}

impl Counts {
    /// Gets that found their value.
    pub const fn hits(&self) -> u64 {
        self.local + self.shared + self.stream
    }

    /// Gets that found their value in memory: with those from disks and the misses they are all gets that
    /// were answered.
    pub const fn memory(&self) -> u64 {
        self.hits() - self.disk
    }
}

impl Counters {
    /// Where what belongs to `number` is counted: a key's hash, or the sequence of an object.
    pub(crate) fn at(&self, number: u64) -> &Stripe {
        &self.stripes[number as usize % STRIPES]
    }

    /// The sums.
    pub(crate) fn now(&self) -> Counts {
        let sum = |of: fn(&Stripe) -> &Count| self.stripes.iter().map(|s| of(s).value()).sum();
        Counts {
            cached: sum(|s| &s.cached),
            stale: sum(|s| &s.stale),
            corrupt: sum(|s| &s.corrupt),
            misses: sum(|s| &s.misses),
            fallbacks: sum(|s| &s.fallbacks),
            local: sum(|s| &s.local),
            shared: sum(|s| &s.shared),
            stream: sum(|s| &s.stream),
            disk: sum(|s| &s.disk),
            bytes_read: sum(|s| &s.bytes_read),
            puts: sum(|s| &s.puts),
            bytes_written: sum(|s| &s.bytes_written),
        }
    }
}
