//! What an operator may change over the admin HTTP beside keys: drains of nodes, quotas of tenants.
//!
//! ```text
//!   GET    /v1/nodes/{name}/drain[?segment=N]             how far it is
//!   POST   /v1/nodes/{name}/drain[?segment=N&mode=drop]   empty it; asking twice is asking once
//!   DELETE /v1/nodes/{name}/drain[?segment=N]             take values again
//!   GET    /v1/quotas                                     what tenants use, and what they may
//!   PUT    /v1/quotas/{tenant}?bytes=N                    the tenant without a name is @default
//!   DELETE /v1/quotas/{tenant}                            no limit
//! ```
//!
//! What must stay true: in a cluster with a secret every change needs an admin token; each change that
//! was made or tried leaves one line in the audit log.

use crate::admin::{ask, bad_request};
use crate::query::{DrainAsk, quota_bytes};
use crate::service::Master;
use axum::extract::{ConnectInfo, Path, RawQuery, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use mooncrate_admin::{Answer, Refused, changed};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::{SegmentId, TenantId};
use mooncrate_wire::auth::{AdminDenied, DENIED_PAUSE, admin_allowed};
use mooncrate_wire::door::Pulse;
use mooncrate_wire::message::{Drain, DrainWish, SetQuota, TenantRow};
use mooncrate_wire::{Gate, MasterApi};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// How a path names the tenant without a name; no tenant can be called so.
const DEFAULT_TENANT: &str = "@default";

pub(crate) fn routes() -> Router<Arc<Master>> {
    let drain = get(drain).post(drain).delete(drain);
    Router::new()
        .route("/v1/nodes/{name}/drain", drain)
        .route("/v1/quotas", get(quotas))
        .route("/v1/quotas/{tenant}", put(set_quota).delete(set_quota))
}

/// Stands before all routes: looking is free on this machine, changes need an admin token where the
/// cluster has tokens. A refused change leaves its line and waits, as on every door.
pub(crate) async fn guard(
    State(gate): State<Gate>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.map(|value| value.to_str().unwrap_or_default());
    let change = !request.method().is_safe();
    // Whoever shows a good token keeps its connection when others have to make room.
    let proves = shown.is_some() && gate.secret().is_some();
    if proves && admin_allowed(&gate, who.ip(), shown, true).is_ok() {
        request.extensions().get::<Arc<Pulse>>().inspect(|pulse| pulse.prove());
    }
    let Err(denied) = admin_allowed(&gate, who.ip(), shown, change) else {
        return next.run(request).await;
    };
    changed(who, request.method().as_str(), "not looked at", Err(&denied.to_string()));
    tokio::time::sleep(DENIED_PAUSE).await;
    let code = match denied {
        AdminDenied::Token(_) => StatusCode::UNAUTHORIZED,
        AdminDenied::NotLocal | AdminDenied::Role(_) => StatusCode::FORBIDDEN,
    };
    Refused(code, denied.to_string()).into_response()
}

async fn drain(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    method: Method,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = query.unwrap_or_default();
    let asked = DrainAsk::parse(&query).map_err(bad_request)?;
    let (wish, what) = match (&method, asked.drop) {
        (&Method::POST, false) => (DrainWish::Move, "drain"),
        (&Method::POST, true) => (DrainWish::Drop, "drain by dropping"),
        (_, true) => return Err(bad_request("mode=drop is for POST alone".to_owned())),
        (&Method::DELETE, false) => (DrainWish::Undo, "undrain"),
        _ => (DrainWish::Look, ""),
    };
    let wanted = name.clone();
    let stat = ask(master, move |scope, deadline| {
        let entries = scope.nodes(deadline)?;
        let found = entries.into_iter().find(|entry| entry.info.name == wanted);
        let Some(node) = found.map(|entry| entry.info.node) else { return Ok(None) };
        let segment = asked.segment.map(|index| SegmentId::of(node, index));
        scope.drain(&Drain { node, segment, wish }, deadline)
    })
    .await;
    let missing = || {
        // As it is: JSON escapes it for programs, and the log for people.
        let message =
            format!("no node {name} is mounted, or not that segment; /v1/nodes lists them");
        Refused(StatusCode::NOT_FOUND, message)
    };
    let stat = stat.and_then(|stat| stat.ok_or_else(missing));
    if wish != DrainWish::Look {
        let subject = match asked.segment {
            Some(index) => format!("segment {index} of node {name}"),
            None => format!("node {name}"),
        };
        changed(who, what, &subject, outcome(&stat));
    }
    Ok(Json(drain_json(&name, &stat?)))
}

/// How far a drain is, for programs.
pub fn drain_json(node: &str, stat: &DrainStat) -> Value {
    json!({
        "node": node,
        "draining": stat.draining,
        "drained": stat.drained(),
        "start_bytes": stat.start_bytes,
        "start_replicas": stat.start_replicas,
        "left_bytes": stat.left_bytes,
        "left_replicas": stat.left_replicas,
        "moved": stat.moved,
        "dropped": stat.dropped,
        "stuck": stat.stuck,
    })
}

async fn quotas(State(master): State<Arc<Master>>) -> Answer {
    let tenants = ask(master, MasterApi::stat).await?.tenants;
    let rows = tenants.iter().map(|row| quota_json(&shown(row.tenant), row));
    Ok(Json(json!({ "quotas": rows.collect::<Vec<_>>() })))
}

/// Names are not kept, only what they hash to.
fn shown(tenant: TenantId) -> String {
    if tenant == TenantId::DEFAULT { DEFAULT_TENANT.to_owned() } else { tenant.to_string() }
}

fn quota_json(tenant: &str, row: &TenantRow) -> Value {
    json!({
        "tenant": tenant,
        "used_bytes": row.used_bytes,
        "hard_bytes": row.hard_bytes,
        "quota": row.quota,
    })
}

async fn set_quota(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    method: Method,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = query.unwrap_or_default();
    let named = if name == DEFAULT_TENANT { "" } else { &name };
    let tenant = TenantId::named(named).map_err(|error| bad_request(error.to_string()))?;
    let quota = match method {
        Method::PUT => Some(quota_bytes(&query).map_err(bad_request)?),
        _ => None,
    };
    let set = ask(master, move |scope, deadline| {
        scope.set_quota(&SetQuota { tenant, quota }, deadline)?;
        let rows = scope.stat(deadline)?.tenants;
        let nothing = TenantRow { tenant, used_bytes: 0, hard_bytes: 0, quota };
        Ok(rows.into_iter().find(|row| row.tenant == tenant).unwrap_or(nothing))
    })
    .await;
    let what =
        quota.map_or("clear quota".to_owned(), |bytes| format!("set quota to {bytes} bytes"));
    changed(who, &what, &format!("tenant {name}"), outcome(&set));
    Ok(Json(quota_json(&name, &set?)))
}

/// What became of a change, for the audit log.
fn outcome<T>(result: &Result<T, Refused>) -> Result<&str, &str> {
    match result {
        Ok(_) => Ok("done"),
        Err(Refused(_, why)) => Err(why),
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
