//! Batches: one call for many keys, one result per key at its own index (G11).

use crate::client::Client;
use crate::error::Error;
use crate::get::{Source, patience, share};
use crate::put::{Stored, spread};
use crate::reads::Remembered;
use mooncrate_core::error::GetError;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Medium, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_transfer::{Path, Read};
use std::sync::Arc;

/// Where keys are, as far as that is known.
type Places = Vec<Option<Arc<Located>>>;

/// What became of a key that has no place: no value, or an error. `None`: look again.
type Decided = Option<Result<(), Error>>;

impl Client {
    /// Stores values.
    pub fn put_batch(&self, items: &[(&[u8], &[u8])]) -> Vec<Result<Stored, Error>> {
        let values: Vec<[&[u8]; 1]> = items.iter().map(|(_, value)| [*value]).collect();
        let parts: Vec<(&[u8], &[&[u8]])> =
            items.iter().zip(&values).map(|((key, _), value)| (*key, &value[..])).collect();
        self.put_many(&parts, &self.put_config)
    }

    /// Stores values that lie in pieces, all with the same wishes.
    pub fn put_parts_batch(
        &self,
        items: &[(&[u8], &[&[u8]])],
        config: &PutConfig,
    ) -> Vec<Result<Stored, Error>> {
        self.put_many(items, config)
    }

    /// The values of many keys. All unknown places are asked for in one call, and reads from one
    /// node travel together.
    pub fn get_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        self.get_batch_with(keys, |len| vec![0; len])
    }

    /// The same in memory that `make` gives once a length is known: as long as it is asked to be, or
    /// that read fails.
    pub fn get_batch_with<B: AsMut<[u8]>>(
        &self,
        keys: &[&[u8]],
        mut make: impl FnMut(usize) -> B,
    ) -> Vec<Result<Option<B>, Error>> {
        let deadline = self.deadline();
        let (located, mut decided) = self.places(keys, deadline);
        let mut values: Vec<Option<B>> =
            located.iter().map(|l| Some(make(l.as_ref()?.len() as usize))).collect();
        let done = self.read_copies(keys, &located, &mut values, deadline);
        let patience = patience(deadline);
        keys.iter()
            .zip(values)
            .zip(done)
            .enumerate()
            .map(|(at, ((key, value), done))| match (value, done, decided[at].take()) {
                (Some(value), true, _) => Ok(Some(value)),
                (_, _, Some(decided)) => decided.map(|()| None),
                // Whatever went wrong, alone and with all its retries it is decided properly, but
                // within the time of the whole.
                _ => self.get_by(key, deadline, Some(patience), &mut make),
            })
            .collect()
    }

    /// Copies the values of many keys into the fronts of their targets; their lengths.
    pub fn get_into_batch(
        &self,
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Result<Option<usize>, Error>> {
        let deadline = self.deadline();
        let keys: Vec<&[u8]> = items.iter().map(|(key, _)| *key).collect();
        let (mut located, mut decided) = self.places(&keys, deadline);
        for (place, (_, target)) in located.iter_mut().zip(items.iter()) {
            // What does not fit is decided alone: the length may come from an old locator.
            place.take_if(|found| found.len() > target.len() as u64);
        }
        let lens: Vec<usize> =
            located.iter().map(|l| l.as_ref().map_or(0, |l| l.len() as usize)).collect();
        let mut fronts: Vec<Option<&mut [u8]>> = items
            .iter_mut()
            .zip(&located)
            .zip(&lens)
            .map(|(((_, target), found), len)| found.as_ref().map(|_| &mut target[..*len]))
            .collect();
        let done = self.read_copies(&keys, &located, &mut fronts, deadline);
        let patience = patience(deadline);
        let each = items.iter_mut().zip(lens).zip(done).enumerate();
        each.map(|(at, (((key, target), len), done))| {
            if done {
                return Ok(Some(len));
            }
            if let Some(decided) = decided[at].take() {
                return decided.map(|()| None);
            }
            self.get_into_by(key, target, deadline, Some(patience))
        })
        .collect()
    }

    /// Reads what was located, from its first copies, then from the second ones, and so on; which of
    /// them worked.
    fn read_copies<B: AsMut<[u8]>>(
        &self,
        keys: &[&[u8]],
        located: &[Option<Arc<Located>>],
        values: &mut [Option<B>],
        deadline: Deadline,
    ) -> Vec<bool> {
        let mut done = vec![false; keys.len()];
        let copies = located.iter().flatten().map(|l| l.replicas.len()).max().unwrap_or(0);
        for copy in 0..copies {
            // One more share than there are copies: for those whose places are stale.
            let deadline = share(deadline, copies + 1 - copy);
            let worked = self.read_many(located, copy, values, &mut done, deadline);
            for index in worked {
                let located = located[index].as_ref().expect("it was read from there");
                self.prefer(keys[index], located, 0, copy);
            }
        }
        done
    }

    /// Places of keys, from the cache or from the master. What has none may be decided all the same: there
    /// is no value (`Ok`), or there is no master to ask.
    pub(crate) fn places(&self, keys: &[&[u8]], deadline: Deadline) -> (Places, Vec<Decided>) {
        let mut decided: Vec<Decided> = keys.iter().map(|_| None).collect();
        let mut reads = Remembered::default();
        let mut located: Vec<Option<Arc<Located>>> =
            keys.iter().map(|key| self.remembered(key::hash(key), key, &mut reads)).collect();
        self.tell_reads(reads);
        let unknown: Vec<usize> = (0..keys.len()).filter(|i| located[*i].is_none()).collect();
        if unknown.is_empty() {
            return (located, decided);
        }
        let ask: Vec<&[u8]> = unknown.iter().map(|index| keys[*index]).collect();
        let found = match self.ask_places(&ask, deadline) {
            Ok(found) => found,
            Err(error) => {
                // Asking for each alone would wait for the same master as often as there are keys.
                for (index, error) in unknown.into_iter().zip(spread(error, ask.len())) {
                    decided[index] = Some(error);
                }
                return (located, decided);
            }
        };
        for (index, found) in unknown.into_iter().zip(found) {
            match found {
                Ok(found) => {
                    let found = self.remember(key::hash(keys[index]), keys[index], found);
                    located[index] = Some(found);
                }
                Err(GetError::NotFound) => {
                    self.counters.at(key::hash(keys[index]).0).misses.one();
                    decided[index] = Some(Ok(()));
                }
                // With its retries it is decided alone.
                Err(_) => {}
            }
        }
        (located, decided)
    }

    /// Reads the `copy`-th copy of each that is not done, and notes and says which of them worked.
    fn read_many<B: AsMut<[u8]>>(
        &self,
        located: &[Option<Arc<Located>>],
        copy: usize,
        values: &mut [Option<B>],
        done: &mut [bool],
        deadline: Deadline,
    ) -> Vec<usize> {
        // A striped value is read alone: its stripes travel at the same time.
        let place = |index: usize| {
            let whole = located[index].as_ref()?;
            whole.replicas.get(copy).filter(|_| whole.striping.stripes() == 1)
        };
        // Reads from one segment go to one transport, in one batch.
        let segment = |index: &usize| place(*index).map(|locator| locator.segment);
        let mut order: Vec<usize> =
            (0..located.len()).filter(|i| !done[*i] && segment(i).is_some()).collect();
        order.sort_by_key(segment);
        let groups: Vec<&[usize]> = order.chunk_by(|a, b| segment(a) == segment(b)).collect();
        let mut all_worked = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            // One node that stands still must not take the time of the others.
            let deadline = share(deadline, groups.len() - at);
            let first = place(group[0]).expect("filtered by it");
            let Ok(transport) = self.engine.transport(first, deadline) else { continue };
            let mut taken: Vec<(usize, B)> = group
                .iter()
                .map(|index| (*index, values[*index].take().expect("made for every place")))
                .collect();
            let mut reads: Vec<Read<'_>> = taken
                .iter_mut()
                .map(|(index, value)| {
                    let whole = located[*index].as_ref().expect("filtered by it");
                    Read::new(whole.replicas[copy], whole.len(), whole.seal, value.as_mut())
                })
                .collect();
            transport.read(&mut reads, deadline);
            let worked: Vec<bool> = reads.iter().map(|read| read.result.is_ok()).collect();
            for ((index, value), worked) in taken.into_iter().zip(worked) {
                done[index] = worked;
                values[index] = Some(value);
                if worked {
                    let located = located[index].as_ref().expect("filtered by it");
                    let disk = first.segment.medium() == Medium::Ssd;
                    self.count(located, Source { path: transport.path(), copy, disk });
                }
                all_worked.extend(worked.then_some(index));
            }
        }
        all_worked
    }

    /// How the owner of a key is reached, for tools.
    pub fn path(&self, key: &[u8]) -> Result<Option<Path>, Error> {
        let deadline = self.deadline();
        self.find(key, deadline, |located| {
            let first = located.replicas.first();
            let locator = first.ok_or(mooncrate_transfer::TransferError::NoRoute)?;
            Ok(self.engine.transport(locator, deadline)?.path())
        })
    }
}
