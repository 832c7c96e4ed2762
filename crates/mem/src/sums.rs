//! Values and their seals: copying a value while its slices are summed, with the slice table behind
//! it where `core::seal` says. No path here allocates per call, except [`SliceSums`] for values of
//! more than one slice (8 bytes per MiB).
//!
//! What must stay true: a seal returned from a copy is the seal of the bytes that arrived.

use crate::crc::{Crc, crc};
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::seal::{slices, table};

/// Bytes summed at a time when they are not wanted themselves.
const SCRATCH_BYTES: usize = 4096;

/// Sums of a value that arrives in pieces, in order.
#[derive(Clone, Debug, Default)]
pub struct SliceSums {
    seen: u64,
    /// Of the slice that is not full yet.
    open: Crc,
    /// Of the full ones.
    full: Vec<u64>,
}

impl SliceSums {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes seen so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The next bytes of the value.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.room(bytes.len()));
            self.add(self.open.update(now), now.len());
            bytes = later;
        }
    }

    /// The next bytes of the value, copied on the way.
    ///
    /// # Safety
    /// As [`Crc::copy`].
    pub unsafe fn copy(&mut self, target: *mut u8, source: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let now = self.room(len - done);
            let (to, from) = (target.wrapping_add(done), source.wrapping_add(done));
            // SAFETY: `done + now <= len`, which is the caller's promise.
            let open = unsafe { self.open.copy(to, from, now) };
            self.add(open, now);
            done += now;
        }
    }

    /// The seal of what was seen.
    pub fn seal(&self) -> Seal {
        Seal::over(self.seen, self.sums())
    }

    /// The seal of what was seen, and the sums of its slices.
    pub fn finish(self) -> (Seal, Vec<u64>) {
        (self.seal(), self.sums().collect())
    }

    /// The sums of all slices, the open one included.
    pub fn sums(&self) -> impl Iterator<Item = u64> + '_ {
        let open = !self.seen.is_multiple_of(SLICE_BYTES);
        self.full.iter().copied().chain(open.then(|| self.open.value()))
    }

    /// How much of `len` still belongs to the open slice.
    fn room(&self, len: usize) -> usize {
        len.min((SLICE_BYTES - self.seen % SLICE_BYTES) as usize)
    }

    fn add(&mut self, open: Crc, len: usize) {
        self.seen += len as u64;
        self.open = open;
        if self.seen.is_multiple_of(SLICE_BYTES) {
            self.full.push(open.value());
            self.open = Crc::new();
        }
    }
}

/// The seal of a value that lies in one piece.
pub fn seal_of(value: &[u8]) -> Seal {
    Seal::over(value.len() as u64, value.chunks(SLICE_BYTES as usize).map(crc))
}

/// Copies a value into its extent, its slice table behind it, and seals it.
///
/// # Safety
/// `target` is writable for `core::seal::extent_bytes(value.len())` bytes and apart from `value`.
pub unsafe fn copy_value(target: *mut u8, value: &[u8]) -> Seal {
    let len = value.len() as u64;
    // SAFETY: the extent holds value and table, says the caller.
    let mut table = unsafe { TableWriter::new(target, len) };
    Seal::over(
        len,
        value.chunks(SLICE_BYTES as usize).zip(0_usize..).map(|(slice, i)| {
            let to = target.wrapping_add(i * SLICE_BYTES as usize);
            // SAFETY: the chunk lies in `value`, its place in the extent, and they are apart.
            let sum = unsafe { crate::crc::copy_crc(to, slice.as_ptr(), slice.len()) };
            table.push(sum);
            sum
        }),
    )
}

/// Writes the table of a value whose bytes are in place already.
///
/// # Safety
/// `target` is the start of an extent of at least `extent_bytes(len)` writable bytes.
pub(crate) unsafe fn write_table(target: *mut u8, len: u64, sums: impl Iterator<Item = u64>) {
    // SAFETY: the caller's promise.
    let mut table = unsafe { TableWriter::new(target, len) };
    for sum in sums {
        table.push(sum);
    }
}

/// Copies a value out of its extent and returns the seal of what arrived.
///
/// # Safety
/// `source` is readable for `target.len()` bytes and apart from `target`. Another process may write
/// there meanwhile.
pub unsafe fn read_value(target: &mut [u8], source: *const u8) -> Seal {
    let len = target.len() as u64;
    Seal::over(
        len,
        target.chunks_mut(SLICE_BYTES as usize).zip(0_usize..).map(|(slice, i)| {
            let from = source.wrapping_add(i * SLICE_BYTES as usize);
            // SAFETY: the chunk is a part of what the caller promises.
            unsafe { crate::crc::copy_crc(slice.as_mut_ptr(), from, slice.len()) }
        }),
    )
}

/// Copies the part of a value that starts at `start` out of its extent, and returns whether it can
/// be trusted: every slice it touches is summed in full, and the sums are those under the seal.
///
/// # Safety
/// `source` is readable for `extent_bytes(len)` bytes and apart from `target`; another process may
/// write there meanwhile. `start + target.len() <= len`.
pub unsafe fn read_part(
    target: &mut [u8],
    source: *const u8,
    len: u64,
    start: u64,
    seal: Seal,
) -> bool {
    let end = start + target.len() as u64;
    let count = slices(len);
    let mut trusted = true;
    let sealed = Seal::over(
        len,
        (0..count).map(|i| {
            let first = i * SLICE_BYTES;
            let last = len.min(first + SLICE_BYTES);
            if count == 1 || (start < last && first < end) {
                let wanted = Span { first, start, end, last };
                // SAFETY: the slice lies inside of the value, and the caller promises that.
                let sum = unsafe { read_slice(target, source, &wanted) };
                // SAFETY: the table lies inside of the extent.
                trusted &= count == 1 || sum == unsafe { table_entry(source, len, i) };
                sum
            } else {
                // SAFETY: as above.
                unsafe { table_entry(source, len, i) }
            }
        }),
    );
    trusted && sealed == seal
}

/// A slice `first..last` of which `start..end` is wanted; all count from the start of the value.
struct Span {
    first: u64,
    start: u64,
    end: u64,
    last: u64,
}

/// Sums a whole slice and copies what is wanted of it.
unsafe fn read_slice(target: &mut [u8], source: *const u8, span: &Span) -> u64 {
    let mut scratch = [0_u8; SCRATCH_BYTES];
    let mut sum = Crc::new();
    let mut at = span.first;
    while at < span.last {
        let from = source.wrapping_add(at as usize);
        let (to, len) = if at >= span.start && at < span.end {
            let len = (span.end.min(span.last) - at) as usize;
            (target[(at - span.start) as usize..][..len].as_mut_ptr(), len)
        } else {
            let until = if at < span.start { span.start.min(span.last) } else { span.last };
            (scratch.as_mut_ptr(), ((until - at) as usize).min(SCRATCH_BYTES))
        };
        // SAFETY: the source is a part of the slice; the target was cut to `len` bytes above.
        sum = unsafe { sum.copy(to, from, len) };
        at += len as u64;
    }
    sum.value()
}

/// Entry `i` of the table behind a value of `len` bytes, which has one.
unsafe fn table_entry(source: *const u8, len: u64, i: u64) -> u64 {
    let mut entry = [0_u8; 8];
    let at = (table(len).0 + 8 * i) as usize;
    // SAFETY: the table lies inside of the extent that the caller promises. The copy is opaque, so
    // another process may write there.
    let _ = unsafe { Crc::new().copy(entry.as_mut_ptr(), source.wrapping_add(at), entry.len()) };
    u64::from_le_bytes(entry)
}

/// Writes sums behind a value, one after the other; nothing if the value has a single slice.
struct TableWriter {
    next: *mut u8,
    left: u64,
}

impl TableWriter {
    /// Also clears the up to 7 bytes between value and table.
    unsafe fn new(target: *mut u8, len: u64) -> Self {
        let (start, bytes) = table(len);
        if bytes > 0 {
            let gap = target.wrapping_add(len as usize);
            // SAFETY: the caller promises an extent that reaches to the end of the table.
            unsafe { gap.write_bytes(0, (start - len) as usize) };
        }
        Self { next: target.wrapping_add(start as usize), left: bytes }
    }

    fn push(&mut self, sum: u64) {
        if self.left == 0 {
            return;
        }
        // SAFETY: `left` says that 8 more bytes of the table are free, inside of the extent.
        unsafe { self.next.cast::<[u8; 8]>().write_unaligned(sum.to_le_bytes()) };
        self.next = self.next.wrapping_add(8);
        self.left -= 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::rng::Rng;
    use mooncrate_core::seal::extent_bytes;

    const MIB: usize = SLICE_BYTES as usize;

    fn noise(len: usize) -> Vec<u8> {
        let mut rng = Rng::new(len as u64);
        (0..len).map(|_| rng.next() as u8).collect()
    }

    fn lengths() -> [usize; 10] {
        [0, 1, 7, 64, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 12_345]
    }

    #[test]
    fn all_ways_to_seal_agree() {
        for len in lengths() {
            let value = noise(len);
            let seal = seal_of(&value);
            let mut sums = SliceSums::new();
            for piece in value.chunks(300_007) {
                sums.update(piece);
            }
            let (streamed, list) = sums.finish();
            assert_eq!((streamed, list.len() as u64), (seal, slices(len as u64)));

            let mut extent = vec![0xee; extent_bytes(len as u64) as usize];
            // SAFETY: the vector has the bytes of the extent.
            assert_eq!(unsafe { copy_value(extent.as_mut_ptr(), &value) }, seal);
            let (start, bytes) = table(len as u64);
            let stored = &extent[start as usize..][..bytes as usize];
            let stored: Vec<u64> =
                stored.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
            assert_eq!(stored, if len > MIB { list } else { vec![] });

            let mut copied = vec![0; len];
            // SAFETY: the extent holds `len` bytes.
            assert_eq!(unsafe { read_value(&mut copied, extent.as_ptr()) }, seal);
            assert_eq!(copied, value);
        }
    }

    #[test]
    fn parts_are_verified_alone() {
        for len in lengths() {
            let value = noise(len);
            let mut extent = vec![0; extent_bytes(len as u64) as usize];
            // SAFETY: the vector has the bytes of the extent.
            let seal = unsafe { copy_value(extent.as_mut_ptr(), &value) };
            for (start, end) in [(0, len), (len / 3, len / 2), (len.saturating_sub(9), len)] {
                let mut part = vec![0; end - start];
                let read = |extent: &[u8], part: &mut [u8]| {
                    // SAFETY: the slice has the bytes of the extent.
                    unsafe { read_part(part, extent.as_ptr(), len as u64, start as u64, seal) }
                };
                assert!(read(&extent, &mut part), "{start}..{end} of {len}");
                assert_eq!(part, value[start..end]);
                if start < end {
                    let mut broken = extent.clone();
                    broken[start] ^= 1;
                    assert!(!read(&broken, &mut part), "a flip at {start} of {len} passed");
                    if len > MIB {
                        let mut broken = extent.clone();
                        broken[table(len as u64).0 as usize] ^= 1;
                        assert!(!read(&broken, &mut part), "a flip in the table passed");
                    }
                }
            }
        }
    }
}
