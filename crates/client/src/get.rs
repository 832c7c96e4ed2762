//! get: find, read, verify. A stale locator is looked up once more; a copy that does not verify or
//! does not answer is passed over for the next one.

use crate::client::{Client, Counters};
use crate::error::Error;
use mooncrate_core::error::GetError;
use mooncrate_core::key::{self, KeyHash};
use mooncrate_core::plan::Located;
use mooncrate_core::time::Deadline;
use mooncrate_transfer::{Read, TransferError, View};
use mooncrate_wire::DataError;
use std::sync::Arc;

/// How often an object is looked for when it keeps moving.
const TRIES_MAX: u32 = 4;

impl Client {
    /// The value of a key, or `None` if there is none.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.find(key, |located, deadline| {
            let mut value = vec![0; located.len as usize];
            self.read(located, &mut value, deadline)?;
            Ok(value)
        })
    }

    /// Copies the value into the front of `target`; its length, or `None` if there is no value.
    pub fn get_into(&self, key: &[u8], target: &mut [u8]) -> Result<Option<usize>, Error> {
        let have = target.len() as u64;
        let mut short = None;
        let found = self.find(key, |located, deadline| {
            if located.len > have {
                short = Some(located.len);
                return Ok(0);
            }
            let len = located.len as usize;
            self.read(located, &mut target[..len], deadline)?;
            Ok(len)
        })?;
        match short {
            Some(need) if found.is_some() => Err(Error::BufferTooSmall { need, have }),
            _ => Ok(found),
        }
    }

    /// The value in place, without a copy where the owner is in this process or on this host;
    /// `None` if there is no value. The bytes stay while the view lives.
    pub fn view(&self, key: &[u8]) -> Result<Option<View>, Error> {
        self.find(key, |located, deadline| {
            let mut last = TransferError::NotTried;
            for locator in &located.replicas {
                let transport = self.engine.transport(locator, deadline)?;
                match transport.view(locator, located.len, located.seal, deadline) {
                    Ok(Some(view)) => return Ok(view),
                    // Over the network there is nothing to look at in place: a copy of our own.
                    Ok(None) => {
                        let mut value = vec![0; located.len as usize];
                        self.read(located, &mut value, deadline)?;
                        return Ok(View::owned(value));
                    }
                    Err(error) => last = self.note(error),
                }
            }
            Err(last)
        })
    }

    /// Bytes of the value, or `None` if there is none.
    pub fn size(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        Ok(self.locate(key, self.deadline())?.map(|located| located.len))
    }

    /// Finds an object and does something with it; when its place was stale, finds it again.
    pub(crate) fn find<T>(
        &self,
        key: &[u8],
        mut work: impl FnMut(&Arc<Located>, Deadline) -> Result<T, TransferError>,
    ) -> Result<Option<T>, Error> {
        key::check(key).map_err(GetError::from)?;
        let hash = key::hash(key);
        let deadline = self.deadline();
        let mut located = self.cache.get(hash, key);
        let mut asked = located.is_none();
        if !asked {
            Counters::add(&self.counters.cached);
        }
        for _ in 0..TRIES_MAX {
            let current = match located.take() {
                Some(cached) => cached,
                None => match self.locate_hashed(hash, key, deadline)? {
                    Some(fresh) => fresh,
                    None => return Ok(None),
                },
            };
            match work(&current, deadline) {
                Ok(result) => return Ok(Some(result)),
                Err(error) => {
                    self.cache.forget(hash, key, &current);
                    for locator in &current.replicas {
                        self.engine.forget(locator.segment);
                    }
                    // A fresh locator may help; a fresh one that fails the same way does not.
                    if asked && !error.is_stale() {
                        return Err(error.into());
                    }
                    Counters::add(&self.counters.stale);
                    asked = true;
                }
            }
        }
        Err(Error::Restless { tries: TRIES_MAX })
    }

    /// Reads a value from the best copy that verifies.
    pub(crate) fn read(
        &self,
        located: &Located,
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        let mut last = TransferError::NotTried;
        for locator in &located.replicas {
            let transport = match self.engine.transport(locator, deadline) {
                Ok(transport) => transport,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let mut reads = [Read::new(*locator, located.len, located.seal, &mut *into)];
            transport.read(&mut reads, deadline);
            let [read] = reads;
            match read.result {
                Ok(()) => return Ok(()),
                Err(error) => last = self.note(error),
            }
        }
        Err(last)
    }

    /// Counts an error on its way.
    pub(crate) fn note(&self, error: TransferError) -> TransferError {
        if matches!(error, TransferError::Data(DataError::Corrupt)) {
            Counters::add(&self.counters.corrupt);
        }
        error
    }

    fn locate(&self, key: &[u8], deadline: Deadline) -> Result<Option<Arc<Located>>, Error> {
        key::check(key).map_err(GetError::from)?;
        self.locate_hashed(key::hash(key), key, deadline)
    }

    fn locate_hashed(
        &self,
        hash: KeyHash,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<Option<Arc<Located>>, Error> {
        let mut found = self.master.locate(0, &[key], deadline)?;
        match found.pop().expect("one result per item") {
            Ok(located) => {
                let located = Arc::new(located);
                self.cache.insert(hash, key, Arc::clone(&located));
                Ok(Some(located))
            }
            Err(GetError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
