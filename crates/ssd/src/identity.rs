//! What a directory is: its version, which backend it belongs to, its token, and which numbers were given
//! out. Two copies of one small text, each replaced as a whole; one good copy is enough.
//!
//! ```text
//!   mooncrate-ssd 1          the version; a later one is refused, and nothing is touched
//!   backend bucket           with the number of its layout, if that is not the first
//!   token 0123456789abcdef   drawn once; stands in every head
//!   ids 1024                 numbers below may be in use, or were
//!   crc 0123456789abcdef     of the lines above
//! ```
//!
//! What must stay true: a number is durable as used before it is used, so no number names two things, also
//! after restarts and whatever was deleted in between (S6).

use crate::disk::{Disk, File, Open, WriteAt, missing_is_fine};
use crate::points::point;
use crate::record::{Kind, VERSION};
use crate::room::Room;
use crate::{ALIGN, OpenError, ReadAt};
use mooncrate_lock::Mutex;
use mooncrate_mem::crc::crc;
use mooncrate_rt as rt;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NAMES: [&str; 2] = ["format", "format.copy"];
const TEMP: &str = "format.tmp";
const FIRST: &str = "mooncrate-ssd ";

/// Bytes that both copies take, and a third one for a moment.
const BYTES: u64 = 2 * ALIGN as u64;
pub(crate) const BYTES_MAX: u64 = 3 * ALIGN as u64;

/// The text, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) kind: Kind,
    pub(crate) token: u64,
    pub(crate) ids: u64,
}

/// Why a text is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Written by a later version.
    Newer(u64),
    /// Laid out by an earlier one.
    Older,
    /// Something else, or a part of one.
    Damaged,
}

impl Text {
    pub(crate) fn encode(&self) -> String {
        let Self { kind, token, ids } = self;
        let (name, layout) = (kind.name(), kind.layout());
        let layout = if layout == 1 { String::new() } else { format!(" {layout}") };
        let mut text =
            format!("{FIRST}{VERSION}\nbackend {name}{layout}\ntoken {token:016x}\nids {ids}\n");
        let sum = crc(text.as_bytes());
        let _ = writeln!(text, "crc {sum:016x}");
        text
    }

    /// Reads a text, padded with zeros. The first line and the sum stay what they are in every version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Bad::Damaged)?;
        Self::parse(text).ok_or(Bad::Damaged)?
    }

    fn parse(text: &str) -> Option<Result<Self, Bad>> {
        let (body, sum) = text.strip_suffix('\n')?.rsplit_once("crc ")?;
        if u64::from_str_radix(sum, 16) != Ok(crc(body.as_bytes())) {
            return None;
        }
        let (first, rest) = body.split_once('\n')?;
        let version: u64 = first.strip_prefix(FIRST)?.parse().ok()?;
        if version > u64::from(VERSION) {
            return Some(Err(Bad::Newer(version)));
        }
        let mut lines = rest.lines();
        let kind = lines.next()?.strip_prefix("backend ")?;
        let (kind, layout) = kind.split_once(' ').unwrap_or((kind, "1"));
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
        match layout.parse::<u64>().ok()? {
            layout if layout < kind.layout() => return Some(Err(Bad::Older)),
            layout if layout > kind.layout() => return Some(Err(Bad::Newer(layout))),
            _ => {}
        }
        let token = u64::from_str_radix(lines.next()?.strip_prefix("token ")?, 16).ok()?;
        let ids = lines.next()?.strip_prefix("ids ")?.parse().ok()?;
        lines.next().is_none().then_some(Ok(Self { kind, token, ids }))
    }
}

/// The identity of an open directory.
#[derive(Debug)]
pub(crate) struct Identity {
    disk: Arc<dyn Disk>,
    kind: Kind,
    pub(crate) token: u64,
    ids: Mutex<Ids>,
    /// Numbers that are made durable at a time.
    step: u64,
    written: AtomicU64,
    /// Of both copies, as they are there.
    bytes: AtomicU64,
    /// Syncs of directories that failed. Such a sync may have lost what others changed as well, and their own
    /// sync does not say so (S12).
    failed: AtomicU64,
}

#[derive(Debug)]
struct Ids {
    next: u64,
    durable: u64,
}

impl Identity {
    /// Reads the identity of a directory, or gives it one. `is_ours` tells files that only a directory with
    /// an identity has.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        kind: Kind,
        token: Option<u64>,
        step: u64,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<Self, OpenError> {
        let entries = disk.list(Path::new(""))?;
        let mut best: Option<Text> = None;
        let (mut damaged, mut bytes) = (false, 0);
        let mut failed = None;
        for name in NAMES {
            let Some(entry) = entries.iter().find(|entry| entry.name == name) else { continue };
            bytes += entry.len;
            let read = read_text(disk.as_ref(), name, entry.len);
            match read.unwrap_or_else(|error| {
                // Not damaged: another start may read it.
                failed = Some(error);
                Err(Bad::Damaged)
            }) {
                Ok(text) if best.is_none_or(|best| best.ids < text.ids) => best = Some(text),
                Ok(_) => {}
                Err(Bad::Newer(version)) => return Err(OpenError::Newer { version }),
                Err(Bad::Older) => return Err(OpenError::Older),
                Err(Bad::Damaged) => damaged = true,
            }
        }
        if let (None, Some(error)) = (&best, failed) {
            return Err(error.into());
        }
        let text = match best {
            Some(text) if text.kind != kind => {
                return Err(OpenError::Kind { is: text.kind.name(), asked: kind.name() });
            }
            Some(text) => text,
            None if damaged || entries.iter().any(|entry| is_ours(&entry.name)) => {
                return Err(OpenError::Damaged);
            }
            None => Text { kind, token: token.map_or_else(draw, Ok)?, ids: 1 },
        };
        if damaged {
            tracing::warn!("a copy of the file `format` is damaged; the other one is good");
        }
        let ids = Mutex::new(Ids { next: text.ids, durable: text.ids });
        let this = Self {
            disk: Arc::clone(disk),
            kind,
            token: text.token,
            ids,
            step,
            written: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            failed: AtomicU64::new(0),
        };
        match this.reserve(&mut this.ids.lock()) {
            // A disk that is full must be opened, or nothing could be evicted. Numbers are reserved when some
            // are wanted.
            Err(error) if best.is_some() => {
                tracing::warn!(%error, "the file `format` could not be written anew");
            }
            reserved => reserved?,
        }
        Ok(this)
    }

    /// `count` numbers in a row that were never used; the first of them.
    pub(crate) fn take(&self, count: u64) -> io::Result<u64> {
        let mut ids = self.ids.lock();
        while ids.next + count > ids.durable {
            // Under the lock, because nobody else could go on either; once in `step` numbers.
            self.reserve(&mut ids)?;
        }
        let first = ids.next;
        ids.next += count;
        Ok(first)
    }

    fn reserve(&self, ids: &mut Ids) -> io::Result<()> {
        let durable = ids.durable + self.step;
        let text = Text { kind: self.kind, token: self.token, ids: durable };
        for name in NAMES {
            point("format.before_write");
            let mut room = Room::new(ALIGN);
            room.push(text.encode().as_bytes());
            room.pad();
            let replaced = self.replace(Path::new(TEMP), Path::new(name), &room, &FORMAT_POINTS);
            replaced.inspect_err(|_| self.recount())?;
        }
        ids.durable = durable;
        self.bytes.store(BYTES, Ordering::Relaxed);
        Ok(())
    }

    /// A copy that could not be made durable may stand there for the first time, and counts (S7).
    fn recount(&self) {
        if let Ok(entries) = self.disk.list(Path::new("")) {
            let copies = entries.iter().filter(|entry| NAMES.contains(&entry.name.as_str()));
            self.bytes.store(copies.map(|entry| entry.len).sum(), Ordering::Relaxed);
        }
    }

    /// Writes, and counts what is written.
    pub(crate) fn write(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        pieces: &[&[u8]],
    ) -> io::Result<()> {
        let mut writes = [WriteAt { file, offset, pieces, result: Ok(()) }];
        self.write_many(&mut writes);
        let [WriteAt { result, .. }] = writes;
        result
    }

    /// The same, for many at once.
    pub(crate) fn write_many(&self, writes: &mut [WriteAt<'_>]) {
        self.disk.write(writes);
        let bytes = writes.iter().flat_map(|write| write.pieces).map(|piece| piece.len() as u64);
        self.written.fetch_add(bytes.sum(), Ordering::Relaxed);
    }

    /// A write for each block: one that the disk loses takes one block along, and no copy of it.
    pub(crate) fn write_blocks(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let pieces: Vec<[&[u8]; 1]> = bytes.chunks(ALIGN).map(|block| [block]).collect();
        let writes = (offset..).step_by(ALIGN).zip(&pieces).map(|(offset, pieces)| {
            let result = Ok(());
            WriteAt { file, offset, pieces, result }
        });
        let mut writes: Vec<WriteAt<'_>> = writes.collect();
        self.write_many(&mut writes);
        writes.into_iter().map(|write| write.result).fold(Ok(()), io::Result::and)
    }

    /// Bytes that its files take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were written since the directory was opened.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// To be taken before names are changed, for [`Identity::sync_names`].
    pub(crate) fn names(&self) -> u64 {
        // Relaxed, here and below: a count; the disk orders what it is about.
        self.failed.load(Ordering::Relaxed)
    }

    /// Names in a directory that were changed since `before` are on the disk, or this fails.
    pub(crate) fn sync_names(&self, dir: &Path, before: u64) -> io::Result<()> {
        self.sync_all_names(&[dir], before).pop().expect("one result for each")
    }

    /// The same, for many directories.
    pub(crate) fn sync_all_names(&self, dirs: &[&Path], before: u64) -> Vec<io::Result<()>> {
        let mut synced = self.disk.sync_dirs(dirs);
        let failed = synced.iter().filter(|synced| synced.is_err()).count();
        self.failed.fetch_add(failed as u64, Ordering::Relaxed);
        if self.names() != before {
            for synced in synced.iter_mut().filter(|synced| synced.is_ok()) {
                let what = "another sync of a directory failed at the same time";
                *synced = Err(io::Error::other(what));
            }
        }
        synced
    }

    /// Puts a file in place as a whole: written beside, synced, renamed, the directory synced. What stands
    /// beside is deleted when that fails. Both lie in the directory of the disk itself.
    pub(crate) fn replace(
        &self,
        temp: &Path,
        name: &Path,
        bytes: &[u8],
        points: &[&'static str; 4],
    ) -> io::Result<()> {
        let disk = self.disk.as_ref();
        missing_is_fine(disk.remove(temp))?;
        let done = (|| {
            let file = disk.open(temp, Open::Create)?;
            self.write_blocks(&file, 0, bytes)?;
            point(points[0]);
            file.sync_data()?;
            point(points[1]);
            let before = self.names();
            disk.rename(temp, name).map(|()| before)
        })();
        // If deleting it fails too, the next start finds and removes it.
        let before = done.inspect_err(|_| drop(disk.remove(temp)))?;
        point(points[2]);
        self.sync_names(Path::new(""), before)?;
        point(points[3]);
        Ok(())
    }
}

/// A token that nobody can guess.
fn draw() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rt::random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_text(disk: &dyn Disk, name: &str, len: u64) -> io::Result<Result<Text, Bad>> {
    if len != ALIGN as u64 {
        return Ok(Err(Bad::Damaged));
    }
    let file = disk.open(Path::new(name), Open::Read)?;
    let mut room = Room::new(ALIGN);
    room.set_len(ALIGN);
    let read = ReadAt { file: &file, offset: 0, into: &mut room, result: Ok(()) };
    let mut reads = [read];
    disk.read(&mut reads);
    let [ReadAt { result, .. }] = reads;
    result?;
    Ok(Text::decode(&room))
}

const FORMAT_POINTS: [&str; 4] =
    ["format.written", "format.synced", "format.renamed", "format.dir_synced"];

/// Whether a file belongs to the identity.
pub(crate) fn is_identity(name: &str) -> bool {
    NAMES.contains(&name) || name == TEMP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_and_a_damaged_one_does_not() {
        let text = Text { kind: Kind::Offset, token: 0xabc, ids: 77 };
        let mut bytes = text.encode().into_bytes();
        assert_eq!(Text::decode(&bytes), Ok(text));
        bytes.resize(ALIGN, 0);
        assert_eq!(Text::decode(&bytes), Ok(text));
        for at in 0..text.encode().len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Text::decode(&bad), Err(Bad::Damaged), "byte {at}");
        }
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut text = "mooncrate-ssd 2\nanything else\n".to_owned();
        let sum = crc(text.as_bytes());
        let _ = writeln!(text, "crc {sum:016x}");
        assert_eq!(Text::decode(text.as_bytes()), Err(Bad::Newer(2)));
    }
}
