//! The thread that stands for election: keeps a lease, watches the leader key, takes and leaves the
//! seat.
//!
//! ```text
//!   session:  lease (grant, or keep alive) ─► name ─► watch ─┬─ due: keep alive, look ─┐
//!                ▲                                           ├─ the key changed: look ─┤
//!                └── any error: the next endpoint ◄──────────┴─────────────────────────┘
//!   look:     nobody leads: campaign · we lead: fine · somebody else: step down, follow
//! ```

use super::etcd::{Etcd, EtcdError, EtcdKeeper, Leader, Won};
use super::{ElectionConfig, ElectionError, START_TIME};
use crate::config::MasterConfig;
use crate::seat::Seat;
use crate::service::Master;
use crate::term::Term;
use mooncrate_core::Now;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::task::{Handle, sleep};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Between two sessions, so that a broken etcd is not asked in a circle.
const PAUSE: Duration = Duration::from_millis(100);

/// A lease in etcd, as its holder reckons.
#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    ttl: Duration,
    /// Until when it lets us lead.
    until: Now,
    /// When to keep it alive next.
    due: Now,
}

/// This master in the election.
#[derive(Debug)]
pub(super) struct Elector {
    config: ElectionConfig,
    master: MasterConfig,
    etcd: Arc<Etcd>,
    seat: Arc<Seat>,
    down: watch::Receiver<bool>,
    /// Whoever waits for the start, until it was told.
    tell: Option<oneshot::Sender<Result<(), ElectionError>>>,
    /// Tells this process from others of the same name.
    who: String,
    lease: Option<Lease>,
    term: Option<Arc<Term>>,
    /// Whether the present trouble was logged.
    said: bool,
}

impl Elector {
    pub(super) fn new(
        config: ElectionConfig,
        master: MasterConfig,
        etcd: Arc<Etcd>,
        seat: Arc<Seat>,
        down: watch::Receiver<bool>,
        tell: oneshot::Sender<Result<(), ElectionError>>,
    ) -> Self {
        let who = format!("{:x}-{:x}", std::process::id(), boottime().0);
        let (tell, said) = (Some(tell), false);
        Self { config, master, etcd, seat, down, tell, who, lease: None, term: None, said }
    }

    /// Until somebody says stop.
    pub(super) async fn run(mut self, runtime: Handle) {
        // Since when etcd has answered: it ends no lease while it has no leader, and a new one begins them anew.
        let mut answers = boottime();
        loop {
            match self.session(&runtime).await {
                Ok(()) => break,
                Err(error) => {
                    if !matches!(error, EtcdError::NameTaken { .. }) {
                        answers = boottime();
                    }
                    self.complain(&error, answers);
                    self.give_up_if_cut_off();
                }
            }
            if self.wait(boottime().plus(PAUSE)).await {
                break;
            }
        }
        self.step_down("this master stops");
        if let Some(lease) = self.lease.take()
            && let Err(error) = self.etcd.revoke(lease.id).await
        {
            tracing::debug!(%error, "the others must wait for the lease to end by itself");
        }
    }

    /// Waits for a moment, or for the end: whether it came.
    async fn wait(&mut self, until: Now) -> bool {
        let pause = until.since(boottime());
        tokio::select! {
            biased;
            _ = self.down.wait_for(|down| *down) => true,
            () = sleep(pause) => false,
        }
    }

    /// Works with one endpoint of etcd until it fails, or until somebody says stop.
    async fn session(&mut self, runtime: &Handle) -> Result<(), EtcdError> {
        self.hold().await?;
        let mut watch = self.etcd.watch().await?;
        self.look(runtime).await?;
        if std::mem::take(&mut self.said) {
            tracing::info!("etcd answers again");
        }
        loop {
            let due = self.lease.map_or(Now(0), |lease| lease.due).since(boottime());
            let news = tokio::select! {
                biased;
                _ = self.down.wait_for(|down| *down) => return Ok(()),
                () = sleep(due) => None,
                news = watch.change() => Some(news),
            };
            match news {
                None => self.hold().await?,
                Some(Ok(true)) => {}
                // It says nothing about the lease: the next session asks.
                Some(Ok(false) | Err(_)) => return Err(EtcdError::WatchCut),
            }
            self.look(runtime).await?;
        }
    }

    /// Keeps the lease alive, or gets one and puts the name behind it.
    async fn hold(&mut self) -> Result<(), EtcdError> {
        if let Some(lease) = &mut self.lease {
            let sent = boottime();
            match self.etcd.renew(lease.id).await {
                Ok(()) => {
                    lease.acknowledged(sent);
                    if let Some(term) = &self.term {
                        term.extend(lease.until);
                    }
                    return Ok(());
                }
                Err(EtcdError::LeaseOver) => {
                    self.lease = None;
                    self.step_down("its lease in etcd is over");
                }
                Err(error) => return Err(error),
            }
        }
        let sent = boottime();
        let (id, ttl) = self.etcd.grant(self.config.ttl).await?;
        let mut lease = Lease { id, ttl, until: Now(0), due: Now(0) };
        lease.acknowledged(sent);
        if let Err(error) = self.etcd.claim(id, &self.who, &self.config.advertise).await {
            let _ = self.etcd.revoke(id).await;
            return Err(error);
        }
        self.lease = Some(lease);
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(Ok(()));
        }
        Ok(())
    }

    /// Who leads? If nobody, we try.
    async fn look(&mut self, runtime: &Handle) -> Result<(), EtcdError> {
        let Some(lease) = self.lease else { return Ok(()) };
        match self.etcd.leader().await? {
            Some(leader) if leader.lease == lease.id && self.term.is_some() => return Ok(()),
            Some(leader) if leader.lease != lease.id => {
                self.step_down("another master leads");
                self.seat.follow(Some(leader.address));
                return Ok(());
            }
            // Nobody; or we, by an answer that was lost.
            _ => {}
        }
        let ElectionConfig { name, advertise, .. } = &self.config;
        let me = Leader { lease: lease.id, name: name.clone(), address: advertise.clone() };
        match self.etcd.campaign(&me).await? {
            Some(won) => {
                self.step_down("its key in etcd was deleted");
                self.take_seat(lease, &won, runtime);
            }
            None => self.seat.follow(None),
        }
        Ok(())
    }

    fn take_seat(&mut self, lease: Lease, won: &Won, runtime: &Handle) {
        let term = Arc::new(Term::new(lease.until));
        let keeper = EtcdKeeper::new(Arc::clone(&self.etcd), runtime.clone(), lease.id, won);
        let title = format!("{} at {}", self.config.name, self.config.advertise);
        let (config, kept) = (self.master.clone(), won.kept.clone());
        let master = Master::elected(config, won.epoch, kept, Arc::clone(&term), keeper, title);
        self.term = Some(term);
        self.seat.take(master);
        tracing::info!(epoch = won.epoch.0, name = self.config.name, "this master leads");
    }

    fn step_down(&mut self, why: &str) {
        let Some(term) = self.term.take() else { return };
        term.close();
        self.seat.leave();
        tracing::warn!(why, name = self.config.name, "this master no longer leads");
    }

    /// Without etcd for longer than a lease lasts, somebody else leads, or nobody can: the index of this
    /// term is given up, and the next election begins with a new lease.
    fn give_up_if_cut_off(&mut self) {
        let over = self.lease.is_some_and(|lease| boottime() >= lease.until.plus(lease.ttl));
        if over {
            self.lease = None;
            self.step_down("etcd did not answer for longer than the lease");
        }
    }

    /// Says once that something is wrong, and tells whoever waits for the start.
    fn complain(&mut self, error: &EtcdError, answers: Now) {
        if let EtcdError::NameTaken { at } = error {
            // An earlier process of this name may have died just now: its lease ends by itself.
            if boottime().since(answers) < self.config.ttl + START_TIME / 2 {
                return;
            }
            if let Some(tell) = self.tell.take() {
                let (name, at) = (self.config.name.clone(), at.clone());
                let _ = tell.send(Err(ElectionError::NameTaken { name, at }));
            }
        }
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!(%error, "no election without etcd; trying again until it answers");
        }
    }
}

impl Lease {
    /// etcd acknowledged what was sent then.
    fn acknowledged(&mut self, sent: Now) {
        self.until = Term::end(sent, self.ttl);
        self.due = sent.plus(self.ttl / 3);
    }
}
