//! Keeping records: all but the first block, sync, the first block, sync (S2).

use super::{Copy, Held, Shared};
use crate::ALIGN;
use crate::backend::{KeepError, NewRecord};
use crate::disk::WriteAt;
use crate::laying::{self, Laid, Sealed};
use crate::points::point;
use mooncrate_core::alloc::{Allocation, Allocator};
use std::io;
use std::sync::Arc;

/// A record on its way.
struct Item<'a> {
    sealed: Sealed<'a>,
    held: Arc<Held>,
    done: io::Result<()>,
}

impl Shared {
    pub(super) fn keep_all(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        let mut results: Vec<Result<(), KeepError>> = records.iter().map(|_| Ok(())).collect();
        let sealed = Sealed::check_all(records, &mut results);
        let mut items = self.admit(sealed, &mut results);
        if items.is_empty() {
            return results;
        }
        let laid: Vec<Laid<'_>> = items.iter().map(|item| self.lay(item)).collect();
        self.write(&mut items, &laid);
        drop(laid);
        self.undo(&items);
        for Item { sealed, held, done } in items {
            let id = held.id;
            match done {
                Ok(()) => self.link(held),
                Err(error) => results[sealed.number] = Err(error.into()),
            }
            self.space.lock().pending.remove(&id);
        }
        results
    }

    /// Claims names, numbers and space.
    fn admit<'a>(
        &self,
        sealed: Vec<Sealed<'a>>,
        results: &mut [Result<(), KeepError>],
    ) -> Vec<Item<'a>> {
        let serials = match self.identity.take(sealed.len() as u64) {
            Ok(first) => first..,
            Err(error) => {
                for sealed in sealed {
                    results[sealed.number] = Err(laying::again(&error).into());
                }
                return Vec::new();
            }
        };
        let mut items = Vec::with_capacity(sealed.len());
        for (serial, sealed) in serials.zip(sealed) {
            match self.place(&sealed) {
                Ok(place) => {
                    let (id, shape) = (sealed.record.id, sealed.shape());
                    let held = Arc::new(Held { id, serial, shape, place });
                    items.push(Item { sealed, held, done: Ok(()) });
                }
                Err(error) => results[sealed.number] = Err(error),
            }
        }
        items
    }

    fn place(&self, sealed: &Sealed<'_>) -> Result<Allocation, KeepError> {
        let id = sealed.record.id;
        let shard = self.shard(id).lock();
        let mut space = self.space.lock();
        if shard.contains_key(&id) || space.is_there(id) {
            return Err(KeepError::Exists);
        }
        space.sweep();
        let need = laying::rounded(sealed.shape().bytes());
        let Some(place) = space.free.allocate(need) else {
            let used = space.free.capacity() - space.free.free_bytes() + self.identity.bytes();
            return Err(KeepError::Full { need, used, limit: self.config.limit_bytes });
        };
        space.pending.insert(id);
        Ok(place)
    }

    fn lay<'a>(&self, item: &Item<'a>) -> Laid<'a> {
        laying::lay(std::slice::from_ref(&item.sealed), item.held.site(self.identity.token))
    }

    fn write(&self, items: &mut [Item<'_>], laid: &[Laid<'_>]) {
        let split: Vec<(&[u8], Vec<&[u8]>)> = laid.iter().map(split).collect();
        point("offset.before_write");
        let rest = |at: usize| (ALIGN as u64, &split[at].1[..]);
        if split.iter().any(|(_, rest)| !rest.is_empty()) {
            self.write_blocks(items, rest);
            point("offset.value_written");
            self.sync_all(items);
            point("offset.value_synced");
        }
        let first: Vec<[&[u8]; 1]> = split.iter().map(|(first, _)| [*first]).collect();
        self.write_blocks(items, |at| (0, &first[at][..]));
        point("offset.head_written");
        self.sync_all(items);
        point("offset.head_synced");
    }

    /// Writes a part of each record that went well so far.
    fn write_blocks<'b>(
        &self,
        items: &mut [Item<'_>],
        part: impl Fn(usize) -> (u64, &'b [&'b [u8]]),
    ) {
        let good = |(at, item): &(usize, &Item<'_>)| item.done.is_ok() && !part(*at).1.is_empty();
        let good: Vec<usize> = items.iter().enumerate().filter(good).map(|(at, _)| at).collect();
        let writes = good.iter().map(|&at| {
            let (from, pieces) = part(at);
            let (file, offset) = (&self.file, items[at].held.offset() + from);
            WriteAt { file, offset, pieces, result: Ok(()) }
        });
        let mut writes: Vec<WriteAt<'_>> = writes.collect();
        if self.is_bad() {
            // The sync will say so.
            return;
        }
        self.identity.write_many(&mut writes);
        let ended: Vec<io::Result<()>> = writes.into_iter().map(|write| write.result).collect();
        for (at, result) in good.into_iter().zip(ended) {
            items[at].done = result;
        }
    }

    fn sync_all(&self, items: &mut [Item<'_>]) {
        if let Err(error) = self.sync() {
            for item in items.iter_mut().filter(|item| item.done.is_ok()) {
                item.done = Err(laying::again(&error));
            }
        }
    }

    /// What failed leaves no head behind; its space is free again when that is sure.
    fn undo(&self, items: &[Item<'_>]) {
        let failed = items.iter().filter(|item| item.done.is_err());
        let failed: Vec<Arc<Held>> = failed.map(|item| Arc::clone(&item.held)).collect();
        if failed.is_empty() {
            return;
        }
        match self.mark_dead(&failed) {
            Ok(()) => {
                let mut space = self.space.lock();
                for held in failed {
                    space.free.free(held.place);
                }
            }
            // A start could find them: they are there until a removal has ended well.
            Err(error) => {
                tracing::warn!(%error, "records that were not kept are still on the disk");
                let mut space = self.space.lock();
                for held in failed {
                    space.hidden.insert((held.id, held.serial), Copy { held, stays: true });
                }
            }
        }
    }
}

/// The first block of a record, and the rest of its pieces.
fn split<'l>(laid: &'l Laid<'_>) -> (&'l [u8], Vec<&'l [u8]>) {
    let mut pieces = laid.pieces();
    let (first, rest) = pieces[0].split_at(ALIGN);
    pieces[0] = rest;
    pieces.retain(|piece| !piece.is_empty());
    (first, pieces)
}
