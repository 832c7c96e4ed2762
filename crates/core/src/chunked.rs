//! A growing array in fixed chunks: an element stays where it was pushed for ever.
//!
//! A `Vec` of ten million objects copies all of them when it doubles, while the master holds its
//! lock. Here growth allocates one chunk, whatever the length; only the table of chunks (one entry
//! per 4096 elements) is ever copied. What must stay true: every chunk but the last is full, and
//! no chunk grows beyond the capacity that it was made with.

use std::fmt;
use std::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 12;
/// Elements of one chunk.
const CHUNK: usize = 1 << CHUNK_BITS;
const IN_CHUNK: u32 = (CHUNK - 1) as u32;

/// An array that grows without moving what it holds, indexed by `u32`.
pub struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: u32,
}

impl<T> Chunked<T> {
    /// An empty array; it holds no memory until the first push.
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// Number of elements.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an element at the end and says its index.
    pub fn push(&mut self, value: T) -> u32 {
        let index = self.len;
        if index & IN_CHUNK == 0 {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.last_mut().expect("a chunk with room was pushed when none was left");
        last.push(value);
        self.len = index.checked_add(1).expect("callers hold fewer than 2^32 elements");
        index
    }

    /// The element at `index`.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(chunk(index))?.get(within(index))
    }

    /// The element at `index`, to change.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(chunk(index))?.get_mut(within(index))
    }

    /// All elements in the order of their indexes.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Bytes of memory that it holds, beyond those its elements point to.
    pub fn heap_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }
}

impl<T: Clone> Chunked<T> {
    /// Pushes copies of `value` until there are `len` elements; a longer array stays as it is.
    pub fn grow(&mut self, len: u32, value: &T) {
        while self.len < len {
            self.push(value.clone());
        }
    }
}

const fn chunk(index: u32) -> usize {
    (index >> CHUNK_BITS) as usize
}

const fn within(index: u32) -> usize {
    (index & IN_CHUNK) as usize
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.chunks[chunk(index)][within(index)]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[chunk(index)][within(index)]
    }
}

impl<T> fmt::Debug for Chunked<T> {
    /// The length only: the elements may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunked").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_never_move_and_keep_their_index() {
        let mut array = Chunked::new();
        assert!(array.is_empty() && array.get(0).is_none());
        assert_eq!(array.push(0u32), 0);
        let first = std::ptr::from_ref(&array[0]);
        for i in 1..20_000 {
            assert_eq!(array.push(i), i);
        }
        assert_eq!(first, std::ptr::from_ref(&array[0]), "growth moved an element");
        assert_eq!(array.len(), 20_000);
        assert!(array.iter().copied().eq(0..20_000));
        *array.get_mut(4096).unwrap() = 7;
        array[4095] = 8;
        assert_eq!((array[4095], array[4096], array[4097]), (8, 7, 4097));
        assert_eq!((array.get(20_000), array.get(u32::MAX)), (None, None));
    }

    #[test]
    fn memory_grows_by_chunks() {
        let mut array = Chunked::new();
        assert_eq!(array.heap_bytes(), 0);
        array.grow(1, &1u64);
        let one = array.heap_bytes();
        assert!(one >= 4096 * 8);
        array.grow(4096, &1);
        assert_eq!(array.heap_bytes(), one, "the chunk was paid for at its first element");
        array.grow(4097, &1);
        assert!(array.heap_bytes() >= one + 4096 * 8);
        array.grow(3, &1);
        assert_eq!(array.len(), 4097);
    }
}
