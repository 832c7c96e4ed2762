//! Memory that direct I/O takes: it starts at a multiple of [`ALIGN`] and extends to one.
//!
//! A [`Room`] is used like a vector of bytes. [`Rooms`] lends rooms of one size and takes them back, so
//! that steady work allocates nothing; it keeps a bounded number of them, and what is lent beyond that is
//! freed when it comes back.
//!
//! What must stay true: a room's address does not change while it is lent to the kernel, which is why
//! nothing here grows beyond the capacity that it was made with.

use crate::ALIGN;
use mooncrate_lock::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One block of memory. Its alignment is what a room is made of.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Block([u8; ALIGN]);

const _: () = assert!(align_of::<Block>() == ALIGN && size_of::<Block>() == ALIGN);

/// `bytes`, rounded up to whole blocks.
pub(crate) const fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Aligned bytes, up to a capacity that is fixed when it is made.
pub struct Room {
    blocks: Vec<Block>,
    len: usize,
}

impl Room {
    /// An empty one that takes `bytes`, rounded up to whole blocks.
    pub fn new(bytes: usize) -> Self {
        Self { blocks: vec![Block([0; ALIGN]); bytes.div_ceil(ALIGN)], len: 0 }
    }

    /// Bytes that fit.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * ALIGN
    }

    /// Bytes that still fit.
    pub fn left(&self) -> usize {
        self.capacity() - self.len
    }

    /// Forgets the bytes; the memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Sets the length. What was not written since the last [`Room::clear`] is rubbish, not zeros.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a room of {}", self.capacity());
        self.len = len;
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let at = self.len;
        self.set_len(at + bytes.len());
        self[at..].copy_from_slice(bytes);
    }

    /// Appends zeros up to the next whole block.
    pub fn pad(&mut self) {
        let at = self.len;
        self.set_len(round_up(at));
        self[at..].fill(0);
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.blocks.as_slice().as_bytes()[..self.len]
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.blocks.as_mut_slice().as_mut_bytes()[..self.len]
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({} of {})", self.len, self.capacity())
    }
}

/// Rooms of one size, lent and taken back.
#[derive(Clone, Debug)]
pub struct Rooms {
    shelf: Arc<Shelf>,
}

#[derive(Debug)]
struct Shelf {
    free: Mutex<Vec<Room>>,
    bytes: usize,
    keep: usize,
}

impl Rooms {
    /// Rooms of `bytes` each; up to `keep` that nobody uses are kept.
    pub fn new(bytes: usize, keep: usize) -> Self {
        let free = Mutex::new(Vec::with_capacity(keep));
        Self { shelf: Arc::new(Shelf { free, bytes, keep }) }
    }

    /// Bytes of each.
    pub fn room_bytes(&self) -> usize {
        round_up(self.shelf.bytes)
    }

    /// An empty room.
    pub fn take(&self) -> Lent {
        let room = self.shelf.free.lock().pop();
        let room = room.unwrap_or_else(|| Room::new(self.shelf.bytes));
        Lent { room, shelf: Arc::clone(&self.shelf) }
    }
}

/// A room that goes back when it is dropped.
pub struct Lent {
    room: Room,
    shelf: Arc<Shelf>,
}

impl Deref for Lent {
    type Target = Room;

    fn deref(&self) -> &Room {
        &self.room
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut room = std::mem::replace(&mut self.room, Room { blocks: Vec::new(), len: 0 });
        room.clear();
        let mut free = self.shelf.free.lock();
        if free.len() < self.shelf.keep {
            free.push(room);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.room.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_aligned_and_padded_with_zeros() {
        let mut room = Room::new(5000);
        assert_eq!((room.capacity(), room.len()), (8192, 0));
        room.set_len(8192);
        room.fill(0xff);
        room.clear();
        room.push(&[1; 4097]);
        assert_eq!(room.as_ptr().addr() % ALIGN, 0);
        room.pad();
        assert_eq!((room.len(), room.left()), (8192, 0));
        assert!(room[..4097].iter().all(|&byte| byte == 1));
        assert!(room[4097..].iter().all(|&byte| byte == 0), "padding shows what was there before");
    }

    #[test]
    #[should_panic(expected = "4097 bytes in a room of 4096")]
    fn a_room_does_not_grow() {
        Room::new(1).push(&[0; 4097]);
    }

    #[test]
    fn rooms_come_back_up_to_a_bound() {
        let rooms = Rooms::new(100, 1);
        let (first, second) = (rooms.take(), rooms.take());
        let kept = first.blocks.as_ptr();
        drop(first);
        drop(second);
        assert_eq!(rooms.shelf.free.lock().len(), 1);
        let again = rooms.take();
        assert_eq!(again.blocks.as_ptr(), kept);
        assert!(again.is_empty());
    }
}
