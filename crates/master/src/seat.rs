//! The seat of the leader in this process: taken by a master while it leads, vacant otherwise.
//!
//! What must stay true: a call is carried into a master only while its term lasts, and its answer is
//! given only if the term lasts still when the step is done (G7). A process that was stopped in
//! between therefore answers "not the leader", whatever it did to an index that nobody uses any more.
//! With one master and no election the seat is taken for ever, and the looks cost nothing.

use crate::handler::{MasterHandler, Scope};
use crate::service::Master;
use crate::writers::Writers;
use mooncrate_core::{LeaderEpoch, TenantId};
use mooncrate_lock::RwLock;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::{Answer, Caller, Handler, Peer, Refusal, Reply, Request};
use std::sync::Arc;

/// The place of a leader.
#[derive(Debug)]
pub struct Seat {
    state: RwLock<State>,
    /// Who has links here: known also while nobody leads here, or the next leader would not see them go.
    writers: Writers,
}

#[derive(Debug, Default)]
struct State {
    master: Option<Arc<Master>>,
    /// Where the leader is, while it is not here.
    elsewhere: Option<String>,
}

impl Seat {
    /// A seat that this master has for ever.
    pub fn always(master: Arc<Master>) -> Arc<Self> {
        let state = State { master: Some(master), elsewhere: None };
        Arc::new(Self { state: RwLock::new(state), writers: Writers::default() })
    }

    /// A seat that waits for an election.
    pub(crate) fn vacant() -> Arc<Self> {
        Arc::new(Self { state: RwLock::default(), writers: Writers::default() })
    }

    /// The master that leads here now.
    pub fn master(&self) -> Option<Arc<Master>> {
        self.state.read().master.clone().filter(|master| master.leads())
    }

    /// What time brings about where `master` leads.
    pub(crate) fn tick(&self, master: &Master) {
        while let Some(writer) = self.writers.next_gone(boottime()) {
            master.writer_gone(writer, || self.writers.is_here(writer));
        }
        master.tick();
    }

    /// Where the leader is, if it is elsewhere and known.
    pub fn leader(&self) -> Option<String> {
        self.state.read().elsewhere.clone()
    }

    /// Why nothing is done here, and where to go.
    pub fn refusal(&self) -> Refusal {
        Refusal::not_leader(self.leader().as_deref())
    }

    pub(crate) fn take(&self, master: Arc<Master>) {
        let state = State { master: Some(master), elsewhere: None };
        let last = std::mem::replace(&mut *self.state.write(), state);
        // A large index takes a while to be dropped: not under the lock.
        drop(last);
    }

    pub(crate) fn leave(&self) {
        let last = std::mem::take(&mut *self.state.write());
        drop(last);
    }

    pub(crate) fn follow(&self, leader: Option<String>) {
        self.state.write().elsewhere = leader;
    }

    /// The master that leads here as one tenant sees it; otherwise why not.
    pub fn scope(&self, tenant: TenantId) -> Result<Arc<Scope>, Refusal> {
        self.master().map(|master| master.scope(tenant)).ok_or_else(|| self.refusal())
    }
}

/// A seat as the server of control links calls it.
#[derive(Debug)]
pub(crate) struct SeatHandler(pub(crate) Arc<Seat>);

impl Handler for SeatHandler {
    fn epoch(&self) -> LeaderEpoch {
        self.0.master().map_or(LeaderEpoch(0), |master| master.leader_epoch())
    }

    fn came(&self, peer: &Peer) {
        self.0.writers.came(&peer.name);
    }

    fn gone(&self, peer: &Peer) {
        self.0.writers.left(&peer.name, boottime(), self.0.master().is_some());
    }

    fn handle(&self, request: Request<'_>, caller: Caller<'_>) -> Answer {
        let Some(master) = self.0.master() else {
            return Answer::Now(Reply::Refuse(self.0.refusal()));
        };
        let answer = MasterHandler(Arc::clone(&master)).handle(request, caller);
        if !master.is_elected() {
            return answer;
        }
        let seat = Arc::clone(&self.0);
        let judge = move |reply| if master.leads() { reply } else { Reply::Refuse(seat.refusal()) };
        match answer {
            Answer::Now(reply) => Answer::Now(judge(reply)),
            Answer::Later(reply) => Answer::Later(Box::pin(async move { judge(reply.await) })),
        }
    }
}
