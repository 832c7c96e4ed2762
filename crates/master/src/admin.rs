//! The admin HTTP of a master: what an operator or a dashboard sees, and the little they may change.
//!
//! ```text
//!   GET    /healthz                              200, or 503 with the reasons
//!   GET    /metrics                              for Prometheus
//!   GET    /v1/usage                             the cluster in numbers
//!   GET    /v1/segments                          one row per segment
//!   GET    /v1/nodes                             who, where, last heard when
//!   GET    /v1/keys?prefix=&limit=&cursor=       a page of keys
//!   DELETE /v1/keys/{key}[?force=true]           remove one; the key is percent-encoded
//!   GET    /v1/audit                             does the index add up? Linear, under the lock
//!   …      /v1/nodes/{name}/drain, /v1/quotas    see `changes`
//! ```
//!
//! What must stay true: a page is bounded; keys are told as they are, as text where they are text and
//! always in hexadecimal; ids are hexadecimal text, because JSON readers round numbers beyond 2^53; every change
//! leaves one line in the log. Every key is told to whoever asks, so this stands behind
//! [`mooncrate_admin::window`], which refuses everybody but this machine.

use crate::changes;
pub use crate::changes::drain_json;
use crate::handler::Scope;
use crate::metrics::medium_name;
use crate::mooncake::{self, Mooncake};
use crate::query::{Page, force, key_of};
use crate::service::Master;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use mooncrate_admin::{Answer, Refused, Registry, changed, health, told};
use mooncrate_core::TenantId;
use mooncrate_core::catalog::Counters;
use mooncrate_core::error::RemoveError;
use mooncrate_core::key;
use mooncrate_core::time::Deadline;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{ClusterStat, List, Listed, Listing, NodeEntry, Pattern, SegmentRow};
use mooncrate_wire::{CallError, Gate, MasterApi};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a call of the master may take.
const CALL: Duration = Duration::from_secs(2);
/// What stands before the key in a path.
const KEYS: &str = "/v1/keys/";

/// All routes, to be put behind a window. `registry` holds what `/metrics` shows: the master's
/// numbers, and those of a node in the same process. `gate` says who may change anything.
pub fn routes(master: Arc<Master>, registry: Arc<Registry>, gate: Gate) -> Router {
    own_routes()
        .with_state(master)
        .route("/metrics", get(move || async move { mooncrate_admin::metrics(&registry) }))
        .fallback(nothing_here)
        .layer(from_fn_with_state(gate, changes::guard))
}

/// The same with the routes of Mooncake's admin HTTP beside them, whose words are then used for what is
/// not there, and whose format for `/metrics`.
pub fn routes_with_mooncake(
    master: Arc<Master>,
    registry: Arc<Registry>,
    gate: Gate,
    wanted: Mooncake,
) -> Router {
    let counting = Arc::clone(&master);
    own_routes()
        .merge(mooncake::routes(wanted))
        .with_state(master)
        .route("/metrics", get(move || async move { mooncake::metrics(&counting, &registry) }))
        .fallback(mooncake::nothing_here)
        .layer(from_fn_with_state(gate, changes::guard))
}

/// Health and metrics alone, for a listener that other machines reach: no caller is asked who it is. With `mooncake`,
/// `/metrics` has Mooncake's names, too.
pub fn metrics_routes(master: Arc<Master>, registry: Arc<Registry>, mooncake: bool) -> Router {
    let counting = Arc::clone(&master);
    let metrics = get(move || async move {
        if mooncake {
            mooncake::metrics(&counting, &registry)
        } else {
            mooncrate_admin::metrics(&registry)
        }
    });
    let routes = Router::new().route("/healthz", get(healthz)).with_state(master);
    routes.route("/metrics", metrics).fallback(nothing_here)
}

fn own_routes() -> Router<Arc<Master>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/v1/usage", get(usage))
        .route("/v1/segments", get(segments))
        .route("/v1/nodes", get(nodes))
        .route("/v1/keys", get(keys))
        .route("/v1/keys/{*key}", delete(remove))
        .route("/v1/audit", get(audit))
        .merge(changes::routes())
}

/// The cluster as JSON; the command line prints the same.
pub fn stat_json(stat: &ClusterStat) -> Value {
    json!({
        "epoch": stat.epoch.0,
        "leader": stat.leader,
        "rebuilding": stat.rebuilding,
        "nodes": stat.nodes,
        "objects": stat.objects,
        "open_puts": stat.open_puts,
        "capacity_bytes": stat.capacity_bytes,
        "used_bytes": stat.used_bytes,
        "quarantined_bytes": stat.quarantined_bytes,
        "largest_free_run": stat.largest_free_run,
        "index_bytes": stat.index_bytes,
        "counters": counters_json(&stat.counters),
        "segments": segments_json(&stat.segments),
    })
}

fn counters_json(counters: &Counters) -> Value {
    json!({
        "puts": counters.puts,
        "hits": counters.hits,
        "misses": counters.misses,
        "removed": counters.removed,
        "evicted": counters.evicted,
        "evicted_bytes": counters.evicted_bytes,
        "evict_skipped": counters.evict_skipped,
        "busy": counters.busy,
        "expired": counters.expired,
        "replaced": counters.replaced,
        "replanned": counters.replanned,
        "puts_expired": counters.puts_expired,
        "stale_tokens": counters.stale_tokens,
        "nodes_lost": counters.nodes_lost,
        "announced_dropped": counters.announced_dropped,
        "copied": counters.copied,
        "copied_bytes": counters.copied_bytes,
        "copies_failed": counters.copies_failed,
        "hits_disk": counters.hits_disk,
        "offloaded": counters.offloaded,
        "offloaded_bytes": counters.offloaded_bytes,
        "offloads_refused": counters.offloads_refused,
        "evicted_unsaved": counters.evicted_unsaved,
        "promoted": counters.promoted,
        "promoted_bytes": counters.promoted_bytes,
        "disk_evicted": counters.disk_evicted,
        "disk_lost": counters.disk_lost,
        "disks_returned": counters.disks_returned,
        "disk_dropped": counters.disk_dropped,
        "ledger_struck": counters.ledger_struck,
        "lapsed_struck": counters.lapsed_struck,
        "late_dropped": counters.late_dropped,
        "bad_replicas": counters.bad_replicas,
        "hits_vram": counters.hits_vram,
        "demoted": counters.demoted,
        "demoted_bytes": counters.demoted_bytes,
    })
}

/// One finished object as JSON.
pub fn listed_json(listed: &Listed) -> Value {
    let key = listed.key.as_bytes();
    json!({
        "key": key_text(key),
        "key_hex": hex(key),
        "bytes": listed.len,
        "object": listed.object.to_string(),
        "replicas": listed.replicas,
    })
}

/// A key as a text for programs: exactly the key, and nothing where its bytes are no text. Escapes are for
/// people; a program that took them for the key would ask for another one.
fn key_text(key: &[u8]) -> Option<&str> {
    str::from_utf8(key).ok()
}

/// A key as JSON.
pub fn key_json(key: &[u8]) -> Value {
    json!({ "key": key_text(key), "key_hex": hex(key) })
}

fn segments_json(rows: &[SegmentRow]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "segment": row.offer.segment.to_string(),
            "incarnation": row.offer.incarnation.to_string(),
            "node": row.offer.node.to_string(),
            "host": row.offer.host.to_string(),
            "zone": row.offer.zone.to_string(),
            "medium": medium_name(row.offer.medium),
            "open": row.open,
            "slots": row.offer.slots,
            "capacity_bytes": row.offer.bytes,
            "used_bytes": row.used_bytes,
            "quarantined_bytes": row.quarantined_bytes,
            "largest_free_run": row.largest_free_run,
            "objects": row.objects,
        })
    });
    Value::Array(rows.collect())
}

fn node_json(entry: &NodeEntry, silence: Option<Duration>) -> Value {
    let NodeEntry { info, segments } = entry;
    let segments: Vec<String> = segments.iter().map(|(id, _)| id.to_string()).collect();
    json!({
        "node": info.node.to_string(),
        "name": info.name,
        "tcp": info.tcp,
        "unix": info.unix,
        "host": info.host.to_string(),
        "zone": info.zone.to_string(),
        "segments": segments,
        "silent_ms": silence.map(|silence| silence.as_millis() as u64),
    })
}

fn listing_json(listing: &Listing) -> Value {
    let keys: Vec<Value> = listing.entries.iter().map(listed_json).collect();
    json!({ "keys": keys, "next": listing.next })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes it");
        text
    })
}

/// Calls the master where blocking is allowed.
pub(crate) async fn ask<T: Send + 'static>(
    master: Arc<Master>,
    call: impl FnOnce(&Scope, Deadline) -> Result<T, CallError> + Send + 'static,
) -> Result<T, Refused> {
    ask_within(master, CALL, call).await
}

/// The same for calls that may take longer.
pub(crate) async fn ask_within<T: Send + 'static>(
    master: Arc<Master>,
    time: Duration,
    call: impl FnOnce(&Scope, Deadline) -> Result<T, CallError> + Send + 'static,
) -> Result<T, Refused> {
    // The admin looks after the tenant without a name; others are asked for by their own clients.
    let scope = master.scope(TenantId::DEFAULT);
    let asked = tokio::task::spawn_blocking(move || call(&scope, boottime().deadline_in(time)));
    asked
        .await
        .map_err(|error| {
            tracing::error!(%error, "an admin request failed");
            Refused(StatusCode::INTERNAL_SERVER_ERROR, "the master failed to answer".to_owned())
        })?
        .map_err(|error| Refused(StatusCode::SERVICE_UNAVAILABLE, error.sent()))
}

async fn healthz(State(master): State<Arc<Master>>) -> Result<Response, Refused> {
    let stat = ask(master, MasterApi::stat).await?;
    let mut reasons = Vec::new();
    if stat.rebuilding {
        reasons.push("the index is being rebuilt: some nodes have not announced yet".to_owned());
    }
    if stat.segments.is_empty() {
        reasons.push("no segment is mounted: start a node, or wait for one".to_owned());
    } else if !stat.segments.iter().any(|row| row.open) {
        reasons.push("no segment takes new values: all nodes are silent".to_owned());
    }
    Ok(health(&reasons, json!({ "epoch": stat.epoch.0 })))
}

async fn usage(State(master): State<Arc<Master>>) -> Answer {
    Ok(Json(stat_json(&ask(master, MasterApi::stat).await?)))
}

async fn segments(State(master): State<Arc<Master>>) -> Answer {
    let stat = ask(master, MasterApi::stat).await?;
    Ok(Json(json!({ "segments": segments_json(&stat.segments) })))
}

async fn nodes(State(master): State<Arc<Master>>) -> Answer {
    let roll = ask(master, |scope, _| Ok(scope.master().roll())).await?;
    let rows = roll.iter().map(|(entry, silence)| node_json(entry, *silence));
    Ok(Json(json!({ "nodes": rows.collect::<Vec<_>>() })))
}

async fn keys(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let page = Page::parse(query.as_deref().unwrap_or_default()).map_err(bad_request)?;
    let listing = ask(master, move |master, deadline| {
        let pattern = Pattern::Prefix(&page.prefix);
        master.list(&List { pattern, cursor: page.cursor, limit: page.limit }, deadline)
    });
    Ok(Json(listing_json(&listing.await?)))
}

async fn remove(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, Refused> {
    let name = uri.path().strip_prefix(KEYS).unwrap_or_default();
    let key = key_of(name).map_err(bad_request)?;
    let force = force(query.as_deref().unwrap_or_default()).map_err(bad_request)?;
    let (subject, mut told_of) = (format!("key {:016x}", key::hash(&key).0), key_json(&key));
    let removed = ask(master, move |master, deadline| {
        let mut results = master.remove(force, &[&key], deadline)?;
        Ok(results.pop().expect("one result per item"))
    })
    .await;
    let what = if force { "remove key, leased or not" } else { "remove key" };
    let outcome = match &removed {
        Ok(Ok(())) => Ok("removed".to_owned()),
        Ok(Err(error @ RemoveError::Deferred { .. })) => Ok(error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(Refused(_, why)) => Err(why.clone()),
    };
    changed(who, what, &subject, told(&outcome));
    let (status, state) = match removed? {
        Ok(()) => (StatusCode::OK, "removed"),
        Err(RemoveError::Deferred { .. }) => (StatusCode::ACCEPTED, "being removed"),
        Err(error) => return Err(Refused(status_of(error), error.to_string())),
    };
    told_of["state"] = json!(state);
    Ok((status, Json(told_of)).into_response())
}

async fn audit(State(master): State<Arc<Master>>) -> Answer {
    match ask(master, |scope, _| Ok(scope.master().audit())).await? {
        Ok(()) => Ok(Json(json!({ "adds_up": true }))),
        Err(error) => {
            tracing::error!(%error, "the index does not add up");
            Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
    }
}

async fn nothing_here() -> Refused {
    let message = "nothing is here; try /healthz, /metrics, /v1/usage, /v1/segments, /v1/nodes, \
                   /v1/nodes/NAME/drain, /v1/quotas, /v1/keys or /v1/audit";
    Refused(StatusCode::NOT_FOUND, message.to_owned())
}

pub(crate) fn bad_request(why: String) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why)
}

const fn status_of(error: RemoveError) -> StatusCode {
    match error {
        RemoveError::NotFound => StatusCode::NOT_FOUND,
        RemoveError::Key(_) => StatusCode::BAD_REQUEST,
        RemoveError::Leased { .. } => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
pub(crate) mod tests;
