//! Spare files of this backend: those of buckets that are gone, for the next ones. They may have any length: what is
//! missing grows, and what is too much is cut off when the bucket is closed.
//!
//! ```text
//!   0000000000000001.bucket ──delete──► 0000000000000001.free ──write──► 0000000000000009.bucket
//! ```
//!
//! Heads name their bucket, so nothing that the file held before is a record of the next one.

use super::state::{Bin, State};
use super::write::Writer;
use super::{Shared, data_path};
use crate::config::Config;
use crate::disk::{Disk, File, Open};
use crate::points::point;
use crate::spare::{HasSpares, Spares};
use mooncrate_lock::{Condvar, Mutex};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The share of the limit that spares may take, and also the ends of open buckets that nothing is written to yet.
const SHARE: u64 = 8;
/// How long somebody waits for a spare that is about to come, and how often in vain. It takes the sync of a directory.
const COMING_WAIT: Duration = Duration::from_millis(2);
const COMING_WAITS: usize = 25;

impl HasSpares for Shared {
    type State = State;

    fn parts(&self) -> (&dyn Disk, &Config, &Mutex<State>, &Condvar) {
        (self.disk.as_ref(), &self.config, &self.state, &self.changed)
    }

    fn spares(state: &mut State) -> (&mut Spares, u64) {
        let promised = state.promised(0);
        (&mut state.spares, promised)
    }

    fn path(serial: u64) -> PathBuf {
        format!("{serial:016x}.free").into()
    }
}

impl State {
    /// Whether so many bytes more may be spares.
    pub(super) fn may_spare(&self, bytes: u64, config: &Config) -> bool {
        let room = self.spares.bytes() + bytes <= config.limit_bytes / SHARE;
        room && !self.spares.is_full()
    }

    /// One for a bucket that is opened: its number, and its bytes.
    pub(super) fn take_spare(&mut self, config: &Config) -> Option<(u64, u64)> {
        let len = self.spares.longest()?;
        // Else its room may be promised to a record that somebody else is about to write.
        let is_free = Shared::leave_room(self, config);
        if !is_free || self.books.slack + len > config.limit_bytes / SHARE {
            return None;
        }
        let serial = self.spares.take(len)?;
        self.books.slack += len;
        Some((serial, len))
    }
}

impl Shared {
    /// A spare for a bucket that is opened, if there is one or will be in a moment: a new file would have to grow, and
    /// on a disk that is full another one would have to go for it.
    pub(super) fn await_spare(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let mut waits = 0;
        while waits < COMING_WAITS && state.coming > 0 && state.spares.longest().is_none() {
            let waited = self.changed.wait_for(&mut state, COMING_WAIT);
            waits += usize::from(waited.timed_out());
        }
        state.take_spare(&self.config)
    }

    /// The file of a bucket that nothing was written to yet.
    pub(super) fn make_file(&self, writer: &mut Writer) -> io::Result<Arc<dyn File>> {
        let path = data_path(writer.id);
        let Some((serial, len)) = writer.spare.take() else {
            let file = self.disk.open(&path, Open::Create)?;
            writer.file = Some(Arc::clone(&file));
            return Ok(file);
        };
        let renamed = self.disk.open(&Self::path(serial), Open::Write).and_then(|file| {
            self.disk.rename(&Self::path(serial), &path)?;
            point("bucket.reused");
            Ok(file)
        });
        let opened = match renamed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Somebody deleted it.
                self.disk.open(&path, Open::Create)
            }
            renamed => renamed,
        };
        let file = opened.inspect_err(|_| self.give_up_spare(writer, serial, len))?;
        writer.file = Some(Arc::clone(&file));
        if file.len()? != len {
            // Somebody cut it, too.
            file.set_len(len)?;
        }
        Ok(file)
    }

    /// A spare that cannot be used is deleted.
    fn give_up_spare(&self, writer: &mut Writer, serial: u64, len: u64) {
        let mut state = self.state.lock();
        state.books.slack -= std::mem::take(&mut writer.slack);
        state.books.data += len;
        state.bad.insert(serial);
        drop(state);
        if let Err(error) = self.delete(vec![Bin::new(serial, len, 0)], false) {
            tracing::warn!(bucket = serial, %error, "a spare file could not be deleted");
        }
    }

    /// Gives back what an open bucket has beyond its records; says whether it can be written to.
    pub(super) fn loosen(&self, writer: &mut Writer) -> bool {
        if let Some((serial, len)) = writer.spare.take() {
            let mut state = self.state.lock();
            state.books.slack -= std::mem::take(&mut writer.slack);
            state.spares.add(len, serial);
            return true;
        }
        self.cut(writer) == writer.end
    }

    /// What a bucket does not need of its file goes. Best effort: what lies behind the end counts as long as it is
    /// there. Says how long the file is.
    pub(super) fn cut(&self, writer: &mut Writer) -> u64 {
        let Some(file) = &writer.file else { return writer.end };
        let _ = file.set_len(writer.end);
        let len = file.len().unwrap_or(writer.end + writer.slack).max(writer.end);
        let mut state = self.state.lock();
        state.books.slack -= std::mem::take(&mut writer.slack);
        state.books.data += len - writer.end;
        let bin = state.bins.get_mut(&writer.id).expect("a busy bucket does not go");
        bin.data = len;
        len
    }
}
