//! Batches: one call for many keys, one result per key at its own index (G11).

use crate::client::{Client, Counters};
use crate::error::Error;
use crate::put::Stored;
use mooncrate_core::key;
use mooncrate_core::plan::Located;
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

    /// The values of many keys. All unknown places are asked for in one call, and reads from one
    /// node travel together.
    pub fn get_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let deadline = self.deadline();
        let located = self.locate_many(keys, deadline);
        let mut values: Vec<Option<Vec<u8>>> =
            located.iter().map(|l| Some(vec![0; l.as_ref()?.len as usize])).collect();
        let read = self.read_many(&located, &mut values, deadline);
        keys.iter()
            .zip(values)
            .zip(read)
            .map(|((key, value), read)| match (value, read) {
                (Some(value), true) => Ok(Some(value)),
                // Whatever went wrong, alone and with all its retries it is decided properly.
                _ => self.get(key),
            })
            .collect()
    }

    /// Places of keys, from the cache or from the master; `None` where that did not work.
    fn locate_many(&self, keys: &[&[u8]], deadline: Deadline) -> Vec<Option<Arc<Located>>> {
        let mut located: Vec<Option<Arc<Located>>> = keys
            .iter()
            .map(|key| self.cache.get(key::hash(key), key))
            .inspect(|found| {
                if found.is_some() {
                    Counters::add(&self.counters.cached);
                }
            })
            .collect();
        let unknown: Vec<usize> = (0..keys.len()).filter(|i| located[*i].is_none()).collect();
        if unknown.is_empty() {
            return located;
        }
        let ask: Vec<&[u8]> = unknown.iter().map(|index| keys[*index]).collect();
        let Ok(found) = self.master.locate(0, &ask, deadline) else { return located };
        for (index, found) in unknown.into_iter().zip(found) {
            if let Ok(found) = found {
                let found = Arc::new(found);
                self.cache.insert(key::hash(keys[index]), keys[index], Arc::clone(&found));
                located[index] = Some(found);
            }
        }
        located
    }

    /// Reads the first copy of each; which of them worked.
    fn read_many(
        &self,
        located: &[Option<Arc<Located>>],
        values: &mut [Option<Vec<u8>>],
        deadline: Deadline,
    ) -> Vec<bool> {
        let mut done = vec![false; located.len()];
        // Reads from one segment go to one transport, in one batch.
        let mut order: Vec<usize> = (0..located.len()).filter(|i| located[*i].is_some()).collect();
        let segment = |index: &usize| {
            let place = located[*index].as_ref()?;
            Some(place.replicas.first()?.segment)
        };
        order.sort_by_key(segment);
        for group in order.chunk_by(|a, b| segment(a) == segment(b)) {
            let Some(first) = located[group[0]].as_ref().and_then(|l| l.replicas.first()) else {
                continue;
            };
            let Ok(transport) = self.engine.transport(first, deadline) else { continue };
            let mut taken: Vec<(usize, Vec<u8>)> = group
                .iter()
                .map(|index| (*index, values[*index].take().expect("made for every place")))
                .collect();
            let mut reads: Vec<Read<'_>> = taken
                .iter_mut()
                .map(|(index, value)| {
                    let place = located[*index].as_ref().expect("grouped by it");
                    Read::new(place.replicas[0], place.len, place.seal, value)
                })
                .collect();
            transport.read(&mut reads, deadline);
            let worked: Vec<bool> = reads.iter().map(|read| read.result.is_ok()).collect();
            for ((index, value), worked) in taken.into_iter().zip(worked) {
                done[index] = worked;
                values[index] = Some(value);
            }
        }
        done
    }

    /// How the owner of a key is reached, for tools.
    pub fn path(&self, key: &[u8]) -> Result<Option<Path>, Error> {
        self.find(key, |located, deadline| {
            let first = located.replicas.first();
            let locator = first.ok_or(mooncrate_transfer::TransferError::NoRoute)?;
            Ok(self.engine.transport(locator, deadline)?.path())
        })
    }
}
