//! What a server shows beside the store: the admin HTTP, and what programs that were written for Mooncake
//! look for. All of it listens on this machine only, with two exceptions that reveal nothing about values: the metadata
//! server, when the operator insists, and the listener for metrics, which is there for other machines.

use super::serve::Role;
use crate::config::{Mooncake, Settings};
use crate::failure::Failure;
use crate::listen::{self, Door};
use mooncrate::Running;
use mooncrate_admin::{Registry, Router};
use mooncrate_master::mooncake::metadata;
use mooncrate_master::{Master, MasterMetrics, admin, mooncake, standby};
use mooncrate_node::mooncake::{introduction, serve_door};
use mooncrate_node::{Node, NodeMetrics};
use mooncrate_wire::Gate;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Sockets that listen, and nobody answers yet.
#[derive(Debug)]
pub(super) struct Windows {
    admin: Option<TcpListener>,
    metrics: Option<TcpListener>,
    metadata: Option<TcpListener>,
    door: Option<TcpListener>,
}

fn admin_door(role: Role, settings: &Settings) -> Option<Door<'_>> {
    let (address, flag) = match role {
        Role::Both | Role::Master => (settings.admin.as_ref()?, "--admin"),
        Role::Node => (settings.node_admin.as_ref()?, "--node-admin"),
    };
    Some(Door { what: "the admin HTTP", address, flag })
}

fn metrics_door(settings: &Settings) -> Option<Door<'_>> {
    let address = settings.metrics_listen.as_ref()?;
    Some(Door { what: "the listener for metrics", address, flag: "--metrics-listen" })
}

fn metadata_door(role: Role, settings: &Settings) -> Option<Door<'_>> {
    let address = settings.mooncake.metadata.as_ref().filter(|_| role != Role::Node)?;
    Some(Door { what: "the metadata server", address, flag: "--mooncake-metadata" })
}

fn dummy_door(role: Role, settings: &Settings) -> Option<Door<'_>> {
    let address = settings.mooncake.door.as_ref().filter(|_| role == Role::Node)?;
    Some(Door { what: "the door for dummy stores", address, flag: "--mooncake-door" })
}

/// Whether they may listen where they shall.
pub(super) fn check(role: Role, settings: &Settings) -> Result<(), Failure> {
    if let Some(door) = admin_door(role, settings) {
        listen::check_admin(door)?;
    }
    if let Some(door) = dummy_door(role, settings) {
        listen::check_here(door, "dummy stores share this machine's memory")?;
    }
    match metadata_door(role, settings) {
        // Credentials of the cluster do not open it.
        Some(door) if !settings.insecure_listen => {
            let why = "it asks nobody for credentials; --insecure-listen accepts the risk";
            listen::check_here(door, why)
        }
        _ => Ok(()),
    }
}

impl Windows {
    /// Takes their addresses.
    pub(super) async fn bind(role: Role, settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            admin: bind(admin_door(role, settings)).await?,
            metrics: bind(metrics_door(settings)).await?,
            metadata: bind(metadata_door(role, settings)).await?,
            door: bind(dummy_door(role, settings)).await?,
        })
    }

    /// Where the admin HTTP is.
    pub(super) fn admin_at(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    /// Where other machines read metrics.
    pub(super) fn metrics_at(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    /// Where the metadata server is.
    pub(super) fn metadata_at(&self) -> Option<SocketAddr> {
        self.metadata.as_ref()?.local_addr().ok()
    }

    /// Where dummy stores ask.
    pub(super) fn door_at(&self) -> Option<SocketAddr> {
        self.door.as_ref()?.local_addr().ok()
    }

    /// Answers until the sender of `stops` is gone, with what `routes` and `metrics_routes` made.
    pub(super) async fn serve(
        self,
        (routes, numbers): (Option<Router>, Option<Router>),
        settings: &Settings,
        stops: &watch::Receiver<()>,
    ) {
        let Mooncake { tenant, .. } = &settings.mooncake;
        let metadata = match self.metadata_at() {
            Some(at) if at.ip().is_loopback() => mooncrate_admin::window(metadata::routes()),
            _ => metadata::routes(),
        };
        let told = introduction(&settings.master.to_string(), &settings.node_name, tenant);
        let door = async {
            match self.door {
                Some(listener) => serve_door(listener, told, over(stops.clone())).await,
                None => over(stops.clone()).await,
            }
        };
        tokio::join!(
            answer("the admin HTTP", self.admin, routes, stops.clone()),
            answer("the listener for metrics", self.metrics, numbers, stops.clone()),
            answer("the metadata server", self.metadata, Some(metadata), stops.clone()),
            door,
        );
    }
}

/// Waits for the end.
async fn over(mut stops: watch::Receiver<()>) {
    // Nothing is ever sent: an error says that the sender is gone.
    while stops.changed().await.is_ok() {}
}

async fn bind(door: Option<Door<'_>>) -> Result<Option<TcpListener>, Failure> {
    let Some(door) = door else { return Ok(None) };
    let bound = TcpListener::bind(door.address.to_string()).await;
    bound.map(Some).map_err(|error| listen::explain(door, &error))
}

async fn answer(
    what: &'static str,
    listener: Option<TcpListener>,
    routes: Option<Router>,
    stops: watch::Receiver<()>,
) {
    let (Some(listener), Some(routes)) = (listener, routes) else { return over(stops).await };
    let settings = mooncrate_admin::Settings::new(what);
    if let Err(error) = mooncrate_admin::serve(listener, routes, settings, over(stops)).await {
        tracing::error!(%error, "{what} ended");
    }
}

/// What the admin HTTP shows: a master's routes if there is one here, and everybody's numbers.
pub(super) fn routes(running: &Running, gate: Gate, wanted: &Mooncake) -> Option<Router> {
    let node = running.node().cloned();
    let with_mooncake = wanted.http;
    let wanted = mooncake::Mooncake { quotas: wanted.quotas };
    let routes = match (running.seat(), node) {
        (Some(seat), node) => {
            let window = move |master: Arc<Master>| {
                let registry = numbers_of(&master, node.as_ref());
                if with_mooncake {
                    admin::routes_with_mooncake(master, registry, gate.clone(), wanted)
                } else {
                    admin::routes(master, registry, gate.clone())
                }
            };
            if with_mooncake {
                standby::router_with_mooncake(seat, window)
            } else {
                standby::router(seat, window)
            }
        }
        (None, Some(node)) => node_routes(node, with_mooncake),
        (None, None) => return None,
    };
    Some(mooncrate_admin::window(routes))
}

/// What other machines may read: the same metrics and the same health, and nothing else.
pub(super) fn metrics_routes(running: &Running, with_mooncake: bool) -> Option<Router> {
    let routes = match (running.seat(), running.node().cloned()) {
        (Some(seat), node) => standby::router(seat, move |master: Arc<Master>| {
            let registry = numbers_of(&master, node.as_ref());
            admin::metrics_routes(master, registry, with_mooncake)
        }),
        (None, Some(node)) => node_routes(node, with_mooncake),
        (None, None) => return None,
    };
    Some(mooncrate_admin::metrics_only(routes))
}

/// The numbers of a master, and of a node in the same process.
fn numbers_of(master: &Arc<Master>, node: Option<&Arc<Node>>) -> Arc<Registry> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MasterMetrics(Arc::clone(master))));
    if let Some(node) = node {
        registry.register_collector(Box::new(NodeMetrics(Arc::clone(node))));
    }
    Arc::new(registry)
}

/// What a node alone shows.
fn node_routes(node: Arc<Node>, with_mooncake: bool) -> Router {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(NodeMetrics(Arc::clone(&node))));
    if with_mooncake {
        mooncrate_node::mooncake::routes(node, Arc::new(registry))
    } else {
        mooncrate_node::admin::routes(node, Arc::new(registry))
    }
}
