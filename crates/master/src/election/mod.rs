//! Several masters, one leader: election and an epoch in etcd, and nothing else of ours there.
//!
//! ```text
//!   <prefix>/leader          name and address of the leader, bound to its lease
//!   <prefix>/epoch           the epoch of the last leader; only grows
//!   <prefix>/state           what the leader keeps for the next one: nodes and quotas
//!   <prefix>/masters/<name>  who runs under this name, bound to its lease
//! ```
//!
//! A master that finds no leader creates the leader key and raises the epoch in one transaction.
//! What the leader writes later is guarded by its key. The lease ends when the leader does, and the
//! others see the key go.
//!
//! What must stay true: no two leaders share an epoch; a leader stops granting before its lease can
//! have lapsed ([`crate::term`]); every election gives a fresh [`Master`](crate::Master), so that
//! nothing of an earlier term is answered in a later one; without etcd for longer than its lease a
//! leader steps down. Every wait has an end.

pub mod calls;
mod elector;
mod etcd;
mod network;

pub(crate) use etcd::EtcdKeeper;

use crate::config::MasterConfig;
use crate::seat::Seat;
use calls::Members;
use elector::Elector;
use etcd::Etcd;
use mooncrate_rt as rt;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::task::Runtime;
use network::Network;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};

/// How long a start waits for etcd beyond the lease of an earlier process of the same name.
const START_TIME: Duration = Duration::from_secs(3);

/// Between two looks whether etcd has answered at the start.
const START_LOOK: Duration = Duration::from_millis(2);

/// How masters elect their leader.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Where etcd is, as in `http://127.0.0.1:2379`; one of them is asked at a time.
    pub endpoints: Vec<String>,
    /// What the names of our keys begin with: the name of the cluster.
    pub prefix: String,
    /// This master's name, unlike that of any other.
    pub name: String,
    /// Where clients and nodes reach this master.
    pub advertise: String,
    /// How long a leader that has fallen silent keeps its seat. Whole seconds; etcd takes 2 s at least
    /// with its own defaults.
    pub ttl: Duration,
}

/// Why a master could not take part in an election.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// Two processes under one name.
    #[error(
        "a master named {name} is running already, at {at}; give each master a name of its own"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other one is.
        at: String,
    },
    /// The endpoints, the name or the prefix cannot be used.
    #[error("{0}")]
    BadConfig(String),
    /// A thread or a runtime.
    #[error("starting the election: {0}")]
    Io(#[from] io::Error),
}

impl ElectionConfig {
    /// Whether this can work at all; if not, what would.
    fn check(&self) -> Result<(), ElectionError> {
        let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        let bad = |why: String| Err(ElectionError::BadConfig(why));
        if self.endpoints.is_empty() {
            return bad("no etcd endpoint is named; write it as http://127.0.0.1:2379".into());
        }
        if let Some(odd) = self.endpoints.iter().find(|at| !at.starts_with("http://")) {
            return bad(format!("the etcd endpoint `{odd}` does not begin with http://"));
        }
        for (what, text) in [("name", &self.name), ("prefix", &self.prefix)] {
            if !plain(text) || text.contains('/') {
                return bad(format!(
                    "the {what} `{text}` must be letters without spaces or slashes"
                ));
            }
        }
        if !plain(&self.advertise) {
            return bad(format!("`{}` is no address to advertise", self.advertise));
        }
        Ok(())
    }
}

/// A master that stands for election. Dropping it resigns.
#[derive(Debug)]
pub struct Election {
    seat: Arc<Seat>,
    stop: watch::Sender<bool>,
    thread: Option<rt::Thread<()>>,
}

impl Election {
    /// Stands for election from now on. Returns when this master is known to etcd, or when etcd did not
    /// answer for a while: then it goes on trying. A name that somebody else holds is an error.
    pub fn start(config: ElectionConfig, master: MasterConfig) -> Result<Self, ElectionError> {
        Self::start_among(Arc::new(Network), config, master)
    }

    /// The same with members of etcd that are reached in another way.
    pub fn start_among(
        members: Arc<dyn Members>,
        config: ElectionConfig,
        master: MasterConfig,
    ) -> Result<Self, ElectionError> {
        config.check()?;
        let seat = Seat::vacant();
        let (stop, down) = watch::channel(false);
        let (tell, mut told) = oneshot::channel();
        let runtime = Runtime::new()?;
        let etcd = Arc::new(Etcd::new(&config, members));
        let until = boottime().plus(config.ttl + START_TIME);
        let elector = Elector::new(config, master, etcd, Arc::clone(&seat), down, tell);
        let handle = runtime.handle();
        let thread = rt::spawn("master-elect", move || runtime.block_on(elector.run(handle)))?;
        let election = Self { seat, stop, thread: Some(thread) };
        loop {
            match told.try_recv() {
                Ok(known) => return known.map(|()| election),
                Err(TryRecvError::Empty) if boottime() < until => rt::sleep(START_LOOK),
                Err(_) => return Ok(election),
            }
        }
    }

    /// The seat that this master takes when it is elected.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Leaves the seat and lets the others elect at once.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_with_a_reason() {
        let good = ElectionConfig {
            endpoints: vec!["http://127.0.0.1:1".into()],
            prefix: "mooncrate".into(),
            name: "m1".into(),
            advertise: "127.0.0.1:7411".into(),
            ttl: Duration::from_secs(2),
        };
        assert!(good.check().is_ok());
        let says = |config: ElectionConfig, words: &str| {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        says(ElectionConfig { endpoints: vec![], ..good.clone() }, "http://127.0.0.1:2379");
        says(ElectionConfig { endpoints: vec!["etcd:1".into()], ..good.clone() }, "etcd:1");
        says(ElectionConfig { name: "a b".into(), ..good.clone() }, "name");
        says(ElectionConfig { prefix: "a/b".into(), ..good.clone() }, "prefix");
        says(ElectionConfig { advertise: String::new(), ..good }, "advertise");
    }
}
