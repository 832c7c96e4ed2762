//! The stamp of a disk: a number that its directory gets anew at each start. A master's durable list names the
//! disk by its identity and this number, so it can tell the directory that it knew from an older copy of it.
//!
//! ```text
//!   mooncrate-stamp 1
//!   stamp 0123456789abcdef                        drawn by the last start
//!   before 0123456789abcdef 0000000000000000      stamps that a list may still name, newest first
//!   epoch 7                                       the latest leader that confirmed a stamp
//!   file 2621443 1763323200000000000              inode and time of birth of this very file
//!   end
//! ```
//!
//! What must stay true: the new stamp is durable before anything is served or removed under it, so an earlier
//! copy of the directory shows a number that no later list names. A copy made while the stamp was the
//! current one has it too, but is another file: its inode or its time of birth differ from the last line.

use super::Disk;
use mooncrate_core::plan::Evidence;
use mooncrate_core::{LeaderEpoch, Stamp};
use mooncrate_rt as rt;
use mooncrate_ssd::disk::Entry;
use mooncrate_ssd::{Disk as Device, Open, ReadAt, WriteAt};
use std::io;
use std::path::Path;

const NAME: &str = "stamp";
const TEMP: &str = "stamp.new";
const FIRST: &str = "mooncrate-stamp 1";
/// The text is far shorter; a longer file is none of ours.
const BYTES_MAX: u64 = 4096;
/// No earlier stamp counts.
const NONE: (Stamp, Stamp) = (Stamp(0), Stamp(0));

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    stamp: Stamp,
    before: (Stamp, Stamp),
    epoch: LeaderEpoch,
    /// Inode and time of birth.
    file: (u64, u64),
}

impl Text {
    fn render(&self) -> String {
        let Self { stamp, before: (last, second_last), epoch, file: (inode, born) } = self;
        format!(
            "{FIRST}\nstamp {:016x}\nbefore {:016x} {:016x}\nepoch {}\nfile {inode} {born}\nend\n",
            stamp.0, last.0, second_last.0, epoch.0
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix("\nend\n")?.lines();
        let mut next = |word: &str| lines.next()?.strip_prefix(word);
        let stamp = |text: &str| Some(Stamp(u64::from_str_radix(text, 16).ok()?));
        next(FIRST)?;
        let is = stamp(next("stamp ")?)?;
        let (last, second_last) = next("before ")?.split_once(' ')?;
        let before = (stamp(last)?, stamp(second_last)?);
        let epoch = LeaderEpoch(next("epoch ")?.parse().ok()?);
        let (inode, born) = next("file ")?.split_once(' ')?;
        let file = (inode.parse().ok()?, born.parse().ok()?);
        Some(Self { stamp: is, before, epoch, file })
    }
}

/// What a start shows its master, and the latest leader that the directory has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamped {
    pub(super) evidence: Evidence,
    pub(super) epoch: LeaderEpoch,
}

/// Gives the directory a new stamp. A directory that cannot be written to has none, so nobody believes it.
pub(super) fn stamp_anew(device: &dyn Device) -> io::Result<Stamped> {
    let found = read(device)?;
    let before = found.map_or(NONE, |text| (text.stamp, text.before.0));
    let epoch = found.map_or(LeaderEpoch(0), |text| text.epoch);
    let stamp = draw()?;
    write(device, stamp, before, epoch)?;
    Ok(Stamped { evidence: Evidence { stamp, before, lapsed: false }, epoch })
}

impl Disk {
    /// What the disk shows a master.
    pub(crate) fn evidence(&self) -> Evidence {
        *self.evidence.lock()
    }

    /// From now on only the stamp of this start counts: the leader of `epoch` has taken over what the disk
    /// holds, or nobody believes it.
    pub(crate) fn confirm(&self, epoch: LeaderEpoch) -> io::Result<()> {
        let Evidence { stamp, before, .. } = self.evidence();
        if before == NONE || stamp == Stamp(0) {
            return Ok(());
        }
        write(self.device.as_ref(), stamp, NONE, epoch)?;
        self.evidence.lock().before = NONE;
        Ok(())
    }

    /// The same, written by a thread of the disk: heartbeats do not wait for a disk.
    pub(crate) fn confirm_later(&self, epoch: LeaderEpoch) {
        *self.confirmed_by.lock() = Some(epoch);
    }

    /// Writes what [`Disk::confirm_later`] was called for.
    pub(crate) fn write_confirmed(&self) {
        let epoch = self.confirmed_by.lock().take();
        if let Some(Err(error)) = epoch.map(|epoch| self.confirm(epoch)) {
            let path = self.config.path.display();
            tracing::warn!(%error, %path, "the stamp of the disk could not be confirmed");
        }
    }
}

/// `None`: there is none, it is damaged, or it was copied.
fn read(device: &dyn Device) -> io::Result<Option<Text>> {
    let Some(entry) = entry_of(device, NAME)? else { return Ok(None) };
    if entry.len > BYTES_MAX {
        return Ok(None);
    }
    let file = device.open(Path::new(NAME), Open::Read)?;
    let mut bytes = vec![0; entry.len as usize];
    let mut reads = [ReadAt { file: &file, offset: 0, into: &mut bytes, result: Ok(()) }];
    device.read(&mut reads);
    let [ReadAt { result, .. }] = reads;
    result?;
    let text = std::str::from_utf8(&bytes).ok().and_then(Text::parse);
    let Some(text) = text else {
        tracing::warn!("the file `stamp` is damaged: what this directory holds is not believed");
        return Ok(None);
    };
    if text.file != (entry.file, entry.born) {
        tracing::warn!("this directory is a copy of another one: what it holds is not believed");
        return Ok(None);
    }
    Ok(Some(text))
}

/// Replaces the file as a whole: written beside, synced, renamed, the directory synced.
fn write(
    device: &dyn Device,
    stamp: Stamp,
    before: (Stamp, Stamp),
    epoch: LeaderEpoch,
) -> io::Result<()> {
    if entry_of(device, TEMP)?.is_some() {
        device.remove(Path::new(TEMP))?;
    }
    let file = device.open(Path::new(TEMP), Open::Create)?;
    let entry = entry_of(device, TEMP)?.ok_or(io::ErrorKind::NotFound)?;
    let text = Text { stamp, before, epoch, file: (entry.file, entry.born) }.render();
    let pieces = [text.as_bytes()];
    let mut writes = [WriteAt { file: &file, offset: 0, pieces: &pieces, result: Ok(()) }];
    device.write(&mut writes);
    let [WriteAt { result, .. }] = writes;
    result?;
    file.sync_data()?;
    device.rename(Path::new(TEMP), Path::new(NAME))?;
    device.sync_dir(Path::new(""))
}

fn entry_of(device: &dyn Device, name: &str) -> io::Result<Option<Entry>> {
    let entries = device.list(Path::new(""))?;
    Ok(entries.into_iter().find(|entry| entry.name == name && !entry.is_dir))
}

/// A number that no other start has drawn.
fn draw() -> io::Result<Stamp> {
    let mut bytes = [0; 8];
    rt::random(&mut bytes)?;
    Ok(Stamp(u64::from_le_bytes(bytes).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_ssd::disk::Posix;
    use std::fs;

    fn text_in(dir: &Path) -> Text {
        Text::parse(&fs::read_to_string(dir.join(NAME)).unwrap()).unwrap()
    }

    #[test]
    fn each_start_draws_another_stamp_and_keeps_the_last_two() {
        let dir = tempfile::tempdir().unwrap();
        let device = Posix::open(dir.path()).unwrap();
        let first = stamp_anew(&device).unwrap().evidence;
        assert_eq!(first.before, NONE);
        let second = stamp_anew(&device).unwrap().evidence;
        assert_eq!(second.before, (first.stamp, Stamp(0)));
        let third = stamp_anew(&device).unwrap().evidence;
        assert_eq!(third.before, (second.stamp, first.stamp));
        assert_eq!(text_in(dir.path()).stamp, third.stamp);
    }

    /// A copy of the file is another file, wherever it lies.
    #[test]
    fn a_copy_has_no_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let copy = tempfile::tempdir().unwrap();
        stamp_anew(&Posix::open(dir.path()).unwrap()).unwrap();
        fs::copy(dir.path().join(NAME), copy.path().join(NAME)).unwrap();
        let device = Posix::open(copy.path()).unwrap();
        assert_eq!(stamp_anew(&device).unwrap().evidence.before, NONE);
        let moved = copy.path().join("moved");
        fs::create_dir(&moved).unwrap();
        fs::rename(dir.path().join(NAME), moved.join(NAME)).unwrap();
        let stamp = text_in(&moved).stamp;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&moved, mode).unwrap();
        let device = Posix::open(&moved).unwrap();
        assert_eq!(stamp_anew(&device).unwrap().evidence.before.0, stamp, "moved, not copied");
    }

    #[test]
    fn a_damaged_text_is_none() {
        let text = Text {
            stamp: Stamp(1),
            before: (Stamp(2), Stamp(0)),
            epoch: LeaderEpoch(7),
            file: (3, 4),
        };
        let good = text.render();
        assert_eq!(Text::parse(&good), Some(text));
        for cut in 0..good.len() {
            assert_eq!(Text::parse(&good[..cut]), None, "cut at {cut}");
        }
    }
}
