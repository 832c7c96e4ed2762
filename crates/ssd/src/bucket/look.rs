//! Looking into buckets at a start, by several lanes (`lanes.rs`).
//!
//! A closed bucket tells its records by its metadata, many buckets per read. A bucket without good metadata
//! is scanned, head by head, and its values are read as well: a crash may have torn what was not synced. A
//! scan ends at the first thing that is no head. It does not look for further ones behind it: bytes that
//! somebody put are there, too.
//!
//! What must stay true: nothing is changed here and nothing is told, so lanes may be ahead of what counts.

use super::meta::{Meta, Seen};
use super::{data_path, meta_path};
use crate::disk::{Disk, File, Open, ReadAt};
use crate::laying;
use crate::reading::Reader;
use crate::record::{self, FIXED_BYTES, Head, Kind, Site};
use crate::room::Room;
use crate::window::{WINDOW_BYTES, Window};
use mooncrate_lock::Mutex;
use std::io;
use std::sync::Arc;

/// A bucket as it is listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) id: u64,
    /// Bytes of its files.
    pub(super) data: u64,
    pub(super) meta: u64,
}

impl Listed {
    /// Bytes of metadata to read. More than any bucket has cannot be good, and must not be believed.
    pub(super) fn meta_bytes(&self) -> Option<usize> {
        usize::try_from(self.meta).ok().filter(|&len| 0 < len && len < 1 << 30)
    }
}

/// What is in a bucket.
#[derive(Debug)]
pub(super) enum Looked {
    /// By its metadata, which lie in the room.
    Told(Meta, Room),
    /// By itself, and whether it could be read to its end.
    Scanned(Scanned, io::Result<()>),
}

/// What a scan found in a bucket.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) seen: Seen,
    /// The heads of those that are good, and how many that are.
    pub(super) heads: Vec<u8>,
    pub(super) good: u32,
    /// Where the last one ends.
    pub(super) end: u64,
    /// A head of this bucket stands there that is not good. What else does is of a bucket before it, or nothing.
    pub(super) torn: bool,
}

/// Looks into buckets.
#[derive(Debug)]
pub(super) struct Looker<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) token: u64,
    pub(super) verify_values: bool,
    pub(super) reader: &'a Reader,
    /// Rooms of metadata that were taken over.
    pub(super) spare: Mutex<Vec<Room>>,
}

impl Looker<'_> {
    /// Reads the metadata of some buckets at once, then looks at one after the other.
    pub(super) fn look(&self, buckets: &[Listed]) -> io::Result<Vec<Looked>> {
        let metas = self.read_metas(buckets);
        let looked = buckets.iter().zip(metas).map(|(&Listed { id, data, .. }, room)| {
            let meta = room.as_ref().and_then(|room| Meta::decode(room, self.token, id));
            if let (Some(mut meta), Some(room)) = (meta, room)
                && meta.data_bytes <= data
            {
                if self.verify_values {
                    self.verify(id, &mut meta, &room)?;
                }
                return Ok(Looked::Told(meta, room));
            }
            let mut scanned = Scanned::default();
            let read = self.scan(id, data, &mut scanned);
            Ok(Looked::Scanned(scanned, read))
        });
        looked.collect()
    }

    fn read_metas(&self, buckets: &[Listed]) -> Vec<Option<Room>> {
        let mut rooms: Vec<Option<(Arc<dyn File>, Room)>> = (buckets.iter())
            .map(|bucket| {
                let len = bucket.meta_bytes()?;
                let file = self.disk.open(&meta_path(bucket.id), Open::Read).ok()?;
                let spare = self.spare.lock().pop().filter(|room| room.capacity() >= len);
                let mut room = spare.unwrap_or_else(|| Room::new(len));
                room.set_len(len);
                Some((file, room))
            })
            .collect();
        let reads = rooms.iter_mut().flatten().map(|(file, room)| {
            let (offset, into, result) = (0, &mut room[..], Ok(()));
            ReadAt { file, offset, into, result }
        });
        let mut reads: Vec<ReadAt<'_>> = reads.collect();
        self.disk.read(&mut reads);
        let mut ended =
            reads.into_iter().map(|read| read.result.is_ok()).collect::<Vec<_>>().into_iter();
        rooms
            .into_iter()
            .map(|slot| slot.and_then(|(_, room)| ended.next()?.then_some(room)))
            .collect()
    }

    /// Reads the values of a bucket whose metadata are good.
    fn verify(&self, id: u64, meta: &mut Meta, bytes: &[u8]) -> io::Result<()> {
        let file = self.disk.open(&data_path(id), Open::Read)?;
        let Seen { slots, notes } = &mut meta.seen;
        for (slot, note) in slots.iter().zip(notes) {
            let offset = slot.offset;
            let site = Site { kind: Kind::Bucket, token: self.token, serial: id, offset };
            let head = Head::decode(&bytes[note.at..], site);
            let check = |head| self.reader.check_value(self.disk, &file, offset, &head);
            note.good = head.is_some_and(|head| check(head).unwrap_or(false));
        }
        Ok(())
    }

    /// Goes from head to head, until there is none.
    fn scan(&self, id: u64, len: u64, all: &mut Scanned) -> io::Result<()> {
        let file = self.disk.open(&data_path(id), Open::Write)?;
        // A process that was killed leaves bytes in the memory of the kernel that verify, and that a power
        // cut takes along. What is told is durable.
        file.sync_data()?;
        let mut window = Window::new(self.disk, &file, len, WINDOW_BYTES);
        let (mut offset, mut ahead) = (0, WINDOW_BYTES);
        while offset < len {
            let site = Site { kind: Kind::Bucket, token: self.token, serial: id, offset };
            let Some(small) = self.scan_one(&mut window, ahead, site, all)? else {
                all.torn |= record::claims(window.near(offset), site);
                // The next write began at a whole block.
                let next = laying::rounded(offset);
                if next == offset {
                    break;
                }
                offset = next;
                continue;
            };
            // The value of a large record is not read through the window.
            ahead = if small { WINDOW_BYTES } else { 0 };
            offset = all.end;
        }
        Ok(())
    }

    /// The record at a place, if there is one, and whether it is small.
    fn scan_one(
        &self,
        window: &mut Window<'_>,
        ahead: u64,
        site: Site,
        all: &mut Scanned,
    ) -> io::Result<Option<bool>> {
        let (offset, len) = (site.offset, window.len);
        let near = window.reach(offset, FIXED_BYTES, ahead)?;
        let Some(shape) = Head::peek(near, site) else { return Ok(None) };
        let end = offset + shape.bytes();
        let need = if shape.is_small() { shape.bytes() as usize } else { shape.head() };
        if window.reach(offset, need, ahead).is_err() {
            // A value that cannot be read is bad, and the next record may be good.
            window.reach(offset, shape.head(), 0)?;
        }
        let bytes = window.near(offset);
        let Some(head) = Head::decode(bytes, site).filter(|_| end <= len) else { return Ok(None) };
        let good = match head.value_in(bytes) {
            Some(value) => Reader::is_value(&head, value),
            None if shape.is_small() => false,
            None => {
                let checked = self.reader.check_value(self.disk, window.file, offset, &head);
                checked.unwrap_or(false)
            }
        };
        all.seen.push(offset, &head, all.heads.len(), good);
        if good {
            all.heads.extend_from_slice(&bytes[..shape.head()]);
            all.good += 1;
        }
        all.end = end;
        Ok(Some(shape.is_small()))
    }
}
