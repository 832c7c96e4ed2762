//! The calls of etcd that an election needs, and nothing else of it: over the network, or in a world.

use mooncrate_core::LeaderEpoch;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Why a member of etcd did not do what was asked, in its own words.
pub type Trouble = Box<dyn Error + Send + Sync>;

/// An answer that is on its way.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'a>>;

/// How members of etcd are reached.
pub trait Members: Send + Sync + fmt::Debug {
    /// Connects to one. It must not answer from memory when it has lost the others.
    fn connect<'a>(&'a self, endpoint: &'a str, time: Duration) -> Asked<'a, Arc<dyn Member>>;
}

/// A member of etcd. An answer that nobody waits for any more may still take effect.
pub trait Member: Send + Sync {
    /// A lease: its id, and how long it is really kept.
    fn grant(&self, seconds: i64) -> Asked<'_, (i64, Duration)>;

    /// Keeps a lease alive; false: it is over.
    fn keep_alive(&self, lease: i64) -> Asked<'_, bool>;

    /// Ends a lease, and with it everything that is bound to it.
    fn revoke(&self, lease: i64) -> Asked<'_, ()>;

    /// What is at a key.
    fn get(&self, key: &str) -> Asked<'_, Option<Entry>>;

    /// All of it at once.
    fn txn(&self, txn: Txn) -> Asked<'_, Done>;

    /// Tells from now on when a key changes.
    fn watch(&self, key: &str) -> Asked<'_, Box<dyn Watch>>;
}

/// Tells when a key changes.
pub trait Watch: Send {
    /// Waits for the next change; false: there will be no more.
    fn change(&mut self) -> Asked<'_, bool>;
}

/// What is at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: String,
    /// To which lease it is bound; 0: none.
    pub lease: i64,
    /// Which write of the store wrote it.
    pub revision: i64,
}

/// Reads and writes that happen together.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// What must be so.
    pub when: Vec<Compare>,
    /// What is done then.
    pub then: Vec<Op>,
    /// What is done otherwise.
    pub otherwise: Vec<Op>,
}

/// What must be so of a key.
#[derive(Clone, Debug)]
pub enum Compare {
    /// Nothing is there.
    Absent(String),
    /// This value is there.
    Value(String, String),
    /// It is bound to this lease.
    Lease(String, i64),
    /// It was written last by this write; 0: by none.
    Revision(String, i64),
}

/// A part of a transaction.
#[derive(Clone, Debug)]
pub enum Op {
    /// Reads.
    Get(String),
    /// Writes.
    Put {
        /// Where.
        key: String,
        /// What.
        value: String,
        /// To which lease it is bound; 0: none.
        lease: i64,
    },
    /// Another one inside of it.
    Txn(Txn),
}

/// What became of a transaction.
#[derive(Clone, Debug)]
pub struct Done {
    /// Whether everything was as it must be.
    pub succeeded: bool,
    /// What each part came to.
    pub answers: Vec<Answer>,
}

/// What a part of a transaction came to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of a read.
    Get(Option<Entry>),
    /// Of a write.
    Put,
    /// Of another one inside of it.
    Txn(Done),
}

impl Op {
    pub(super) fn get(key: &str) -> Self {
        Self::Get(key.to_owned())
    }

    /// `lease`: 0: it stays.
    pub(super) fn put(key: &str, value: impl Into<String>, lease: i64) -> Self {
        Self::Put { key: key.to_owned(), value: value.into(), lease }
    }

    pub(super) fn put_epoch(key: &str, epoch: LeaderEpoch) -> Self {
        Self::put(key, epoch.0.to_string(), 0)
    }
}

impl Done {
    /// What a read has found.
    pub(super) fn found(&self, index: usize) -> Option<&Entry> {
        match self.answers.get(index)? {
            Answer::Get(entry) => entry.as_ref(),
            _ => None,
        }
    }
}
