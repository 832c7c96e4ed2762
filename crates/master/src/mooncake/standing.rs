//! Who leads, how it stands, and the cluster in one line.

use super::shown::{human, percent};
use super::{Answer, NOT_ACTIVE, WRONG_MODE, Wrong};
use crate::admin::ask;
use crate::seat::Seat;
use crate::service::Master;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mooncrate_core::plan::Medium;
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{ClusterStat, SegmentRow};
use serde_json::{Value, json};
use std::sync::Arc;

/// How a leader stands.
fn ha_state(rebuilding: bool) -> &'static str {
    if rebuilding { "recovering" } else { "serving" }
}

/// Who leads among several masters: where, and under which epoch. A master alone has no such view.
fn view(master: &Master, stat: &ClusterStat) -> (Value, Value) {
    if master.is_elected() {
        (json!(address(&stat.leader)), json!(stat.epoch.0))
    } else {
        (Value::Null, Value::Null)
    }
}

/// The address in the title of a leader, which is `NAME at ADDRESS`.
fn address(title: &str) -> &str {
    title.rsplit_once(" at ").map_or(title, |(_, address)| address)
}

pub(super) async fn health(State(master): State<Arc<Master>>) -> Answer {
    let stat = ask(Arc::clone(&master), MasterApi::stat).await?;
    let (leader, version) = view(&master, &stat);
    Ok(Json(health_json("leader", ha_state(stat.rebuilding), !stat.rebuilding, &leader, &version)))
}

fn health_json(role: &str, state: &str, ready: bool, leader: &Value, version: &Value) -> Value {
    json!({
        "status": "ok",
        "role": role,
        "ha_state": state,
        "service_ready": ready,
        "leader_address": leader,
        "view_version": version,
    })
}

pub(super) async fn role() -> &'static str {
    "leader"
}

pub(super) async fn ha_status(State(master): State<Arc<Master>>) -> Result<&'static str, Wrong> {
    Ok(ha_state(ask(master, MasterApi::stat).await?.rebuilding))
}

pub(super) async fn leader(State(master): State<Arc<Master>>) -> Answer {
    let stat = ask(Arc::clone(&master), MasterApi::stat).await?;
    let (leader, version) = view(&master, &stat);
    Ok(Json(leader_json(&leader, &version)))
}

fn leader_json(leader: &Value, version: &Value) -> Value {
    json!({ "present": !leader.is_null(), "leader_address": leader, "view_version": version })
}

/// There are no such events; the numbers are those of nothing published.
pub(super) async fn kv_events() -> Json<Value> {
    Json(json!({
        "enabled": false,
        "published_batches": 0,
        "published_events": 0,
        "dropped_events": 0,
        "skipped_unparsed_keys": 0,
    }))
}

pub(super) async fn summary(State(master): State<Arc<Master>>) -> Result<String, Wrong> {
    let stat = ask(Arc::clone(&master), MasterApi::stat).await?;
    let soft = master.mind().catalog.soft_pinned();
    Ok(summary_line(&stat, soft, master.is_elected()))
}

/// The cluster in one line.
fn summary_line(stat: &ClusterStat, soft: usize, elected: bool) -> String {
    let (used, capacity) = memory(stat);
    let percent = percent(used, capacity);
    let counters = &stat.counters;
    let leader = if elected { address(&stat.leader) } else { "none" };
    format!(
        "role=leader, state={}, service_ready={}, master={{Mem Storage: {} / {} ({percent:.1}%) | \
         Keys: {} (soft-pinned: {soft}) | Clients: {} | Puts: {} | Lookups: {} found, {} missed | Evicted: {} replicas, {} \
         | No room: {}}}, ha={{leader={leader}, view={}}}\n",
        ha_state(stat.rebuilding),
        !stat.rebuilding,
        human(used),
        human(capacity),
        stat.objects - stat.open_puts.min(stat.objects),
        stat.nodes,
        counters.puts,
        counters.hits,
        counters.misses,
        counters.evicted,
        human(counters.evicted_bytes),
        counters.busy,
        stat.epoch.0,
    )
}

/// Bytes in use and bytes there are, in memory of hosts and devices.
pub(super) fn memory(stat: &ClusterStat) -> (u64, u64) {
    sums(stat, |medium| medium != Medium::Ssd)
}

/// The same of disks.
pub(super) fn disks(stat: &ClusterStat) -> (u64, u64) {
    sums(stat, |medium| medium == Medium::Ssd)
}

fn sums(stat: &ClusterStat, of: impl Fn(Medium) -> bool) -> (u64, u64) {
    let rows = stat.segments.iter().filter(|row| of(row.offer.medium));
    rows.fold((0, 0), |(used, all), SegmentRow { used_bytes, offer, .. }| {
        (used + used_bytes, all + offer.bytes)
    })
}

/// What a master that stands for election answers while it does not lead. `None`: the path is one of
/// ours.
pub fn standby(seat: &Seat, path: &str) -> Option<Response> {
    let leader = seat.leader().map_or(Value::Null, Value::String);
    let version = Value::Null;
    Some(match path {
        "/healthz" => return None,
        path if path.starts_with("/v1/") => return None,
        "/health" => {
            Json(health_json("standby", "standby", false, &leader, &version)).into_response()
        }
        "/role" | "/ha_status" => "standby".into_response(),
        "/leader" => Json(leader_json(&leader, &version)).into_response(),
        "/metrics/summary" => {
            let leader = seat.leader().unwrap_or_else(|| "none".to_owned());
            format!(
                "role=standby, state=standby, service_ready=false, master={{}}, \
                 ha={{leader={leader}}}\n"
            )
            .into_response()
        }
        _ => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Wrong { status, code: WRONG_MODE, text: NOT_ACTIVE.to_owned() }.into_response()
        }
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_title_ends_with_an_address() {
        assert_eq!(address("a at 127.0.0.1:1"), "127.0.0.1:1");
    }

    #[test]
    fn a_standby_says_so_and_leaves_our_routes_alone() {
        let seat = Seat::vacant();
        seat.follow(Some("10.0.0.1:50051".to_owned()));
        for (path, status) in
            [("/health", 200), ("/role", 200), ("/leader", 200), ("/query_key", 503), ("/x", 503)]
        {
            let answer = standby(&seat, path).expect(path);
            assert_eq!(answer.status().as_u16(), status, "{path}");
        }
        for ours in ["/healthz", "/v1/usage"] {
            assert!(standby(&seat, ours).is_none(), "{ours}");
        }
    }
}
