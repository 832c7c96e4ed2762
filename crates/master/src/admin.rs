//! The admin HTTP: what a person or a dashboard may see, as JSON. Read-only.
//!
//! ```text
//!   GET /health                            is it there, who leads
//!   GET /stat                              the cluster in numbers, segments included
//!   GET /segments                          the segments alone
//!   GET /audit                             whether every byte is accounted for (walks the index)
//!   GET /keys?prefix=&limit=&cursor=       a page of keys
//! ```
//!
//! What must stay true: no route changes anything; a page is bounded; keys are shown escaped and in
//! hexadecimal, never as raw bytes; ids are hexadecimal text, because JSON readers round numbers
//! beyond 2^53. Every key is told to whoever asks, so this is served on loopback only, and a request
//! whose `Host` is not this machine is refused: a web page that points its own name at 127.0.0.1
//! must not read it.

use crate::service::Master;
use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use mooncrate_core::key;
use mooncrate_core::plan::Medium;
use mooncrate_core::time::Deadline;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{ClusterStat, List, Listed, Listing, SegmentRow};
use mooncrate_wire::{CallError, MasterApi};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a page when nobody says how many.
const PAGE: u32 = 100;
/// Most keys of a page.
const PAGE_MAX: u32 = 1000;
/// How long a call of the master may take.
const CALL: Duration = Duration::from_secs(5);

/// All routes.
pub fn router(master: Arc<Master>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/stat", get(stat))
        .route("/segments", get(segments))
        .route("/audit", get(audit))
        .route("/keys", get(keys))
        .fallback(nothing_here)
        .layer(from_fn(only_this_host))
        .with_state(master)
}

/// Answers until `stop` is done, then finishes the requests under way. The caller bounds that wait.
pub async fn serve(
    listener: tokio::net::TcpListener,
    master: Arc<Master>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(master)).with_graceful_shutdown(stop).await
}

/// The cluster as JSON; the command line prints the same.
pub fn stat_json(stat: &ClusterStat) -> Value {
    json!({
        "epoch": stat.epoch.0,
        "rebuilding": stat.rebuilding,
        "nodes": stat.nodes,
        "objects": stat.objects,
        "open_puts": stat.open_puts,
        "capacity_bytes": stat.capacity_bytes,
        "used_bytes": stat.used_bytes,
        "quarantined_bytes": stat.quarantined_bytes,
        "largest_free_run": stat.largest_free_run,
        "evicted_objects": stat.evicted_objects,
        "evicted_bytes": stat.evicted_bytes,
        "index_bytes": stat.index_bytes,
        "segments": segments_json(&stat.segments),
    })
}

/// One finished object as JSON.
pub fn listed_json(listed: &Listed) -> Value {
    json!({
        "key": listed.key.to_string(),
        "key_hex": hex(listed.key.as_bytes()),
        "bytes": listed.len,
        "object": listed.object.to_string(),
        "replicas": listed.replicas,
    })
}

fn segments_json(rows: &[SegmentRow]) -> Value {
    let rows = rows.iter().map(|row| {
        let medium = match row.offer.medium {
            Medium::Vram => "vram",
            Medium::Dram => "dram",
            Medium::Ssd => "ssd",
        };
        json!({
            "segment": row.offer.segment.to_string(),
            "incarnation": row.offer.incarnation.to_string(),
            "node": row.offer.node.to_string(),
            "host": row.offer.host.to_string(),
            "zone": row.offer.zone.to_string(),
            "medium": medium,
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

/// A request that was not answered.
#[derive(Debug)]
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

type Answer = Result<Json<Value>, Refused>;

/// Calls the master where blocking is allowed.
async fn ask<T: Send + 'static>(
    master: Arc<Master>,
    call: impl FnOnce(&Master, Deadline) -> Result<T, CallError> + Send + 'static,
) -> Result<T, Refused> {
    let asked = tokio::task::spawn_blocking(move || call(&master, boottime().deadline_in(CALL)));
    asked
        .await
        .map_err(|error| {
            tracing::error!(%error, "an admin request failed");
            Refused(StatusCode::INTERNAL_SERVER_ERROR, "the master failed to answer".to_owned())
        })?
        .map_err(Refused::from)
}

async fn health(State(master): State<Arc<Master>>) -> Answer {
    let epoch = ask(master, MasterApi::ping).await?;
    Ok(Json(json!({ "status": "ok", "epoch": epoch.0 })))
}

async fn stat(State(master): State<Arc<Master>>) -> Answer {
    Ok(Json(stat_json(&ask(master, MasterApi::stat).await?)))
}

async fn segments(State(master): State<Arc<Master>>) -> Answer {
    let stat = ask(master, MasterApi::stat).await?;
    Ok(Json(json!({ "segments": segments_json(&stat.segments) })))
}

/// Walks the whole index under its lock: for a person who asks, not for a dashboard that polls.
async fn audit(State(master): State<Arc<Master>>) -> Answer {
    let found = ask(master, |master, _| Ok(master.audit().err())).await?;
    let found = found.map(|error| error.to_string());
    Ok(Json(json!({ "clean": found.is_none(), "finding": found })))
}

async fn keys(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let page = Page::parse(query.as_deref().unwrap_or_default())
        .map_err(|why| Refused(StatusCode::BAD_REQUEST, why))?;
    let listing = ask(master, move |master, deadline| {
        let Page { prefix, cursor, limit } = &page;
        master.list(&List { prefix, cursor: *cursor, limit: *limit }, deadline)
    });
    Ok(Json(listing_json(&listing.await?)))
}

async fn nothing_here() -> Refused {
    let message = "nothing is here; try /health, /stat, /segments or /keys".to_owned();
    Refused(StatusCode::NOT_FOUND, message)
}

async fn only_this_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_none_or(is_this_host) {
        return next.run(request).await;
    }
    let message = "this is served to its own machine, under localhost or a loopback address";
    Refused(StatusCode::FORBIDDEN, message.to_owned()).into_response()
}

fn is_this_host(host: &str) -> bool {
    let port = |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let name = match host.rfind(':') {
        Some(at) if port(&host[at..]) => &host[..at],
        _ => host,
    };
    let number = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || number.parse::<std::net::IpAddr>().is_ok_and(|number| number.is_loopback())
}

/// Which page of keys is wanted.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    prefix: Vec<u8>,
    cursor: u64,
    limit: u32,
}

impl Page {
    /// Reads a query. By hand, because a prefix is bytes and need not be text.
    fn parse(query: &str) -> Result<Self, String> {
        let mut page = Self { prefix: Vec::new(), cursor: 0, limit: PAGE };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bytes = unescape(value)
                .ok_or_else(|| format!("{name}: a % is followed by two hexadecimal digits"))?;
            let number = || str::from_utf8(&bytes).ok()?.parse::<u64>().ok();
            match name {
                "prefix" => page.prefix = bytes,
                "cursor" => {
                    page.cursor = number().ok_or("cursor: the `next` of a page is wanted")?;
                }
                "limit" => {
                    let limit = number().filter(|limit| (1..=u64::from(PAGE_MAX)).contains(limit));
                    let wanted = || format!("limit: a number from 1 to {PAGE_MAX} is wanted");
                    page.limit = limit.ok_or_else(wanted)? as u32;
                }
                name => {
                    let name = key::show(name.as_bytes());
                    return Err(format!(
                        "{name} is unknown; prefix, limit and cursor are possible"
                    ));
                }
            }
        }
        Ok(page)
    }
}

/// Undoes the escapes of a query.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match first {
            b'+' => (b' ', after),
            b'%' => {
                let digits = str::from_utf8(after.get(..2)?).ok()?;
                // `from_str_radix` takes a sign, an escape has none.
                let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                (u8::from_str_radix(digits, 16).ok().filter(|_| plain)?, &after[2..])
            }
            byte => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
