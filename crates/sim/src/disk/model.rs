//! A backend so small that it is surely right, and others that are surely wrong: the rig is judged by them.
//! A file per record; everything in one piece.

use super::rig::Opens;
use super::swarm::Swarm;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::{LeaderEpoch, ObjectId, Seal};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::sums::seal_of;
use mooncrate_rt as rt;
use mooncrate_ssd::disk::{Disk, Open};
use mooncrate_ssd::{
    Backend, KeepError, Load, LoadError, NewRecord, ReadAt, Record, RecordId, Recovery, Room,
    Ticket, Usage, WriteAt,
};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Nothing,
    NoSync,
    NoDirSync,
    SyncErrorIgnored,
    OpenVerifiesNothing,
    LoadVerifiesNothing,
    RemovalNotSynced,
    DeletedAtOnce,
    DeletedUnderReaders,
    BooksForgetNames,
    PromisesLeak,
    ChoosingHidesOthers,
    ScrubTellsUnreadable,
    ValueBytesForgotten,
}

const HEAD: usize = 48;
const ROOT: &str = "";

#[derive(Debug)]
struct Model {
    disk: Arc<dyn Disk>,
    wrong: Wrong,
    limit: u64,
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<RecordId, Slot>,
    used: u64,
    /// Bytes that a bug on purpose never gives back.
    leaked: u64,
    next_file: u64,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Slot {
    file: u64,
    bytes: u64,
    len: u64,
    readers: u32,
    hidden: bool,
    /// Not served again.
    bad: bool,
    /// Somebody deletes it.
    deleting: bool,
    /// Its file has no name any more.
    gone: bool,
}

impl Slot {
    fn new(file: u64, bytes: u64, len: u64) -> Self {
        Self {
            file,
            bytes,
            len,
            readers: 0,
            hidden: false,
            bad: false,
            deleting: false,
            gone: false,
        }
    }
}

fn path(file: u64) -> PathBuf {
    PathBuf::from(format!("r{file}"))
}

fn encode(new: &NewRecord<'_>) -> Vec<u8> {
    let words = [
        new.id.object.epoch.0,
        new.id.object.sequence,
        u64::from(new.id.stripe),
        new.seal.0,
        new.value.len() as u64,
        new.label.len() as u64,
    ];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(new.label);
    bytes.extend(new.value);
    bytes.extend(mooncrate_mem::crc::crc(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], verify: bool) -> Option<(Record, &[u8])> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    if verify && u64::from_le_bytes(*sum) != mooncrate_mem::crc::crc(body) {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(*body.get(8 * at..)?.first_chunk()?));
    let object = ObjectId { epoch: LeaderEpoch(word(0)?), sequence: word(1)? };
    let id = RecordId { object, stripe: u8::try_from(word(2)?).ok()? };
    let (len, label) = (word(4)?, usize::try_from(word(5)?).ok()?);
    let value = body.get(HEAD.checked_add(label)?..)?;
    if value.len() as u64 != len {
        return None;
    }
    let label = body[HEAD..HEAD + label].into();
    Some((Record { id, label, len, seal: Seal(word(3)?) }, value))
}

fn read(disk: &dyn Disk, file: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(&path(file), Open::Read)?;
    // Aligned, because how a disk cuts its transfers depends on that.
    let mut into = Room::new(bytes as usize);
    into.set_len(bytes as usize);
    let mut reads = [ReadAt { file: &file, offset: 0, into: &mut into, result: Ok(()) }];
    disk.read(&mut reads);
    let [ReadAt { result, .. }] = reads;
    result.map(|()| into.to_vec())
}

impl Model {
    fn keep_one(&self, new: &NewRecord<'_>) -> Result<(), KeepError> {
        if seal_of(new.value) != new.seal {
            return Err(KeepError::Corrupt);
        }
        let bytes = encode(new);
        let need = bytes.len() as u64;
        let file = {
            let mut state = self.inner.state.lock();
            if state.records.contains_key(&new.id) {
                return Err(KeepError::Exists);
            }
            let used = state.used + state.leaked;
            if used + need > self.limit {
                return Err(KeepError::Full { need, used, limit: self.limit });
            }
            state.used += need;
            state.next_file += 1;
            state.next_file
        };
        if let Err(error) = self.write(file, &bytes) {
            // As far as the disk lets us; if it does not, the next start decides.
            match self.disk.remove(&path(file)) {
                Err(left) if left.kind() != io::ErrorKind::NotFound => {}
                _ => self.inner.state.lock().used -= need,
            }
            let _ = self.disk.sync_dir(ROOT.as_ref());
            return Err(error.into());
        }
        let slot = Slot::new(file, need, new.value.len() as u64);
        self.inner.state.lock().records.insert(new.id, slot);
        Ok(())
    }

    fn write(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.disk.open(&path(file), Open::Create)?;
        let mut room = Room::new(bytes.len());
        room.push(bytes);
        let pieces = [&room[..]];
        let mut writes = [WriteAt { file: &file, offset: 0, pieces: &pieces, result: Ok(()) }];
        self.disk.write(&mut writes);
        let [WriteAt { result, .. }] = writes;
        result?;
        match self.wrong {
            Wrong::NoSync => {}
            Wrong::SyncErrorIgnored => drop(file.sync_data()),
            _ => file.sync_data()?,
        }
        if self.wrong == Wrong::NoDirSync { Ok(()) } else { self.disk.sync_dir(ROOT.as_ref()) }
    }

    fn load_one(&self, load: &mut Load<'_>) -> Result<(), LoadError> {
        let slot = {
            let mut state = self.inner.state.lock();
            let slot = state.records.get_mut(&load.id).filter(|slot| !slot.hidden && !slot.bad);
            let slot = slot.ok_or(LoadError::Missing)?;
            slot.readers += 1;
            slot.clone()
        };
        let bytes = read(&*self.disk, slot.file, slot.bytes);
        {
            let mut state = self.inner.state.lock();
            if let Some(slot) = state.records.get_mut(&load.id) {
                slot.readers -= 1;
            }
            self.inner.left.notify_all();
        }
        let bytes = bytes.map_err(LoadError::Disk)?;
        let sloppy = self.wrong == Wrong::LoadVerifiesNothing;
        let (record, value) = decode(&bytes, !sloppy).ok_or(LoadError::Corrupt)?;
        let same = record.id == load.id && *record.label == *load.label && record.seal == load.seal;
        if !sloppy && (!same || seal_of(value) != load.seal) {
            return Err(LoadError::Corrupt);
        }
        if let Some(sums) = &mut load.sums {
            sums.clear();
            sums.extend(value.chunks(SLICE_BYTES as usize).map(mooncrate_mem::crc::crc));
        }
        let part = value.get(load.start as usize..(load.start + load.want) as usize);
        load.into[..load.want as usize].copy_from_slice(part.ok_or(LoadError::OutOfBounds)?);
        Ok(())
    }

    /// Takes records out of the index, waits for their readers, and deletes their files.
    fn delete(&self, ids: &[RecordId], wait: Duration) -> io::Result<()> {
        let mut state = self.inner.state.lock();
        for id in ids {
            if let Some(slot) = state.records.get_mut(id) {
                slot.hidden = true;
            }
        }
        if self.wrong != Wrong::DeletedUnderReaders {
            let read = |state: &State| {
                ids.iter().any(|id| state.records.get(id).is_some_and(|slot| slot.readers > 0))
            };
            while read(&state) {
                if self.inner.left.wait_for(&mut state, wait).timed_out() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        // What somebody else deletes is gone when they are done, and not before.
        while ids.iter().any(|id| state.records.get(id).is_some_and(|slot| slot.deleting)) {
            self.inner.left.wait(&mut state);
        }
        let mut mine = Vec::new();
        for id in ids {
            if let Some(slot) = state.records.get_mut(id) {
                slot.deleting = true;
                mine.push((*id, slot.clone()));
            }
        }
        drop(state);
        let done = self.delete_files(&mine);
        let mut state = self.inner.state.lock();
        for (id, _) in mine {
            if done.is_ok() {
                state.records.remove(&id);
            } else if let Some(slot) = state.records.get_mut(&id) {
                slot.deleting = false;
            }
        }
        self.inner.left.notify_all();
        done
    }

    /// Hides what is not hidden, and shows it again when others had a turn.
    fn hide_others_for_a_moment(&self) {
        let mut others = Vec::new();
        for (id, slot) in &mut self.inner.state.lock().records {
            if !std::mem::replace(&mut slot.hidden, true) {
                others.push(*id);
            }
        }
        rt::step();
        let mut state = self.inner.state.lock();
        for id in others {
            if let Some(slot) = state.records.get_mut(&id).filter(|slot| !slot.deleting) {
                slot.hidden = false;
            }
        }
    }

    fn delete_files(&self, slots: &[(RecordId, Slot)]) -> io::Result<()> {
        for (id, slot) in slots {
            match self.disk.remove(&path(slot.file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && slot.gone => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let mut state = self.inner.state.lock();
                    if let Some(slot) = state.records.get_mut(id) {
                        slot.gone = true;
                    }
                    if self.wrong != Wrong::BooksForgetNames {
                        state.used -= slot.bytes;
                    }
                    if self.wrong == Wrong::PromisesLeak {
                        state.leaked += 8;
                    }
                }
            }
        }
        if self.wrong == Wrong::RemovalNotSynced {
            Ok(())
        } else {
            self.disk.sync_dir(ROOT.as_ref())
        }
    }
}

impl Backend for Model {
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        records.iter().map(|new| self.keep_one(new)).collect()
    }

    fn load(&self, loads: &mut [Load<'_>]) {
        for load in loads {
            load.result = self.load_one(load);
            if matches!(load.result, Err(LoadError::Corrupt))
                && let Some(slot) = self.inner.state.lock().records.get_mut(&load.id)
            {
                slot.bad = true;
            }
        }
    }

    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        self.delete(ids, Duration::from_hours(1))
    }

    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>> {
        let mut state = self.inner.state.lock();
        let (mut ids, mut sum) = (Vec::new(), 0);
        for (id, slot) in &mut state.records {
            if sum < bytes && !slot.hidden {
                slot.hidden = true;
                sum += slot.bytes;
                ids.push(*id);
            }
        }
        drop(state);
        if self.wrong == Wrong::ChoosingHidesOthers {
            self.hide_others_for_a_moment();
        }
        if self.wrong == Wrong::DeletedAtOnce {
            let _ = self.delete(&ids, Duration::from_hours(1));
        }
        let model = Self {
            disk: Arc::clone(&self.disk),
            wrong: self.wrong,
            limit: self.limit,
            inner: Arc::clone(&self.inner),
        };
        (!ids.is_empty()).then(|| Box::new(Hidden { model, ids, bytes: sum, done: false }) as _)
    }

    fn scrub(&self, _cursor: u64, _bytes: u64) -> (Vec<RecordId>, u64) {
        let mut bad = Vec::new();
        if self.wrong == Wrong::ScrubTellsUnreadable {
            let records: Vec<_> = self.inner.state.lock().records.clone().into_iter().collect();
            let unread = |slot: &Slot| read(&*self.disk, slot.file, slot.bytes).is_err();
            let unread = records.into_iter().filter(|(_, slot)| !slot.hidden && unread(slot));
            bad.extend(unread.map(|(id, _)| id));
        }
        (bad, 0)
    }

    fn token(&self) -> u64 {
        1
    }

    fn usage(&self) -> Usage {
        let state = self.inner.state.lock();
        let live = || state.records.values().filter(|slot| !slot.hidden && !slot.bad);
        Usage {
            records: live().count() as u64,
            value_bytes: match self.wrong {
                Wrong::ValueBytesForgotten if state.next_file % 8 == 7 => 0,
                _ => live().map(|slot| slot.len).sum(),
            },
            used: state.used,
            limit: self.limit,
            on_disk: state.used,
            written: state.used,
        }
    }
}

#[derive(Debug)]
struct Hidden {
    model: Model,
    ids: Vec<RecordId>,
    bytes: u64,
    done: bool,
}

impl Ticket for Hidden {
    fn records(&self) -> &[RecordId] {
        &self.ids
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self: Box<Self>, _wait: Duration) -> io::Result<()> {
        self.done = true;
        self.model.delete(&self.ids, Duration::from_hours(1))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.model.inner.state.lock();
            for id in &self.ids {
                if let Some(slot) = state.records.get_mut(id) {
                    slot.hidden = false;
                }
            }
        }
    }
}

impl Opens for Wrong {
    fn backends(&self) -> usize {
        1
    }

    fn open(
        &self,
        swarm: &Swarm,
        disk: Arc<dyn Disk>,
        found: &mut dyn FnMut(Record),
    ) -> Result<(Arc<dyn Backend>, Recovery), String> {
        let mut recovery = Recovery::default();
        let mut state = State::default();
        let entries = disk.list(Path::new(ROOT)).map_err(|error| error.to_string())?;
        for entry in entries {
            let file: u64 = entry.name[1..].parse().map_err(|_| "a foreign file".to_owned())?;
            let bytes = read(&*disk, file, entry.len).map_err(|error| error.to_string())?;
            state.next_file = state.next_file.max(file);
            let verify = *self != Self::OpenVerifiesNothing;
            match decode(&bytes, verify) {
                Some((record, value)) if !verify || seal_of(value) == record.seal => {
                    // It may be in the memory of the kernel only.
                    let handle = disk.open(&path(file), Open::Write);
                    handle.and_then(|file| file.sync_data()).map_err(|error| error.to_string())?;
                    let slot = Slot::new(file, entry.len, record.len);
                    state.used += entry.len;
                    recovery.records += 1;
                    recovery.value_bytes += record.len;
                    state.records.insert(record.id, slot);
                    found(record);
                }
                _ => {
                    recovery.dropped += 1;
                    disk.remove(&path(file)).map_err(|error| error.to_string())?;
                }
            }
        }
        disk.sync_dir(Path::new(ROOT)).map_err(|error| error.to_string())?;
        let inner = Inner { state: Mutex::new(state), left: Condvar::new() };
        let model = Model { disk, wrong: *self, limit: swarm.limit, inner: Arc::new(inner) };
        Ok((Arc::new(model), recovery))
    }
}

mod tests {
    use super::*;
    use crate::disk::rig::run;
    use crate::disk::runner::Outcome;
    use crate::disk::swarm::Load;
    use crate::world::Watch;
    use mooncrate_ssd::disk::sim::Rates;

    fn outcome(wrong: Wrong, seed: u64) -> Outcome {
        run(Swarm::draw(seed, Some(300), 1), &wrong, Watch { words: true, ..Watch::default() })
    }

    #[test]
    fn the_right_one_passes() {
        for seed in 0..60 {
            let outcome = outcome(Wrong::Nothing, seed);
            if let Some(failure) = outcome.failure {
                panic!("seed {seed}: {failure}\n{}", outcome.lines.join("\n"));
            }
        }
    }

    /// What a seed draws, where the bug can show: the fault that it needs happens, and lives end the way that
    /// brings it out. What is right passes there, too.
    fn ground(wrong: Wrong, seed: u64) -> Swarm {
        let mut swarm = Swarm::draw(seed, Some(300), 1);
        let mut rates = Rates::default();
        match wrong {
            Wrong::SyncErrorIgnored => rates.sync_error = 30_000,
            Wrong::LoadVerifiesNothing => rates.flip = 3_000,
            Wrong::ScrubTellsUnreadable => rates.read_error = 30_000,
            _ => {}
        }
        swarm.rates = rates;
        let Load { load, remove, evict, scrub, take_back, .. } = &mut swarm.load;
        match wrong {
            Wrong::RemovalNotSynced => *remove = 40,
            Wrong::DeletedAtOnce => (*evict, *take_back) = (15, 500),
            Wrong::DeletedUnderReaders => {
                (*remove, *evict, swarm.actors, swarm.switch) = (40, 15, 4, 700);
            }
            Wrong::BooksForgetNames => *evict = 15,
            Wrong::PromisesLeak | Wrong::ValueBytesForgotten => {
                (*evict, *remove, swarm.life_ops, swarm.cut) = (15, 20, 40, 0);
            }
            Wrong::ChoosingHidesOthers => {
                (*load, *evict, *remove, swarm.actors, swarm.switch) = (100, 15, 0, 4, 700);
            }
            Wrong::ScrubTellsUnreadable => *scrub = 20,
            _ => swarm.cut = 900,
        }
        swarm
    }

    #[test]
    fn every_wrong_one_is_caught() {
        for wrong in [
            Wrong::NoSync,
            Wrong::NoDirSync,
            Wrong::SyncErrorIgnored,
            Wrong::OpenVerifiesNothing,
            Wrong::LoadVerifiesNothing,
            Wrong::RemovalNotSynced,
            Wrong::DeletedAtOnce,
            Wrong::DeletedUnderReaders,
            Wrong::BooksForgetNames,
            Wrong::PromisesLeak,
            Wrong::ChoosingHidesOthers,
            Wrong::ScrubTellsUnreadable,
            Wrong::ValueBytesForgotten,
        ] {
            let fails = |opens: Wrong, seed| {
                let outcome = run(ground(wrong, seed), &opens, Watch::default());
                outcome.failure.map(|failure| (seed, failure))
            };
            let caught = (0..200).find_map(|seed| fails(wrong, seed));
            let (seed, failure) = caught.unwrap_or_else(|| panic!("{wrong:?} escaped"));
            println!("{wrong:?} caught by seed {seed}: {failure}");
            let right = fails(Wrong::Nothing, seed);
            assert!(right.is_none(), "the right one fails, too: {right:?}");
        }
    }

    #[test]
    fn one_seed_is_one_run() {
        for seed in 0..12 {
            let (first, second) = (outcome(Wrong::Nothing, seed), outcome(Wrong::Nothing, seed));
            assert_eq!((first.hash, first.tally), (second.hash, second.tally), "seed {seed}");
        }
    }
}
