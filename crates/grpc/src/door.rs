//! The six calls. Each is carried into the master on a thread that may block, under the caller's
//! deadline; how many run at a time is bounded, and what comes beyond is told so at once.

use crate::accept::Came;
use crate::convert::{self, Shown};
use crate::deadline;
use crate::guard::Caller;
use crate::pb;
use crate::pb::master_service_server::MasterService;
use crate::places::{Owners, Places};
use crate::puts::OpenPuts;
use crate::segments::Named;
use crate::serve::GrpcConfig;
use crate::status::{Answer, Judged, unanswered};
use mooncrate_core::error::{GetError, PutError};
use mooncrate_core::limits::STRIPES_MAX;
use mooncrate_core::plan::{Located, Locator, PutConfig, WritePlan};
use mooncrate_core::state::ReplicaState;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Key, PutToken, Seal, TenantId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{PutEndItem, PutItem, PutRevokeItem, SealList};
use mooncrate_wire::{CallError, Gate, Kind, MasterApi};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

/// The master as one tenant sees it.
#[derive(Clone)]
pub struct View {
    /// Its calls.
    pub api: Arc<dyn MasterApi>,
    /// Whether it leads still. Asked when a call is done: what a master did after its term is not
    /// answered (G7).
    pub leads: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// What a door stands on.
#[derive(Clone)]
pub struct Parts {
    /// What callers must show, and how their connections are encrypted.
    pub gate: Gate,
    /// The master as a tenant sees it; otherwise why there is none here.
    pub view: Arc<dyn Fn(TenantId) -> Result<View, Status> + Send + Sync>,
    /// Whether the master leads, asked every second: that is the health of this door.
    pub leads: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Writes a line of the audit log: who, and what.
    pub audit: fn(&str, &str),
}

/// Why a call has no answer in the caller's favour.
enum Fault {
    Judged(Judged),
    Call(CallError),
    Denied(Status),
}

impl<T: Into<Judged>> From<T> for Fault {
    fn from(judged: T) -> Self {
        Self::Judged(judged.into())
    }
}

/// `?` on the outer result of a call into the master.
fn heard<T>(answer: Result<T, CallError>) -> Result<T, Fault> {
    answer.map_err(Fault::Call)
}

/// The only result of a call with one item.
fn only<T>(answer: Result<Vec<T>, CallError>) -> Result<T, Fault> {
    let one = heard(answer)?.pop();
    Ok(one.expect("a master gives one result per item, and there was one"))
}

/// The service behind every connection.
pub(crate) struct Door {
    desk: Arc<Desk>,
    calls: Arc<Semaphore>,
    config: GrpcConfig,
}

/// What the calls share.
struct Desk {
    parts: Parts,
    puts: OpenPuts,
    places: Places,
}

/// One call on its way.
struct Visit {
    desk: Arc<Desk>,
    tenant: TenantId,
    view: View,
    deadline: Deadline,
}

impl Door {
    pub(crate) fn new(parts: Parts, config: GrpcConfig) -> Self {
        let puts = OpenPuts::new(config.open_puts, config.put_timeout);
        let desk = Arc::new(Desk { parts, puts, places: Places::default() });
        Self { desk, calls: Arc::new(Semaphore::new(config.calls)), config }
    }

    /// Carries a call into the master, if its caller may send what it stands for. A caller that
    /// gives up leaves its thread to its deadline.
    async fn carry<R, T>(
        &self,
        kind: Kind,
        request: Request<R>,
        work: fn(&Visit, &R) -> Result<T, Fault>,
    ) -> Result<Response<T>, Status>
    where
        R: Send + 'static,
        T: Answer,
    {
        let budget = deadline::of(request.metadata(), boottime(), self.config.call_max);
        // While it is under way the connection does not rest.
        let _visit = request.extensions().get::<Came>().map(|came| came.pulse.visit());
        let caller = self.admit(kind, &request).await?;
        let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            let most = self.config.calls;
            return Err(Status::resource_exhausted(format!(
                "{most} calls are under way at this door, which is the limit; try again"
            )));
        };
        let desk = Arc::clone(&self.desk);
        let carried = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let (tenant, deadline) = (caller.tenant, budget.deadline);
            let view = (desk.parts.view)(tenant).map_err(Fault::Denied)?;
            let visit = Visit { desk, tenant, view, deadline };
            let done = work(&visit, request.get_ref());
            if (visit.view.leads)() {
                return done;
            }
            Err(Fault::Denied(Status::unavailable("this master does not lead any more")))
        });
        let Ok(carried) = tokio::time::timeout(budget.wait, carried).await else {
            return Err(Status::deadline_exceeded("the master did not answer in time"));
        };
        match carried {
            Ok(Ok(answer)) => Ok(Response::new(answer)),
            Ok(Err(Fault::Judged(judged))) => Ok(Response::new(T::refused(&judged))),
            Ok(Err(Fault::Call(error))) => Err(unanswered(&error)),
            Ok(Err(Fault::Denied(status))) => Err(status),
            Err(error) => {
                tracing::error!(%error, "a gRPC call died");
                Err(Status::internal("the server failed while it handled this call"))
            }
        }
    }

    /// Who sends this; what an admin changes is written down first.
    async fn admit<R>(&self, kind: Kind, request: &Request<R>) -> Result<Caller, Status> {
        let parts = &self.desk.parts;
        let came = request.extensions().get::<Came>();
        let came = came.ok_or_else(|| Status::internal("a call without a connection"))?;
        let caller = Caller::admit(&parts.gate, came, request.metadata(), kind).await?;
        if caller.is_audited(kind) {
            let role = caller.role.map_or_else(|| "anybody".to_owned(), |role| role.to_string());
            let who = format!("{role} over gRPC from {}, tenant {}", came.peer, caller.tenant);
            (parts.audit)(&who, kind.name());
        }
        Ok(caller)
    }
}

impl Visit {
    fn api(&self) -> &dyn MasterApi {
        &*self.view.api
    }

    fn owners(&self, replicas: &[Locator]) -> Result<Owners, Fault> {
        heard(self.desk.places.owners(self.api(), replicas, self.deadline))
    }

    /// An open put, or what became of it.
    fn show_plan(
        &self,
        plan: &WritePlan,
        state: ReplicaState,
        seals: &[Seal],
    ) -> Result<Vec<pb::ReplicaInfo>, Fault> {
        let owners = &self.owners(&plan.replicas)?;
        let striping = plan.striping;
        Ok(Shown { state, striping, seals, labels: &[], owners }.replicas(&plan.replicas))
    }

    fn show_located(
        &self,
        located: &Located,
        state: ReplicaState,
    ) -> Result<Vec<pb::ReplicaInfo>, Fault> {
        let owners = &self.owners(&located.replicas)?;
        let seals: Vec<Seal> =
            std::iter::once(located.seal).chain(located.more_seals.iter().copied()).collect();
        let striping = located.striping;
        let shown = Shown { state, striping, seals: &seals, labels: &[], owners };
        Ok(shown.replicas(&located.replicas))
    }

    fn get_replica_list(
        &self,
        ask: &pb::GetReplicaListRequest,
    ) -> Result<pb::GetReplicaListResponse, Fault> {
        let key = convert::key(&ask.key, ask.key_bytes.as_deref())?;
        match only(self.api().locate(ask.lease_ms(), &[key], self.deadline))? {
            Ok(located) => Ok(pb::GetReplicaListResponse {
                replica_list: self.show_located(&located, ReplicaState::Ready)?,
                value_length: Some(located.len()),
                stripe_bytes: Some(located.striping.stripe_bytes),
                lease_ms: Some(located.lease_ms),
                object_epoch: Some(located.object.epoch.0),
                object_sequence: Some(located.object.sequence),
                ..pb::GetReplicaListResponse::default()
            }),
            Err(GetError::NotFound) => {
                let mut answer = pb::GetReplicaListResponse::refused(&GetError::NotFound.into());
                if let Some(plan) = self.desk.puts.find(self.tenant, key, boottime()) {
                    answer.replica_list = self.show_plan(&plan, ReplicaState::Writing, &[])?;
                }
                Ok(answer)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn put_start(&self, ask: &pb::PutStartRequest) -> Result<pb::PutStartResponse, Fault> {
        let bytes = convert::key(&ask.key, ask.key_bytes.as_deref())?;
        // Also checked by the master; here it makes the labels possible.
        let key = Key::new(bytes).map_err(PutError::Key)?;
        let len = convert::value_length(ask.value_length, &ask.slice_lengths)?;
        let config = convert::put_config(&ask.config)?;
        self.desk.puts.room(boottime())?;
        // Before the master counts: what it forgets is forgotten here already.
        let began = boottime();
        let item = PutItem::new(bytes, len);
        let plan = only(self.api().put_start(&config, &[item], self.deadline))??;
        self.desk.puts.began(self.tenant, bytes, plan.clone(), began);
        let owners = &self.owners(&plan.replicas)?;
        let labels = self.labels(&config, &key, &plan);
        let (state, striping) = (ReplicaState::Reserved, plan.striping);
        let shown = Shown { state, striping, seals: &[], labels: &labels, owners };
        Ok(pb::PutStartResponse {
            replica_list: shown.replicas(&plan.replicas),
            put_token: Some(plan.token.0),
            leader_epoch: Some(plan.epoch.0),
            object_epoch: Some(plan.object.epoch.0),
            object_sequence: Some(plan.object.sequence),
            stripe_bytes: Some(plan.striping.stripe_bytes),
            ..pb::PutStartResponse::default()
        })
    }

    fn labels(&self, config: &PutConfig, key: &Key, plan: &WritePlan) -> Vec<Vec<u8>> {
        let stripes = u8::try_from(plan.striping.stripes()).unwrap_or(u8::MAX);
        let label = |n| config.label(self.tenant, key.clone(), plan.striping, n).encode();
        (0..stripes).map(label).collect()
    }

    fn put_end(&self, ask: &pb::PutEndRequest) -> Result<pb::PutEndResponse, Fault> {
        let key = convert::key(&ask.key, ask.key_bytes.as_deref())?;
        let tenant = self.tenant;
        let open = self.desk.puts.find(tenant, key, boottime());
        let open = open.filter(|plan| ask.put_token.is_none_or(|token| plan.token.0 == token));
        let token = match (ask.put_token, &open) {
            (Some(token), _) => PutToken(token),
            (None, Some(plan)) => plan.token,
            (None, None) => {
                let judged = Judged {
                    message: "no put of this key is open at this door; put_token from PutStart \
                              ends one that began elsewhere"
                        .to_owned(),
                    ..PutError::NoSuchPut.into()
                };
                return Err(judged.into());
            }
        };
        let seals: Vec<Seal> = ask.seals.iter().copied().map(Seal).collect();
        let (outcome, state) = if ask.revoke() {
            let item = PutRevokeItem { key, token };
            (only(self.api().put_revoke(&[item], self.deadline))?, ReplicaState::Failed)
        } else {
            check_seals(&seals)?;
            let encoded = SealList::encode(&seals);
            let item = PutEndItem { key, token, seals: SealList::of(&encoded) };
            (only(self.api().put_end(&[item], self.deadline))?, ReplicaState::Ready)
        };
        if matches!(outcome, Ok(()) | Err(PutError::NoSuchPut)) {
            self.desk.puts.ended(tenant, key, token);
        }
        outcome?;
        let replica_list = match open {
            Some(plan) => self.show_plan(&plan, state, &seals)?,
            None => Vec::new(),
        };
        Ok(pb::PutEndResponse { replica_list, ..pb::PutEndResponse::default() })
    }

    fn remove(&self, ask: &pb::RemoveRequest) -> Result<pb::RemoveResponse, Fault> {
        let key = convert::key(&ask.key, ask.key_bytes.as_deref())?;
        // Whatever is found before a removal that succeeds is gone after it.
        let located = only(self.api().locate(0, &[key], self.deadline))?;
        let replica_list = match located {
            Ok(located) => self.show_located(&located, ReplicaState::Dead)?,
            Err(_) => Vec::new(),
        };
        only(self.api().remove(ask.force(), &[key], self.deadline))??;
        Ok(pb::RemoveResponse { replica_list, ..pb::RemoveResponse::default() })
    }

    fn mount(&self, ask: &pb::MountSegmentRequest) -> Result<pb::MountSegmentResponse, Fault> {
        if ask.buffer != 0 {
            return Err(Judged::argument(
                "buffer must be 0: memory belongs to nodes, and a caller's address is never used",
            )
            .into());
        }
        let (node, index) = convert::segment_name(&ask.segment_name)?;
        heard(Named { node, index }.mount(self.api(), ask.size, self.deadline))??;
        Ok(pb::MountSegmentResponse::default())
    }

    fn unmount(
        &self,
        ask: &pb::UnmountSegmentRequest,
    ) -> Result<pb::UnmountSegmentResponse, Fault> {
        let (node, index) = convert::segment_name(&ask.segment_name)?;
        heard(Named { node, index }.unmount(self.api(), self.deadline))??;
        Ok(pb::UnmountSegmentResponse::default())
    }
}

/// Nothing is published that nobody could verify. How many there must be the master knows.
fn check_seals(seals: &[Seal]) -> Result<(), Judged> {
    if !seals.is_empty() && seals.len() <= STRIPES_MAX {
        return Ok(());
    }
    let seals = u32::try_from(seals.len()).unwrap_or(u32::MAX);
    let mut judged = Judged::from(PutError::BadSeals { stripes: 1, seals });
    judged.message = format!(
        "`seals` holds {seals} numbers; one per stripe is needed, because a value that nobody can \
         verify is not published"
    );
    Err(judged)
}

#[tonic::async_trait]
impl MasterService for Door {
    async fn get_replica_list(
        &self,
        request: Request<pb::GetReplicaListRequest>,
    ) -> Result<Response<pb::GetReplicaListResponse>, Status> {
        self.carry(Kind::Locate, request, Visit::get_replica_list).await
    }

    async fn put_start(
        &self,
        request: Request<pb::PutStartRequest>,
    ) -> Result<Response<pb::PutStartResponse>, Status> {
        self.carry(Kind::PutStart, request, Visit::put_start).await
    }

    async fn put_end(
        &self,
        request: Request<pb::PutEndRequest>,
    ) -> Result<Response<pb::PutEndResponse>, Status> {
        self.carry(Kind::PutEnd, request, Visit::put_end).await
    }

    async fn remove(
        &self,
        request: Request<pb::RemoveRequest>,
    ) -> Result<Response<pb::RemoveResponse>, Status> {
        self.carry(Kind::Remove, request, Visit::remove).await
    }

    async fn mount_segment(
        &self,
        request: Request<pb::MountSegmentRequest>,
    ) -> Result<Response<pb::MountSegmentResponse>, Status> {
        self.carry(Kind::Command, request, Visit::mount).await
    }

    async fn unmount_segment(
        &self,
        request: Request<pb::UnmountSegmentRequest>,
    ) -> Result<Response<pb::UnmountSegmentResponse>, Status> {
        self.carry(Kind::Command, request, Visit::unmount).await
    }
}
