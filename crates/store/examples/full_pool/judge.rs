//! Calls of the store, each told to an oracle before it is made and after it has answered. Threads
//! share a judge; keys are judged apart, so it has many small oracles and no thread waits long.

use mooncrate::{Error, Stored};
use mooncrate_check::oracle::Counts;
use mooncrate_check::{Event, Got, OpId, Oracle, OracleConfig, PutId, What, payload};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::PutError;
use mooncrate_core::{KeyHash, key};
use mooncrate_wire::clock::boottime;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const SHARDS: u64 = 64;
/// Longer than any put of these rigs may stay open.
const UNKNOWN_SETTLES_AFTER: Duration = Duration::from_mins(1);

/// The judge of one run.
pub(crate) struct Judge {
    shards: Vec<Mutex<Oracle>>,
    violations: Mutex<Vec<String>>,
    next_op: AtomicU64,
    next_put: AtomicU32,
}

impl Default for Judge {
    fn default() -> Self {
        let config = OracleConfig {
            unknown_settles_after: Some(UNKNOWN_SETTLES_AFTER),
            ..Default::default()
        };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Oracle::new(config))).collect(),
            violations: Mutex::default(),
            next_op: AtomicU64::new(0),
            next_put: AtomicU32::new(0),
        }
    }
}

impl Judge {
    /// Stamps `len` bytes for this key and lets `call` store them.
    pub(crate) fn put(
        &self,
        name: &[u8],
        len: usize,
        call: impl FnOnce(&[u8]) -> Result<Stored, Error>,
    ) -> Result<Stored, Error> {
        let key = key::hash(name);
        let put = PutId::new(1, 1, self.next_put.fetch_add(1, Ordering::Relaxed));
        let mut value = vec![0; len];
        payload::fill(&mut value, put, key);
        self.tell(key, What::PutBegan { put, len: len as u64 });
        let stored = call(&value);
        self.tell(
            key,
            match &stored {
                Ok(Stored::New) => What::PutEnded { put },
                Ok(Stored::AlreadyThere) => What::PutRefused { put },
                Err(error) if surely_refused(error) => What::PutRefused { put },
                Err(_) => What::PutUnknown { put },
            },
        );
        stored
    }

    /// Judges what `call` finds; whether it was a value.
    pub(crate) fn get<V: Deref<Target = [u8]>>(
        &self,
        name: &[u8],
        call: impl FnOnce() -> Result<Option<V>, Error>,
    ) -> Result<Option<V>, Error> {
        let key = key::hash(name);
        let get = self.op();
        self.tell(key, What::GetBegan { get });
        let found = call();
        let got = match &found {
            Ok(Some(value)) => Got::of(value, key),
            Ok(None) => Got::Miss,
            Err(_) => Got::Failed,
        };
        self.tell(key, What::GetEnded { get, got });
        found
    }

    /// Judges a remove: once it has said that nothing is there, nothing may be found.
    pub(crate) fn remove(
        &self,
        name: &[u8],
        call: impl FnOnce() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let key = key::hash(name);
        let remove = self.op();
        self.tell(key, What::RemoveBegan { remove });
        let removed = call();
        self.tell(
            key,
            match &removed {
                Ok(_) => What::RemoveEnded { remove },
                Err(_) => What::RemoveUnknown { remove },
            },
        );
        removed
    }

    /// What was wrong, in words.
    pub(crate) fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// What was judged.
    pub(crate) fn counts(&self) -> Counts {
        self.shards.iter().map(|shard| lock(shard).counts()).sum()
    }

    fn op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    fn tell(&self, key: KeyHash, what: What) {
        let mut oracle = lock(&self.shards[(key.0 % SHARDS) as usize]);
        // Read under the lock: the order in which events are told is the order that counts.
        let event = Event { at: boottime(), key, what };
        if let Err(violation) = oracle.observe(&event) {
            lock(&self.violations).push(violation.to_string());
        }
    }
}

/// Refused before any byte moved.
fn surely_refused(error: &Error) -> bool {
    matches!(error, Error::Client(ClientError::Put(refused)) if *refused != PutError::NoSuchPut)
}

/// No code of ours panics under these locks; if an oracle does, the run is over anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no judge has panicked")
}
