//! Parts of values: one lookup, then each part from the first copy that verifies.
//!
//! ```text
//!   value     [ stripe 0        | stripe 1        | stripe 2   ]
//!   ranges          ├────┤  ├──────────┤    ├─────────────┤
//!   reads           ├────┤  ├───┤──────┤    ├────┤────────┤      those of one stripe travel together
//! ```
//!
//! What must stay true: all parts of one call are of one object (G17). They are read under one
//! `Located`; when that turns out stale, all of them are read anew.

use crate::client::Client;
use crate::error::Error;
use crate::get::{Source, Wanted, patience};
use crate::stripes::{PARALLEL_BYTES_MIN, in_parallel};
use mooncrate_core::plan::Located;
use mooncrate_core::time::Deadline;
use mooncrate_lock::Mutex;
use mooncrate_transfer::{Read, TransferError};
use mooncrate_wire::DataError;

/// A part of a value that is wanted: the bytes from `start` on, as many as `into` has.
#[derive(Debug)]
pub struct RangeInto<'a> {
    /// First byte, counted from the start of the value.
    pub start: u64,
    /// Where they go. What it holds after an error is nobody's value.
    pub into: &'a mut [u8],
}

/// What became of the ranges of one key, at their own indexes: the bytes read, or
/// [`Error::OutOfRange`].
pub type Ranges = Vec<Result<usize, Error>>;

/// Parts of one stripe, counted from its start.
type Parts<'a> = Vec<(u64, &'a mut [u8])>;

impl Client {
    /// Copies the part of a value that starts at `start` into all of `into`; the bytes copied, or `None`
    /// if there is no value.
    pub fn get_range(
        &self,
        key: &[u8],
        start: u64,
        into: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        let found = self.get_ranges(key, &mut [RangeInto { start, into }])?;
        found.map(|mut one| one.pop().expect("one result per range")).transpose()
    }

    /// Copies parts of one value, all of the same object. A range that reaches past the end of the value
    /// spoils no other.
    pub fn get_ranges(
        &self,
        key: &[u8],
        ranges: &mut [RangeInto<'_>],
    ) -> Result<Option<Ranges>, Error> {
        let deadline = self.deadline_for(range_bytes(ranges));
        self.get_ranges_by(key, ranges, deadline, None)
    }

    /// The same for many keys; one result each. Places that are unknown are asked for in one call.
    pub fn get_ranges_batch(
        &self,
        items: &mut [(&[u8], &mut [RangeInto<'_>])],
    ) -> Vec<Result<Option<Ranges>, Error>> {
        let deadline = self.deadline_for(items.iter().map(|(_, ranges)| range_bytes(ranges)).sum());
        let keys: Vec<&[u8]> = items.iter().map(|(key, _)| *key).collect();
        let (mut places, mut decided) = self.places(&keys, deadline);
        let patience = patience(deadline);
        let each = items.iter_mut().enumerate();
        each.map(|(at, (key, ranges))| {
            if let Some(decided) = decided[at].take() {
                return decided.map(|()| None);
            }
            if let Some(located) = places[at].take()
                && let Ok(read) = self.read_ranges(key, &located, ranges, deadline)
            {
                return Ok(Some(read));
            }
            // Alone, with all its retries.
            self.get_ranges_by(key, ranges, deadline, Some(patience))
        })
        .collect()
    }

    fn get_ranges_by(
        &self,
        key: &[u8],
        ranges: &mut [RangeInto<'_>],
        deadline: Deadline,
        patience: Option<Deadline>,
    ) -> Result<Option<Ranges>, Error> {
        self.find_by(key, deadline, patience, |located| {
            self.read_ranges(key, located, ranges, deadline)
        })
    }

    /// Reads parts of the object that was located.
    pub(crate) fn read_ranges(
        &self,
        key: &[u8],
        located: &Located,
        ranges: &mut [RangeInto<'_>],
        deadline: Deadline,
    ) -> Result<Ranges, TransferError> {
        let len = located.len();
        let mut stripes: Vec<Parts<'_>> =
            (0..located.striping.stripes()).map(|_| Vec::new()).collect();
        let mut results = Vec::with_capacity(ranges.len());
        for RangeInto { start, into } in ranges {
            let (start, bytes) = (*start, into.len());
            match start.checked_add(bytes as u64) {
                Some(end) if end <= len => {
                    cut(located, start, into, &mut stripes);
                    results.push(Ok(bytes));
                }
                _ => results.push(Err(Error::OutOfRange { start, bytes: bytes as u64, len })),
            }
        }
        if stripes.iter().all(Vec::is_empty) {
            // No byte is wanted, but the answer needs a value, and the length of one that we remembered
            // holds for a life that may be over. An empty read tells.
            stripes[0].push((0, &mut []));
        }
        let bytes: usize = results.iter().flatten().sum();
        let from = self.read_stripes(key, located, stripes, bytes, deadline)?;
        let counters = self.counters.at(located.object.sequence);
        counters.hit(from, bytes as u64);
        Ok(results)
    }

    /// Reads the parts of all stripes, several stripes at a time if they are large.
    fn read_stripes(
        &self,
        key: &[u8],
        located: &Located,
        stripes: Vec<Parts<'_>>,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Source, TransferError> {
        let wanted: Vec<(u8, Mutex<Parts<'_>>)> = (0..)
            .zip(stripes)
            .filter(|(_, parts)| !parts.is_empty())
            .map(|(stripe, parts)| (stripe, Mutex::new(parts)))
            .collect();
        let most = if bytes as u64 >= PARALLEL_BYTES_MIN { self.config.parallel_max } else { 1 };
        let read = in_parallel(&wanted, most, |(stripe, parts)| {
            // Nobody else has this stripe: the lock only says so to the compiler.
            self.read_parts(key, located, *stripe, &mut parts.lock(), deadline)
        });
        let read = read.into_iter().collect::<Result<Vec<Source>, _>>()?;
        Ok(Source::of_stripes(read))
    }

    /// Reads parts of one stripe, all from one copy.
    fn read_parts(
        &self,
        key: &[u8],
        located: &Located,
        stripe: u8,
        parts: &mut Parts<'_>,
        deadline: Deadline,
    ) -> Result<Source, TransferError> {
        let len = located.striping.stripe_len(stripe);
        let seal = located.seal_of(stripe).ok_or(DataError::Corrupt)?;
        let wanted = Wanted { key, located, stripe, asks: false };
        let ((), from) = self.try_copies(&wanted, deadline, |transport, locator, deadline| {
            // Each attempt fills the same buffers anew.
            let mut reads: Vec<Read<'_>> = parts
                .iter_mut()
                .map(|(start, into)| Read::part(*locator, len, seal, *start, into))
                .collect();
            transport.read(&mut reads, deadline);
            reads.into_iter().try_for_each(|read| read.result)
        })?;
        Ok(from)
    }
}

/// Bytes that are wanted.
pub(crate) fn range_bytes(ranges: &[RangeInto<'_>]) -> u64 {
    ranges.iter().map(|range| range.into.len() as u64).sum()
}

/// Cuts a range where the stripes are. An empty one needs no read.
fn cut<'a>(located: &Located, mut start: u64, mut into: &'a mut [u8], stripes: &mut [Parts<'a>]) {
    while !into.is_empty() {
        let stripe_bytes = located.striping.stripe_bytes;
        let stripe = start / stripe_bytes;
        let within = start % stripe_bytes;
        let now = into.len().min((stripe_bytes - within) as usize);
        let (part, rest) = into.split_at_mut(now);
        stripes[stripe as usize].push((within, part));
        (start, into) = (start + now as u64, rest);
    }
}
