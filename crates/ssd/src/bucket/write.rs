//! Keeping records: data, sync, index (S2).
//!
//! A few buckets are open at a time. A call takes one of them out, appends all it has in one write, syncs it
//! once, and puts it back, so nothing waits for a bucket to fill, no lock is held over I/O, and a sync
//! serves a whole batch. Who finds all of them taken waits for one.
//!
//! What must stay true: a bucket is written by one call at a time, behind its durable end only. A bucket whose
//! write or sync failed is closed; its metadata, which say what is in it, leave out what was not kept (S12).

use super::state::{Bin, Slot};
use super::{Shared, meta, meta_path};
use crate::backend::{KeepError, NewRecord};
use crate::disk::{File, Open, is_full, missing_is_fine};
use crate::laying::{self, Laid, Sealed};
use crate::points::point;
use crate::record::{Kind, Site};
use crate::spare::HasSpares;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Closed buckets without metadata that are borne; with more of them nothing new is kept.
const UNSEALED_MAX: usize = 8;

/// An open bucket, in the hands of one call or idle.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) id: u64,
    /// `None` until something is written.
    pub(super) file: Option<Arc<dyn File>>,
    /// Where its durable records end.
    pub(super) end: u64,
    pub(super) records: u32,
    /// A spare that becomes its file when something is written: its number, and its bytes.
    pub(super) spare: Option<(u64, u64)>,
    /// Bytes of the file behind the end.
    pub(super) slack: u64,
    /// The heads of its records: its metadata to be.
    pub(super) heads: Vec<u8>,
    pub(super) meta_reserved: u64,
    /// A keep failed and may have left something behind the end: its metadata, which say that this is none, must not be
    /// lost (S12).
    pub(super) failed: bool,
    /// Its metadata found no room on the disk.
    pub(super) no_room: bool,
}

impl Writer {
    /// Of a bucket that is empty and has no file.
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            file: None,
            end: 0,
            records: 0,
            spare: None,
            slack: 0,
            heads: Vec::new(),
            meta_reserved: 0,
            failed: false,
            no_room: false,
        }
    }

    /// Bytes that the file grows by when records are written up to here.
    fn grows(&self, end: u64) -> u64 {
        end.saturating_sub(self.end + self.slack)
    }
}

/// Why a write was not kept.
enum Failed {
    /// Nothing of it is left in the file, durably.
    Undone(io::Error),
    /// The file is not to be trusted from its durable end on.
    Bad(io::Error),
}

impl Shared {
    pub(super) fn keep_all(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        let mut results: Vec<Result<(), KeepError>> = records.iter().map(|_| Ok(())).collect();
        let mut waiting = VecDeque::from(Sealed::check_all(records, &mut results));
        let mut state = self.state.lock();
        waiting.retain(|sealed| {
            let id = sealed.record.id;
            if state.is_there(id) {
                results[sealed.number] = Err(KeepError::Exists);
                return false;
            }
            state.pending.insert(id)
        });
        drop(state);
        while self.has_room_to_seal() && self.seal_leftover() {}
        while !waiting.is_empty() {
            let mut writer = match self.take_writer() {
                Ok(writer) => writer,
                Err(error) => {
                    self.give_up(&Vec::from(waiting), &error, true, &mut results);
                    break;
                }
            };
            let (mut batch, tight) = self.admit(&mut writer, &mut waiting, &mut results);
            if batch.is_empty() && tight {
                if !self.loosen(&mut writer) {
                    self.put_back(writer, true);
                    continue;
                }
                (batch, _) = self.admit(&mut writer, &mut waiting, &mut results);
            }
            if batch.is_empty() {
                // Full for the next one; or nothing was left to write.
                self.put_back(writer, !waiting.is_empty());
            } else {
                self.append(writer, &batch, &mut results);
            }
        }
        results
    }

    /// An open bucket for this call alone.
    fn take_writer(&self) -> io::Result<Writer> {
        let mut state = self.state.lock();
        loop {
            if let Some(writer) = state.idle.pop() {
                if let Some(bin) = state.bins.get_mut(&writer.id) {
                    bin.busy = true;
                }
                return Ok(writer);
            }
            // Over the limit nothing is written, nor are they, until something is evicted: then it is full for records.
            if state.unsealed.len() > UNSEALED_MAX && state.promised(0) <= self.config.limit_bytes {
                return Err(if state.unsealed.iter().all(|writer| writer.no_room) {
                    io::ErrorKind::StorageFull.into()
                } else {
                    io::Error::other("the metadata of too many buckets cannot be written")
                });
            }
            if state.writers < self.config.open_buckets_max.max(1) {
                state.writers += 1;
                drop(state);
                let id = self.identity.take(1).inspect_err(|_| self.lose_writer())?;
                let spare = self.await_spare();
                let slack = spare.map_or(0, |(_, len)| len);
                return Ok(Writer { spare, slack, ..Writer::new(id) });
            }
            self.changed.wait_for(&mut state, Duration::from_secs(1));
        }
    }

    fn lose_writer(&self) {
        self.state.lock().writers -= 1;
        self.changed.notify_all();
    }

    /// Takes what fits into the bucket and under the limit, and reserves the bytes for it. Says whether the next one
    /// may fit when the bucket gives back what it has beyond its records.
    fn admit<'a>(
        &self,
        writer: &mut Writer,
        waiting: &mut VecDeque<Sealed<'a>>,
        results: &mut [Result<(), KeepError>],
    ) -> (Vec<Sealed<'a>>, bool) {
        let mut state = self.state.lock();
        let (mut batch, mut tight) = (Vec::new(), false);
        let (mut end, mut heads) = (writer.end, writer.heads.len());
        while let Some(sealed) = waiting.front() {
            let shape = sealed.shape();
            let (_, next) = laying::next(end, shape);
            let records = writer.records as usize + batch.len();
            let full = records >= self.config.bucket_records_max.max(1) as usize
                || laying::rounded(next) > self.config.bucket_bytes_max;
            if full && records > 0 {
                break;
            }
            let meta = meta::file_bytes(heads + shape.head());
            let need = writer.grows(laying::rounded(next)) + meta - writer.meta_reserved;
            let promised = state.promised(batch.len() as u64 + 1);
            let fits = promised + need <= self.config.limit_bytes;
            if !fits && writer.slack > 0 {
                tight = true;
                break;
            }
            let sealed = waiting.pop_front().expect("it was just looked at");
            if !fits {
                let (used, limit) = (promised, self.config.limit_bytes);
                results[sealed.number] = Err(KeepError::Full { need: shape.bytes(), used, limit });
                state.pending.remove(&sealed.record.id);
                continue;
            }
            end = next;
            heads += shape.head();
            batch.push(sealed);
        }
        if !batch.is_empty() {
            let meta = meta::file_bytes(heads);
            let data = writer.grows(laying::rounded(end));
            state.books.reserved += data + meta - writer.meta_reserved;
            state.books.slots += batch.len() as u64;
            writer.meta_reserved = meta;
        }
        (batch, tight)
    }

    fn append(
        &self,
        mut writer: Writer,
        batch: &[Sealed<'_>],
        results: &mut [Result<(), KeepError>],
    ) {
        let (kind, token) = (Kind::Bucket, self.identity.token);
        let site = Site { kind, token, serial: writer.id, offset: writer.end };
        let laid = laying::lay(batch, site);
        let grown = writer.grows(laid.end);
        self.trim_spares();
        match self.write(&mut writer, &laid) {
            Ok(()) => {
                self.commit(&mut writer, batch, &laid, grown);
                point("bucket.indexed");
                let full = writer.records >= self.config.bucket_records_max
                    || writer.end >= self.config.bucket_bytes_max;
                self.put_back(writer, full);
            }
            Err(failed) => {
                let (error, undone) = match &failed {
                    Failed::Undone(error) => (error, true),
                    Failed::Bad(error) => (error, false),
                };
                let before =
                    if writer.records == 0 { 0 } else { meta::file_bytes(writer.heads.len()) };
                let mut state = self.state.lock();
                state.books.reserved -= grown + writer.meta_reserved - before;
                state.books.slots -= batch.len() as u64;
                if !undone {
                    for (sealed, &offset) in batch.iter().zip(&laid.offsets) {
                        let places = state.failed.entry(sealed.record.id).or_default();
                        places.push((writer.id, offset));
                    }
                }
                drop(state);
                writer.meta_reserved = before;
                self.give_up(batch, error, undone, results);
                match failed {
                    Failed::Undone(_) => self.put_back(writer, false),
                    Failed::Bad(_) => self.abandon(writer),
                }
            }
        }
    }

    /// Data, sync, and the name of a new file.
    fn write(&self, writer: &mut Writer, laid: &Laid<'_>) -> Result<(), Failed> {
        let before = self.identity.names();
        let file = match &writer.file {
            Some(file) => Arc::clone(file),
            None => self.make_file(writer).map_err(Failed::Bad)?,
        };
        point("bucket.created");
        point("bucket.before_write");
        let result = self.identity.write(&file, writer.end, &laid.pieces());
        point("bucket.data_written");
        if let Err(error) = result {
            // A disk that is full is not broken: cut what came too much and go on later.
            let cut =
                is_full(&error) && file.set_len(writer.end).and_then(|()| file.sync_data()).is_ok();
            if !cut {
                return Err(Failed::Bad(error));
            }
            self.state.lock().books.slack -= std::mem::take(&mut writer.slack);
            return Err(Failed::Undone(error));
        }
        file.sync_data().map_err(Failed::Bad)?;
        point("bucket.data_synced");
        if writer.records == 0 {
            self.identity.sync_names(Path::new(""), before).map_err(Failed::Bad)?;
            point("bucket.dir_synced");
        }
        Ok(())
    }

    /// The records can be loaded from now on.
    fn commit(&self, writer: &mut Writer, batch: &[Sealed<'_>], laid: &Laid<'_>, grown: u64) {
        let mut state = self.state.lock();
        let new = || Bin { busy: true, open: true, ..Bin::new(writer.id, 0, 0) };
        let bin = state.bins.entry(writer.id).or_insert_with(new);
        let slots = batch.iter().zip(&laid.offsets).map(|(sealed, &offset)| {
            let (id, shape) = (sealed.record.id, sealed.shape());
            Slot { id, offset, shape }
        });
        let slots: Vec<Slot> = slots.collect();
        bin.slots.extend_from_slice(&slots);
        bin.live += slots.len();
        bin.data = laid.end;
        let bucket = Arc::clone(&bin.bucket);
        let written = laid.end - writer.end;
        state.books.data += written;
        state.books.reserved -= grown;
        state.books.slack -= written - grown;
        for slot in slots {
            state.pending.remove(&slot.id);
            state.link(&bucket, slot);
        }
        drop(state);
        writer.end = laid.end;
        writer.slack -= written - grown;
        writer.records += batch.len() as u32;
        writer.heads.extend_from_slice(&laid.heads);
    }

    /// `undone`: nothing of them is left on the disk.
    fn give_up(
        &self,
        batch: &[Sealed<'_>],
        error: &io::Error,
        undone: bool,
        results: &mut [Result<(), KeepError>],
    ) {
        if is_full(error) {
            self.delete_spares();
        }
        let free = self.disk.free_bytes().unwrap_or(0);
        let mut state = self.state.lock();
        let used = state.promised(0);
        for sealed in batch {
            state.pending.remove(&sealed.record.id);
            results[sealed.number] = Err(if undone && is_full(error) {
                KeepError::Full { need: sealed.shape().bytes(), used, limit: used + free }
            } else {
                KeepError::Disk(laying::again(error))
            });
        }
    }

    /// The bucket can be written by others, or is closed.
    pub(super) fn put_back(&self, writer: Writer, close: bool) {
        if writer.records == 0 {
            return self.abandon(writer);
        }
        if close {
            return self.close(writer);
        }
        let mut state = self.state.lock();
        if let Some(bin) = state.bins.get_mut(&writer.id) {
            bin.busy = false;
        }
        state.idle.push(writer);
        drop(state);
        self.changed.notify_all();
    }

    /// The bucket is not written to again.
    fn close(&self, mut writer: Writer) {
        self.state.lock().writers -= 1;
        self.changed.notify_all();
        if writer.slack > 0 {
            self.cut(&mut writer);
        }
        self.seal(writer);
    }

    /// Writes the metadata of a bucket that is closed; says whether that went well. What cannot be written now is tried
    /// again later.
    pub(super) fn seal(&self, mut writer: Writer) -> bool {
        let Writer { id, end, records, meta_reserved, failed, .. } = writer;
        point("meta.before_write");
        let room = meta::encode(self.identity.token, id, end, records, &writer.heads);
        let name = meta_path(id);
        let sealed = self.write_meta(&name, &room, failed);
        if let Err(error) = &sealed {
            // What was written of it is not counted.
            let _ = self.disk.remove(&name);
            if is_full(error) {
                self.delete_spares();
            }
        }
        let mut state = self.state.lock();
        let bin = state.bins.get_mut(&id).expect("a busy bucket does not go");
        bin.busy = false;
        bin.open = false;
        let (empty, is_sealed) = (bin.live == 0, sealed.is_ok());
        match sealed {
            Ok(()) => {
                bin.meta = room.len() as u64;
                state.books.meta += room.len() as u64;
                state.books.reserved -= meta_reserved;
            }
            Err(error) => {
                // Once for each bucket: each call tries again.
                if !(writer.no_room && is_full(&error)) {
                    tracing::warn!(bucket = id, %error, "the metadata of a bucket were not written");
                }
                writer.no_room = is_full(&error);
                state.unsealed.push_back(writer);
            }
        }
        if empty {
            state.emptied.push(id);
        }
        drop(state);
        self.changed.notify_all();
        self.reclaim();
        is_sealed
    }

    /// As a rule they are not synced: who keeps records would wait for that, and what a power cut takes is found by a scan.
    fn write_meta(&self, name: &Path, room: &[u8], must_last: bool) -> io::Result<()> {
        // An earlier try, or a crash in the middle of one, may have left some of it.
        missing_is_fine(self.disk.remove(name))?;
        let before = self.identity.names();
        let file = self.disk.open(name, Open::Create)?;
        self.identity.write(&file, 0, &[room])?;
        point("meta.written");
        if must_last {
            file.sync_data()?;
            self.identity.sync_names(Path::new(""), before)?;
        }
        Ok(())
    }

    pub(super) fn has_room_to_seal(&self) -> bool {
        self.state.lock().promised(0) <= self.config.limit_bytes
    }

    /// Tries once more to write what could not be written: one of them. Says whether it could be, this time.
    pub(super) fn seal_leftover(&self) -> bool {
        let mut state = self.state.lock();
        let Some(writer) = state.unsealed.pop_front() else { return false };
        if let Some(bin) = state.bins.get_mut(&writer.id) {
            bin.busy = true;
        }
        drop(state);
        self.seal(writer)
    }

    /// A bucket that failed: closed with what it has, or deleted if that is nothing.
    fn abandon(&self, mut writer: Writer) {
        if writer.records > 0 {
            self.cut(&mut writer);
            writer.failed = true;
            self.state.lock().bad.insert(writer.id);
            return self.close(writer);
        }
        if writer.spare.is_some() {
            // Nothing was written, so it is still one.
            self.loosen(&mut writer);
        }
        let len = writer.file.as_ref().map(|file| file.len().unwrap_or(writer.slack));
        let mut state = self.state.lock();
        state.writers -= 1;
        state.books.reserved -= writer.meta_reserved;
        state.books.slack -= writer.slack;
        if let Some(len) = len {
            state.books.data += len;
            state.bad.insert(writer.id);
        } else {
            // There is no file that anything could be found in.
            state.forget_all_failed(writer.id);
        }
        drop(state);
        self.changed.notify_all();
        let Some(len) = len else { return };
        drop(writer.file);
        if let Err(error) = self.delete(vec![Bin::new(writer.id, len, 0)], false) {
            tracing::warn!(bucket = writer.id, %error, "an empty bucket could not be deleted");
        }
    }
}
