//! What we ask of etcd, in our own words: leases, the leader key, the epoch, what a leader keeps.
//!
//! One endpoint is used at a time. When it does not answer in time, or answers with an error, the
//! next one is used from then on: a member of etcd that is stopped or cut off costs one attempt.

use super::ElectionConfig;
use crate::kept::Kept;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetResponse, KeyValue, PutOptions, Txn,
    TxnOp, TxnOpResponse, WatchStream,
};
use mooncrate_core::LeaderEpoch;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

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
    Failed { endpoint: String, doing: &'static str, source: Error },
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
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    /// Which endpoint is in use.
    at: usize,
    client: Option<Client>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Etcd {
    pub(super) fn new(config: &ElectionConfig) -> Self {
        let key = |name: &str| format!("{}/{name}", config.prefix);
        Self {
            endpoints: config.endpoints.clone(),
            leader: key("leader"),
            epoch: key("epoch"),
            state: key("state"),
            masters: key(&format!("masters/{}", config.name)),
            // Two attempts fit between a keep-alive that is due and the end of the term.
            attempt: (config.ttl * 3 / 10).clamp(ATTEMPT_MIN, ATTEMPT_MAX),
            link: Mutex::default(),
        }
    }

    /// One request, at the endpoint in use; after a failure the next one is in use.
    async fn ask<T>(
        &self,
        doing: &'static str,
        call: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, EtcdError> {
        let (at, client) = {
            let link = self.link.lock().await;
            (link.at, link.client.clone())
        };
        let endpoint = self.endpoints[at].clone();
        let asked = timeout(self.attempt, async {
            let mut client = match client {
                Some(client) => client,
                None => Client::connect([&endpoint], Some(self.options())).await?,
            };
            let answer = call(&mut client).await?;
            Ok::<_, Error>((client, answer))
        });
        let failure = match asked.await {
            Ok(Ok((client, answer))) => {
                let mut link = self.link.lock().await;
                if link.at == at {
                    link.client = Some(client);
                }
                return Ok(answer);
            }
            Ok(Err(source)) => EtcdError::Failed { endpoint, doing, source },
            Err(_) => EtcdError::Silent { endpoint, doing, waited: self.attempt },
        };
        let mut link = self.link.lock().await;
        if link.at == at {
            *link = Link { at: (at + 1) % self.endpoints.len(), client: None };
        }
        Err(failure)
    }

    fn options(&self) -> ConnectOptions {
        // A member that has lost its peers must say so, instead of answering from memory.
        ConnectOptions::new().with_connect_timeout(self.attempt).with_require_leader(true)
    }

    /// A lease: its id, and how long etcd really keeps it.
    pub(super) async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), EtcdError> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        let granted =
            self.ask("asking for a lease", async |c| c.lease_grant(seconds, None).await).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
        Ok((granted.id(), ttl))
    }

    /// Keeps a lease alive.
    pub(super) async fn renew(&self, lease: i64) -> Result<(), EtcdError> {
        let renewed = self.ask("keeping the lease", async |client| {
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(Error::LeaseKeepAliveError(why)) if why.contains("not found") => Ok(false),
                Err(error) => Err(error),
            }
        });
        if renewed.await? { Ok(()) } else { Err(EtcdError::LeaseOver) }
    }

    /// Ends a lease, and with it everything that is bound to it.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.ask("ending the lease", async |c| c.lease_revoke(lease).await).await.map(drop)
    }

    /// Puts this process behind its name. `who` tells it from others of the same name.
    pub(super) async fn claim(&self, lease: i64, who: &str, at: &str) -> Result<(), EtcdError> {
        let value = format!("{who} {at}");
        let put = || TxnOp::put(&*self.masters, &*value, Some(bound(lease)));
        let free = Compare::version(&*self.masters, CompareOp::Equal, 0);
        let ours = Compare::value(&*self.masters, CompareOp::Equal, &*value);
        let again =
            Txn::new().when([ours]).and_then([put()]).or_else([TxnOp::get(&*self.masters, None)]);
        let claim = Txn::new().when([free]).and_then([put()]).or_else([TxnOp::txn(again)]);
        let answer = self.ask("claiming its name", async |c| c.txn(claim).await).await?;
        if answer.succeeded() {
            return Ok(());
        }
        let Some(TxnOpResponse::Txn(again)) = answer.op_responses().pop() else {
            return Err(damaged(&self.masters));
        };
        if again.succeeded() {
            return Ok(());
        }
        let other = found(again.op_responses().first()).map(|kv| text(&kv)).unwrap_or_default();
        let at = other.split_once(' ').map_or(&*other, |(_, at)| at);
        Err(EtcdError::NameTaken { at: at.to_owned() })
    }

    /// Who leads.
    pub(super) async fn leader(&self) -> Result<Option<Leader>, EtcdError> {
        let found =
            self.ask("looking for the leader", async |c| c.get(&*self.leader, None).await).await?;
        found.kvs().first().map(|kv| self.read_leader(kv)).transpose()
    }

    fn read_leader(&self, kv: &KeyValue) -> Result<Leader, EtcdError> {
        let value = text(kv);
        let (name, address) = value.split_once(' ').ok_or_else(|| damaged(&self.leader))?;
        Ok(Leader { lease: kv.lease(), name: name.to_owned(), address: address.to_owned() })
    }

    /// Takes the lead if nobody has it: the leader key and the next epoch in one transaction. `None`:
    /// somebody else was faster. If an earlier answer to this very question was lost, we lead already.
    pub(super) async fn campaign(&self, me: &Leader) -> Result<Option<Won>, EtcdError> {
        let found =
            self.ask("reading the epoch", async |c| c.get(&*self.epoch, None).await).await?;
        let (last, revision) = match found.kvs().first() {
            Some(kv) => (self.read_epoch(kv)?, kv.mod_revision()),
            None => (LeaderEpoch(0), 0),
        };
        let next = LeaderEpoch(last.0.saturating_add(1));
        let vacant = Compare::version(&*self.leader, CompareOp::Equal, 0);
        let same = Compare::mod_revision(&*self.epoch, CompareOp::Equal, revision);
        let title = format!("{} {}", me.name, me.address);
        let get = |key: &str| TxnOp::get(key, None);
        let campaign = Txn::new()
            .when([vacant, same])
            .and_then([
                get(&self.state),
                TxnOp::put(&*self.leader, title, Some(bound(me.lease))),
                TxnOp::put(&*self.epoch, next.0.to_string(), None),
            ])
            .or_else([get(&self.state), get(&self.leader), get(&self.epoch)]);
        let answer = self.ask("standing for election", async |c| c.txn(campaign).await).await?;
        let answers = answer.op_responses();
        let kept = found_in(&answers, 0).map(|kv| self.read_state(&kv)).transpose()?;
        if answer.succeeded() {
            return Ok(Some(Won { epoch: next, kept }));
        }
        let ours = found_in(&answers, 1).is_some_and(|kv| kv.lease() == me.lease);
        match found_in(&answers, 2) {
            Some(epoch) if ours => Ok(Some(Won { epoch: self.read_epoch(&epoch)?, kept })),
            _ => Ok(None),
        }
    }

    fn read_epoch(&self, kv: &KeyValue) -> Result<LeaderEpoch, EtcdError> {
        text(kv).parse().map(LeaderEpoch).map_err(|_| damaged(&self.epoch))
    }

    fn read_state(&self, kv: &KeyValue) -> Result<Kept, EtcdError> {
        Kept::parse(&text(kv)).ok_or_else(|| damaged(&self.state))
    }

    /// Tells when the leader key changes.
    pub(super) async fn watch(&self) -> Result<WatchStream, EtcdError> {
        self.ask("watching the leader", async |c| c.watch(&*self.leader, None).await).await
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
        let found = self.ask("reading before it writes", async |c| c.get(key, None).await).await?;
        let revision = found.kvs().first().map_or(0, KeyValue::mod_revision);
        let leads = Compare::lease(&*self.leader, CompareOp::Equal, lease);
        let same = Compare::mod_revision(key, CompareOp::Equal, revision);
        let write = Txn::new()
            .when([leads, same])
            .and_then([TxnOp::put(key, value, None)])
            .or_else([TxnOp::get(&*self.leader, None)]);
        let answer = self.ask("writing", async |c| c.txn(write).await).await?;
        if answer.succeeded() {
            return Ok(());
        }
        let leader = found_in(&answer.op_responses(), 0);
        if leader.is_some_and(|kv| kv.lease() == lease) {
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

fn bound(lease: i64) -> PutOptions {
    PutOptions::new().with_lease(lease)
}

fn found(answer: Option<&TxnOpResponse>) -> Option<KeyValue> {
    match answer? {
        TxnOpResponse::Get(get) => GetResponse::kvs(get).first().cloned(),
        _ => None,
    }
}

fn found_in(answers: &[TxnOpResponse], index: usize) -> Option<KeyValue> {
    found(answers.get(index))
}

fn text(kv: &KeyValue) -> String {
    String::from_utf8_lossy(kv.value()).into_owned()
}
