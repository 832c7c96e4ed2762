//! What we ask of etcd, in our own words: leases, the leader key, the epoch, what a leader keeps.
//!
//! One endpoint is used at a time. When it does not answer in time, or answers with an error, the
//! next one is used from then on: a member of etcd that is stopped or cut off costs one attempt.

use super::ElectionConfig;
use super::calls::{Answer, Asked, Compare, Entry, Member, Members, Op, Trouble, Txn, Watch};
use crate::kept::Kept;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::canary::{self, Canary};
use mooncrate_wire::task::{Handle, timeout};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Shortest and longest wait for one answer of etcd.
const ATTEMPT_MIN: Duration = Duration::from_millis(200);
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// How often a write of the leader is tried before its caller hears that it failed.
const KEEP_TRIES: u32 = 2;

/// Why etcd did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum EtcdError {
    #[error("etcd at {endpoint} did not answer in {waited:?} while {doing}")]
    Silent { endpoint: String, doing: &'static str, waited: Duration },
    #[error("etcd at {endpoint}, while {doing}: {source}")]
    Failed { endpoint: String, doing: &'static str, source: Trouble },
    #[error("etcd ended the watch on the leader")]
    WatchCut,
    #[error("the lease in etcd is over")]
    LeaseOver,
    #[error("this master does not lead any more")]
    NotOurs,
    #[error("an earlier write of this master to the key {key} came through late; try again")]
    Overtaken { key: String },
    #[error("the key {key} in etcd does not hold what a master wrote; repair or delete it")]
    Damaged { key: String },
    #[error("the name of this master is taken by the one at {at}")]
    NameTaken { at: String },
}

/// Who holds the leader key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) lease: i64,
    /// Its name and its address, as it wrote them.
    pub(super) name: String,
    pub(super) address: String,
}

/// What an election gives the winner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Won {
    pub(super) epoch: LeaderEpoch,
    /// What the last leader kept; `None`: there was none.
    pub(super) kept: Option<Kept>,
}

/// Our keys in etcd, behind one endpoint of several.
#[derive(Debug)]
pub(super) struct Etcd {
    endpoints: Vec<String>,
    leader: String,
    epoch: String,
    state: String,
    masters: String,
    attempt: Duration,
    members: Arc<dyn Members>,
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    /// Which endpoint is in use.
    at: usize,
    member: Option<Arc<dyn Member>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Etcd {
    pub(super) fn new(config: &ElectionConfig, members: Arc<dyn Members>) -> Self {
        let key = |name: &str| format!("{}/{name}", config.prefix);
        Self {
            endpoints: config.endpoints.clone(),
            leader: key("leader"),
            epoch: key("epoch"),
            state: key("state"),
            masters: key(&format!("masters/{}", config.name)),
            // Two attempts fit between a keep-alive that is due and the end of the term.
            attempt: (config.ttl * 3 / 10).clamp(ATTEMPT_MIN, ATTEMPT_MAX),
            members,
            link: Mutex::default(),
        }
    }

    /// One request, at the endpoint in use; after a failure the next one is in use.
    async fn ask<T>(
        &self,
        doing: &'static str,
        call: impl for<'a> FnOnce(&'a dyn Member) -> Asked<'a, T> + Send,
    ) -> Result<T, EtcdError> {
        let (at, member) = {
            let link = self.link.lock().await;
            (link.at, link.member.clone())
        };
        let endpoint = self.endpoints[at].clone();
        let asked = timeout(self.attempt, async {
            let member = match member {
                Some(member) => member,
                None => self.members.connect(&endpoint, self.attempt).await?,
            };
            let answer = call(&*member).await?;
            Ok::<_, Trouble>((member, answer))
        });
        let failure = match asked.await {
            Some(Ok((member, answer))) => {
                let mut link = self.link.lock().await;
                if link.at == at {
                    link.member = Some(member);
                }
                return Ok(answer);
            }
            Some(Err(source)) => EtcdError::Failed { endpoint, doing, source },
            None => EtcdError::Silent { endpoint, doing, waited: self.attempt },
        };
        let mut link = self.link.lock().await;
        if link.at == at {
            *link = Link { at: (at + 1) % self.endpoints.len(), member: None };
        }
        Err(failure)
    }

    /// A lease: its id, and how long etcd really keeps it.
    pub(super) async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), EtcdError> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        self.ask("asking for a lease", |member| member.grant(seconds)).await
    }

    /// Keeps a lease alive.
    pub(super) async fn renew(&self, lease: i64) -> Result<(), EtcdError> {
        let renewed = self.ask("keeping the lease", |member| member.keep_alive(lease)).await?;
        if renewed { Ok(()) } else { Err(EtcdError::LeaseOver) }
    }

    /// Ends a lease, and with it everything that is bound to it.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.ask("ending the lease", |member| member.revoke(lease)).await
    }

    /// Puts this process behind its name. `who` tells it from others of the same name.
    pub(super) async fn claim(&self, lease: i64, who: &str, at: &str) -> Result<(), EtcdError> {
        let value = format!("{who} {at}");
        let put = || Op::put(&self.masters, &*value, lease);
        let ours = Compare::Value(self.masters.clone(), value.clone());
        let otherwise = vec![Op::get(&self.masters)];
        let again = Txn { when: vec![ours], then: vec![put()], otherwise };
        let free = Compare::Absent(self.masters.clone());
        let claim = Txn { when: vec![free], then: vec![put()], otherwise: vec![Op::Txn(again)] };
        let mut answer = self.ask("claiming its name", |member| member.txn(claim)).await?;
        if answer.succeeded {
            return Ok(());
        }
        let Some(Answer::Txn(again)) = answer.answers.pop() else {
            return Err(damaged(&self.masters));
        };
        if again.succeeded {
            return Ok(());
        }
        let other = again.found(0).map(|entry| entry.value.clone()).unwrap_or_default();
        let at = other.split_once(' ').map_or(&*other, |(_, at)| at);
        Err(EtcdError::NameTaken { at: at.to_owned() })
    }

    /// Who leads.
    pub(super) async fn leader(&self) -> Result<Option<Leader>, EtcdError> {
        let found = self.ask("looking for the leader", |member| member.get(&self.leader)).await?;
        found.map(|entry| self.read_leader(&entry)).transpose()
    }

    fn read_leader(&self, entry: &Entry) -> Result<Leader, EtcdError> {
        let title = entry.value.split_once(' ').ok_or_else(|| damaged(&self.leader))?;
        let (name, address) = (title.0.to_owned(), title.1.to_owned());
        Ok(Leader { lease: entry.lease, name, address })
    }

    /// Takes the lead if nobody has it: the leader key and the next epoch in one transaction. `None`:
    /// somebody else was faster. If an earlier answer to this very question was lost, we lead already.
    pub(super) async fn campaign(&self, me: &Leader) -> Result<Option<Won>, EtcdError> {
        let found = self.ask("reading the epoch", |member| member.get(&self.epoch)).await?;
        let (last, revision) = match found {
            Some(entry) => (self.read_epoch(&entry)?, entry.revision),
            None => (LeaderEpoch(0), 0),
        };
        let next = match last {
            LeaderEpoch(1..) if canary::on(Canary::StandbyKeepsEpoch) => last,
            last => LeaderEpoch(last.0.saturating_add(1)),
        };
        let vacant = Compare::Absent(self.leader.clone());
        let same = Compare::Revision(self.epoch.clone(), revision);
        let title = format!("{} {}", me.name, me.address);
        let campaign = Txn {
            when: vec![vacant, same],
            then: vec![
                Op::get(&self.state),
                Op::put(&self.leader, title, me.lease),
                Op::put_epoch(&self.epoch, next),
            ],
            otherwise: vec![Op::get(&self.state), Op::get(&self.leader), Op::get(&self.epoch)],
        };
        let answer = self.ask("standing for election", |member| member.txn(campaign)).await?;
        let kept = answer.found(0).map(|entry| self.read_state(entry)).transpose()?;
        if answer.succeeded {
            return Ok(Some(Won { epoch: next, kept }));
        }
        let ours = answer.found(1).is_some_and(|entry| entry.lease == me.lease);
        match answer.found(2) {
            Some(epoch) if ours => Ok(Some(Won { epoch: self.read_epoch(epoch)?, kept })),
            _ => Ok(None),
        }
    }

    fn read_epoch(&self, entry: &Entry) -> Result<LeaderEpoch, EtcdError> {
        entry.value.parse().map(LeaderEpoch).map_err(|_| damaged(&self.epoch))
    }

    fn read_state(&self, entry: &Entry) -> Result<Kept, EtcdError> {
        Kept::parse(&entry.value).ok_or_else(|| damaged(&self.state))
    }

    /// Tells when the leader key changes.
    pub(super) async fn watch(&self) -> Result<Box<dyn Watch>, EtcdError> {
        self.ask("watching the leader", |member| member.watch(&self.leader)).await
    }

    /// A write of the leader; refused when its key is gone.
    async fn write(&self, lease: i64, key: &str, value: &str) -> Result<(), EtcdError> {
        let mut tries = 0;
        loop {
            match self.write_once(lease, key, value).await {
                Err(error) if !matches!(error, EtcdError::NotOurs) => {
                    tries += 1;
                    if tries >= KEEP_TRIES {
                        return Err(error);
                    }
                }
                written => return written,
            }
        }
    }

    /// One try. It writes over what it has read and nothing else: a try that nobody waits for any more may
    /// come through late, by another member, and must not undo what was written since.
    async fn write_once(&self, lease: i64, key: &str, value: &str) -> Result<(), EtcdError> {
        let found = self.ask("reading before it writes", |member| member.get(key)).await?;
        let revision = found.map_or(0, |entry| entry.revision);
        let leads = Compare::Lease(self.leader.clone(), lease);
        let same = Compare::Revision(key.to_owned(), revision);
        let write = Txn {
            when: vec![leads, same],
            then: vec![Op::put(key, value, 0)],
            otherwise: vec![Op::get(&self.leader)],
        };
        let answer = self.ask("writing", |member| member.txn(write)).await?;
        if answer.succeeded {
            return Ok(());
        }
        if answer.found(0).is_some_and(|entry| entry.lease == lease) {
            return Err(EtcdError::Overtaken { key: key.to_owned() });
        }
        Err(EtcdError::NotOurs)
    }
}

/// What a leader keeps in etcd while it leads.
#[derive(Debug)]
pub(crate) struct EtcdKeeper {
    etcd: Arc<Etcd>,
    /// The runtime whose thread carries the connection.
    runtime: Handle,
    lease: i64,
    epoch: LeaderEpoch,
    /// What is written there now; `None`: nobody knows, because a write failed.
    kept: Option<Kept>,
}

impl EtcdKeeper {
    pub(super) fn new(etcd: Arc<Etcd>, runtime: Handle, lease: i64, won: &Won) -> Self {
        Self { etcd, runtime, lease, epoch: won.epoch, kept: won.kept.clone() }
    }

    /// Makes etcd say this. Blocks: not for a thread that runs tasks.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<()> {
        if self.kept.as_ref() == Some(&kept) {
            return Ok(());
        }
        // A write that failed may have come through.
        self.kept = None;
        self.write(&self.etcd.state, &kept.render())?;
        self.kept = Some(kept);
        Ok(())
    }

    /// Reserves an epoch, so that the next leader's is higher. Blocks.
    pub(crate) fn raise(&mut self, epoch: LeaderEpoch) -> io::Result<()> {
        if epoch <= self.epoch {
            return Ok(());
        }
        self.write(&self.etcd.epoch, &epoch.0.to_string())?;
        self.epoch = epoch;
        Ok(())
    }

    fn write(&self, key: &str, value: &str) -> io::Result<()> {
        let written = self.runtime.block_on(self.etcd.write(self.lease, key, value));
        written.map_err(io::Error::other)
    }
}

fn damaged(key: &str) -> EtcdError {
    EtcdError::Damaged { key: key.to_owned() }
}
