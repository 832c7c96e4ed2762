//! Batches: one call for many keys, one result per key at its own index (G11).

use crate::client::Client;
use crate::error::Error;
use crate::get::{Source, patience, share};
use crate::put::Stored;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_transfer::{Path, Read};
use std::sync::Arc;

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
        let located = self.locate_many(keys, deadline);
        let mut values: Vec<Option<B>> =
            located.iter().map(|l| Some(make(l.as_ref()?.len() as usize))).collect();
        let done = self.read_copies(keys, &located, &mut values, deadline);
        let patience = patience(deadline);
        keys.iter()
            .zip(values)
            .zip(done)
            .map(|((key, value), done)| match (value, done) {
                (Some(value), true) => Ok(Some(value)),
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
        let mut located = self.locate_many(&keys, deadline);
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
        let each = items.iter_mut().zip(lens).zip(done);
        each.map(|(((key, target), len), done)| {
            if done {
                return Ok(Some(len));
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

    /// Places of keys, from the cache or from the master; `None` where that did not work.
    pub(crate) fn locate_many(
        &self,
        keys: &[&[u8]],
        deadline: Deadline,
    ) -> Vec<Option<Arc<Located>>> {
        let mut located: Vec<Option<Arc<Located>>> = keys
            .iter()
            .map(|key| {
                let hash = key::hash(key);
                let found = self.remembered(hash, key)?;
                self.cache_hit(hash, key);
                Some(found)
            })
            .collect();
        let unknown: Vec<usize> = (0..keys.len()).filter(|i| located[*i].is_none()).collect();
        if unknown.is_empty() {
            return located;
        }
        let ask: Vec<&[u8]> = unknown.iter().map(|index| keys[*index]).collect();
        let Ok(found) = self.ask_places(&ask, deadline) else { return located };
        for (index, found) in unknown.into_iter().zip(found) {
            if let Ok(found) = found {
                located[index] = Some(self.remember(key::hash(keys[index]), keys[index], found));
            }
        }
        located
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
                    self.count(located, Source { path: transport.path(), copy });
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
