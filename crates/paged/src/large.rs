//! Large tables of book-keeping on huge pages, where the system gives some.
//!
//! Records and index of two million blocks take 96 MiB, and a lookup goes to random places of both. With pages of
//! 4 KiB nearly every access also misses the processor's table of pages (TLB). A page of 2 MiB needs no
//! permission where `/sys/kernel/mm/transparent_hugepage/enabled` says `madvise` or `always`; elsewhere
//! nothing changes.

use rustix::mm::{Advice, madvise};

const HUGE: usize = 2 << 20;

/// `count` elements that `make` gives.
pub(crate) fn table<T>(count: usize, make: impl FnMut() -> T) -> Box<[T]> {
    let mut table: Vec<T> = Vec::with_capacity(count);
    // Before the first write: pages that are there already stay small.
    let room = table.spare_capacity_mut();
    let skipped = room.as_ptr().align_offset(HUGE).saturating_mul(size_of::<T>());
    let bytes = size_of_val(room).saturating_sub(skipped) / HUGE * HUGE;
    if bytes > 0 {
        let first = room.as_mut_ptr().cast::<u8>().wrapping_add(skipped);
        // A system without huge pages refuses; the table works with small ones.
        // SAFETY: these bytes lie inside of the vector's own room, and the advice changes how the system backs
        // them, never what they hold.
        let _ = unsafe { madvise(first.cast(), bytes, Advice::LinuxHugepage) };
    }
    table.extend(std::iter::repeat_with(make).take(count));
    table.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_elements_whatever_its_size() {
        for count in [0, 1, 100_000, 1_000_000] {
            let mut next = 0u64;
            let table = table(count, || {
                next += 1;
                [next; 4]
            });
            assert_eq!(table.len(), count);
            assert!(table.iter().zip(1..).all(|(element, n)| *element == [n; 4]));
        }
    }
}
