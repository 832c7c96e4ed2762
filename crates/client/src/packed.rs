//! A key and where its value is, in one piece of memory: what the cache of locators keeps.
//!
//! ```text
//!   flags 1 │ key length 2 │ key │ copies 2 │ object 16 │ length 8 │ seal 8
//!   striped only:  stripe bytes 8 │ seals 1, each 8
//!   each copy:     segment 8 │ incarnation 8 │ slot 4 │ generation 4 │ extent 16 │ striped: stripe 1
//!                  with a grant: 1 │ tenant 4 │ expires 4 │ right 1 │ mac 16      without: 0
//! ```
//!
//! The same as a `Located` beside its key would take four allocations and about twice the bytes. The last
//! byte of a copy is there only where a copy of the value has a grant. This never leaves the process: what is
//! unpacked was packed here. A lease is not kept, because it does not hold for who remembers.

use mooncrate_core::plan::{Grant, Located, Locator, ReadMark, Right};
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, ObjectId, Seal, SegmentId, Slot, Striping,
    TenantId,
};

const STRIPED: u8 = 1;
const GRANTED: u8 = 2;
/// Where the key begins.
const KEY: usize = 3;

/// The first copy of a value, and what it must add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) object: ObjectId,
    pub(crate) len: u64,
    pub(crate) seal: Seal,
    pub(crate) locator: Locator,
}

/// A key and where its value is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    pub(crate) fn new(key: &[u8], at: &Located) -> Self {
        let Located { object, striping, seal, more_seals, replicas, lease_ms: _ } = at;
        let striped = striping.stripe_bytes != striping.len || !more_seals.is_empty();
        let granted = replicas.iter().any(|copy| copy.grant.is_some());
        let flags = if striped { STRIPED } else { 0 } | if granted { GRANTED } else { 0 };
        let copy = 40 + usize::from(striped) + if granted { 26 } else { 0 };
        let around = KEY + 34 + if striped { 9 + 8 * more_seals.len() } else { 0 };
        let mut to = Vec::with_capacity(around + key.len() + copy * replicas.len());
        to.push(flags);
        // Keys, copies and stripes are bounded far below these sizes; `Packed::fits` has looked.
        to.extend((key.len() as u16).to_le_bytes());
        to.extend(key);
        to.extend((replicas.len() as u16).to_le_bytes());
        to.extend(object.epoch.0.to_le_bytes());
        to.extend(object.sequence.to_le_bytes());
        to.extend(striping.len.to_le_bytes());
        to.extend(seal.0.to_le_bytes());
        if striped {
            to.extend(striping.stripe_bytes.to_le_bytes());
            to.push(more_seals.len() as u8);
            to.extend(more_seals.iter().flat_map(|seal| seal.0.to_le_bytes()));
        }
        for copy in replicas {
            to.extend(copy.segment.0.to_le_bytes());
            to.extend(copy.incarnation.0.to_le_bytes());
            to.extend(copy.slot.0.to_le_bytes());
            to.extend(copy.generation.0.to_le_bytes());
            to.extend(copy.extent.offset().to_le_bytes());
            to.extend(copy.extent.len().to_le_bytes());
            if striped {
                to.push(copy.stripe);
            }
            if granted {
                pack_grant(copy.grant.as_ref(), &mut to);
            }
        }
        Self(to.into_boxed_slice())
    }

    /// Whether it can be packed: all counts fit their fields, and the stripe of a whole value is the first.
    pub(crate) fn fits(key: &[u8], at: &Located) -> bool {
        let striped = at.striping.stripe_bytes != at.striping.len || !at.more_seals.is_empty();
        u16::try_from(key.len()).is_ok()
            && u16::try_from(at.replicas.len()).is_ok()
            && u8::try_from(at.more_seals.len()).is_ok()
            && (striped || at.replicas.iter().all(|copy| copy.stripe == 0))
    }

    pub(crate) fn key(&self) -> &[u8] {
        let (len, _) = self.0[1..].split_first_chunk().expect("packed");
        &self.0[KEY..][..usize::from(u16::from_le_bytes(*len))]
    }

    /// Bytes of the heap that it takes, those that the allocator adds included: 16 at a time, 8 of its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.0.len() + 8).next_multiple_of(16).max(32)
    }

    fn reader(&self) -> Reader<'_> {
        Reader(&self.0[KEY + self.key().len()..])
    }

    /// As [`Located::read_mark`].
    pub(crate) fn read_mark(&self, reads: u32, tag: u64) -> Option<ReadMark> {
        let mut from = self.reader();
        let copies = from.u16();
        let _object = from.bytes::<16>();
        let _len_and_seal = from.bytes::<16>();
        if self.0[0] & STRIPED != 0 {
            let _stripe_bytes = from.u64();
            for _ in 0..from.u8() {
                from.u64();
            }
        }
        if copies == 0 {
            return None;
        }
        let segment = SegmentId(from.u64());
        let _incarnation = from.u64();
        let (slot, generation) = (Slot(from.u32()), Generation(from.u32()));
        Some(ReadMark { segment, slot, generation, reads, copies, tag })
    }

    /// The first copy of a value in one stripe: its place, its length and its seal. Allocates nothing.
    pub(crate) fn first(&self) -> Option<First> {
        let mut from = self.reader();
        let (striped, granted) = (self.0[0] & STRIPED != 0, self.0[0] & GRANTED != 0);
        let copies = from.u16();
        let object = ObjectId { epoch: LeaderEpoch(from.u64()), sequence: from.u64() };
        let (len, seal) = (from.u64(), Seal(from.u64()));
        if striped || copies == 0 {
            return None;
        }
        Some(First { object, len, seal, locator: unpack_copy(&mut from, (false, granted)) })
    }

    pub(crate) fn unpack(&self) -> Located {
        let mut from = self.reader();
        let (striped, granted) = (self.0[0] & STRIPED != 0, self.0[0] & GRANTED != 0);
        let copies = from.u16();
        let object = ObjectId { epoch: LeaderEpoch(from.u64()), sequence: from.u64() };
        let (len, seal) = (from.u64(), Seal(from.u64()));
        let (mut striping, mut more_seals) = (Striping::whole(len), Vec::new());
        if striped {
            striping.stripe_bytes = from.u64();
            let count = from.u8();
            more_seals.extend((0..count).map(|_| Seal(from.u64())));
        }
        let mut replicas = Vec::with_capacity(copies.into());
        for _ in 0..copies {
            replicas.push(unpack_copy(&mut from, (striped, granted)));
        }
        Located { object, striping, seal, more_seals, lease_ms: 0, replicas }
    }
}

fn pack_grant(grant: Option<&Grant>, to: &mut Vec<u8>) {
    let Some(Grant { tenant, expires_s, right, mac }) = grant else { return to.push(0) };
    to.push(1);
    to.extend(tenant.0.to_le_bytes());
    to.extend(expires_s.to_le_bytes());
    to.push(*right as u8);
    to.extend(mac);
}

fn unpack_copy(from: &mut Reader<'_>, (striped, granted): (bool, bool)) -> Locator {
    Locator {
        segment: SegmentId(from.u64()),
        incarnation: Incarnation(from.u64()),
        slot: Slot(from.u32()),
        generation: Generation(from.u32()),
        extent: Extent::new(from.u64(), from.u64()).expect("packed from an extent"),
        stripe: if striped { from.u8() } else { 0 },
        grant: if granted { unpack_grant(from) } else { None },
    }
}

fn unpack_grant(from: &mut Reader<'_>) -> Option<Grant> {
    if from.u8() == 0 {
        return None;
    }
    let (tenant, expires_s) = (TenantId(from.u32()), from.u32());
    let right = if from.u8() == Right::Read as u8 { Right::Read } else { Right::Write };
    Some(Grant { tenant, expires_s, right, mac: from.bytes() })
}

/// What is left to unpack.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("packed");
        self.0 = rest;
        *first
    }

    fn u8(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(n: u64, stripe: u8, grant: Option<Grant>) -> Locator {
        Locator {
            segment: SegmentId(u64::MAX - n),
            incarnation: Incarnation(n << 40),
            slot: Slot(n as u32 + 3),
            generation: Generation(u32::MAX - n as u32),
            extent: Extent::new(n << 12, 4096 + n).unwrap(),
            stripe,
            grant,
        }
    }

    /// Everything comes out as it went in, but for the lease: values of one and of many stripes, with and
    /// without copies and grants, under keys of every length.
    #[test]
    fn what_is_packed_comes_out_again() {
        let grant = |n: u8| Grant {
            tenant: TenantId(u32::from(n) << 20),
            expires_s: u32::MAX - u32::from(n),
            right: if n.is_multiple_of(2) { Right::Read } else { Right::Write },
            mac: [n; 16],
        };
        let grants = [None, Some(grant(1)), Some(grant(2))];
        for (round, key_len) in [1_u32, 2, 31, 8192].into_iter().enumerate() {
            let key: Vec<u8> = (0..key_len).map(|n| n as u8).collect();
            for (stripes, copies) in [(1, 0), (1, 1), (1, 3), (2, 2), (64, 128)] {
                for first in 0..grants.len() {
                    let each = (copies / stripes).max(1);
                    let replicas: Vec<Locator> = (0..copies)
                        .map(|n| {
                            let stripe = (n / each) as u8;
                            copy(n as u64, stripe, grants[(first + n) % grants.len()])
                        })
                        .collect();
                    let len = 1000 * stripes as u64;
                    let striping = Striping { len, stripe_bytes: len / stripes as u64 };
                    let (object, seal) = (ObjectId::default(), Seal(round as u64 + 7));
                    let more_seals: Vec<Seal> = (1..stripes).map(|n| Seal(n as u64)).collect();
                    let located =
                        Located { object, striping, seal, more_seals, lease_ms: 9, replicas };
                    assert!(Packed::fits(&key, &located));
                    let packed = Packed::new(&key, &located);
                    assert_eq!(packed.key(), key);
                    assert_eq!(packed.unpack(), Located { lease_ms: 0, ..located.clone() });
                    assert_eq!(packed.read_mark(5, 6), located.read_mark(5, 6));
                }
            }
        }
    }

    #[test]
    fn a_value_with_one_copy_takes_77_bytes_beside_its_key() {
        let replicas = vec![copy(1, 0, None)];
        let (object, striping) = (ObjectId::default(), Striping::whole(5));
        let (seal, more_seals) = (Seal(1), Vec::new());
        let located = Located { object, striping, seal, more_seals, lease_ms: 0, replicas };
        let packed = Packed::new(&[7; 32], &located);
        assert_eq!((packed.0.len(), packed.heap_bytes()), (32 + 77, 128));
    }
}
