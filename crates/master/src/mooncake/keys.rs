//! Keys as that API shows them. A look grants nothing: the object stays as removable and as evictable
//! as it was.

use super::{
    Answer, Code, INTERNAL, OBJECT_NOT_FOUND, WRONG_STATUS, Wrong, parameter, text_parameter,
};
use crate::admin::{ask, ask_within};
use crate::handler::Scope;
use crate::service::Master;
use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use mooncrate_admin::{Refused, changed, told};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::{Located, Medium};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Name, SegmentId, TenantId, key};
use mooncrate_wire::message::{List, Pattern, RemoveMatching};
use mooncrate_wire::{CallError, MasterApi};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio_stream::Stream;

/// Keys of a page while they are listed.
const PAGE: u32 = 256;
/// How long removing all keys may take.
const LONG: Duration = Duration::from_secs(30);
/// How that API calls the tenant without a name.
pub(super) const DEFAULT_TENANT: &str = "default";

/// What a look at a key finds.
enum Found {
    /// Its copies in memory, and those on disks.
    Here(Vec<Value>, Vec<Value>),
    Missing,
    /// The index is not complete: it may be there.
    Unknown,
}

/// Where segments are reached, and what they are made of.
struct Places(BTreeMap<SegmentId, (Medium, String)>);

impl Places {
    fn of(master: &Master) -> Self {
        let addresses: BTreeMap<_, _> = master
            .node_entries()
            .into_iter()
            .map(|entry| (entry.info.node, endpoint(&entry.info)))
            .collect();
        let rows = master.cluster_stat().segments.into_iter().map(|row| {
            let address = addresses.get(&row.offer.node).cloned().unwrap_or_default();
            (row.offer.segment, (row.offer.medium, address))
        });
        Self(rows.collect())
    }

    fn look(&self, master: &Master, key: &[u8]) -> Found {
        let name = Name::new(TenantId::DEFAULT, key);
        let located = master.mind().catalog.peek(name);
        match located {
            Some(located) => self.copies(&located),
            None if master.cluster_stat().rebuilding => Found::Unknown,
            None => Found::Missing,
        }
    }

    /// One entry per copy; a value in stripes has one per copy of each stripe.
    fn copies(&self, located: &Located) -> Found {
        let (mut memory, mut disks) = (Vec::new(), Vec::new());
        for locator in &located.replicas {
            let Some((medium, address)) = self.0.get(&locator.segment) else { continue };
            let size = located.striping.stripe_len(locator.stripe);
            if *medium == Medium::Ssd {
                let client = format!("{}-0", locator.segment.0);
                disks.push(json!({
                    "client_id": client, "object_size": size, "transport_endpoint": address,
                }));
                continue;
            }
            memory.push(json!({
                "size_": size,
                // No addresses leave a node: this is where the bytes begin in its segment.
                "buffer_address_": locator.extent.offset(),
                "protocol_": "tcp",
                "transport_endpoint_": address,
            }));
        }
        Found::Here(memory, disks)
    }
}

/// Where a node is reached.
pub(super) fn endpoint(info: &mooncrate_wire::message::NodeInfo) -> String {
    if info.tcp.is_empty() { format!("unix:{}", info.unix) } else { info.tcp.clone() }
}

pub(super) async fn query(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let key = parameter(query.as_deref(), "key")?;
    let key = key.ok_or_else(|| Wrong::input("Missing key query parameter"))?;
    let found = ask(master, move |scope, _| {
        let master = scope.master();
        Ok(Places::of(master).look(master, &key))
    });
    match found.await? {
        Found::Here(memory, _) => Ok(Json(json!({ "success": true, "data": memory }))),
        Found::Missing => Err(Wrong::unknown(OBJECT_NOT_FOUND)),
        Found::Unknown => Err(rebuilding()),
    }
}

/// While nodes are still to announce what they hold, a key that is not known may be there.
fn rebuilding() -> Wrong {
    let Code(_, name) = WRONG_STATUS;
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Wrong { status, code: WRONG_STATUS, text: format!("{name}: the index is being rebuilt") }
}

pub(super) async fn query_many(
    State(master): State<Arc<Master>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Wrong> {
    let listed = parameter(query.as_deref(), "keys")?.unwrap_or_default();
    let keys: Vec<Vec<u8>> = listed
        .split(|byte| *byte == b',')
        .filter(|key| !key.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    if keys.is_empty() {
        let error = "No keys provided. Write them as /batch_query_keys?keys=key1,key2";
        let body = Json(json!({ "success": false, "error": error }));
        return Ok((StatusCode::BAD_REQUEST, body).into_response());
    }
    if keys.len() > BATCH_ITEMS_MAX {
        return Err(Wrong::input(format!("{BATCH_ITEMS_MAX} keys at a time are the limit")));
    }
    let data = ask(master, move |scope, _| {
        let master = scope.master();
        let places = Places::of(master);
        let one = |key: &Vec<u8>| {
            let shown = String::from_utf8_lossy(key).into_owned();
            (shown, row(places.look(master, key)))
        };
        Ok(keys.iter().map(one).collect::<Map<String, Value>>())
    });
    Ok(Json(json!({ "success": true, "data": data.await? })).into_response())
}

fn row(found: Found) -> Value {
    let failed = |error: &str| {
        json!({
            "ok": false, "error": error, "values": null, "disk_values": null,
            "local_disk_values": null, "nof_values": null,
        })
    };
    match found {
        Found::Missing => failed(OBJECT_NOT_FOUND.1),
        Found::Unknown => failed(WRONG_STATUS.1),
        Found::Here(memory, disks) => json!({
            "ok": true,
            "error": null,
            "values": memory,
            "disk_values": null,
            "local_disk_values": if disks.is_empty() { Value::Null } else { Value::Array(disks) },
            "nof_values": null,
        }),
    }
}

/// All keys of the default tenant, one per line. Those that are no text in one line are escaped. They are looked up
/// page by page while the caller takes them: whoever takes nothing makes nobody collect them.
pub(super) async fn all(State(master): State<Arc<Master>>) -> Result<Response, Wrong> {
    let (first, next) = page(Arc::clone(&master), 0).await?;
    if next.is_none() {
        return Ok(first.into_response());
    }
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    let pages = Pages { master, first: Some(first), next, coming: None };
    Ok((text, Body::from_stream(pages)).into_response())
}

/// A page of keys, and where the next one begins.
type Listed = Result<(String, Option<u64>), Refused>;

/// The pages of a list, each looked up when the one before was taken.
struct Pages {
    master: Arc<Master>,
    first: Option<String>,
    next: Option<u64>,
    coming: Option<Pin<Box<dyn Future<Output = Listed> + Send>>>,
}

impl Stream for Pages {
    type Item = io::Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.coming.is_none() {
            let Some(cursor) = self.next.take() else { return Poll::Ready(None) };
            self.coming = Some(Box::pin(page(Arc::clone(&self.master), cursor)));
        }
        let coming = self.coming.as_mut().expect("it was begun above");
        let listed = ready!(coming.as_mut().poll(cx));
        self.coming = None;
        // The head is out: an answer that is cut off is all that can be said.
        let listed = listed.map_err(|Refused(_, why)| io::Error::other(why));
        Poll::Ready(Some(listed.map(|(text, next)| {
            self.next = next;
            text
        })))
    }
}

async fn page(master: Arc<Master>, cursor: u64) -> Listed {
    ask(master, move |scope, deadline| {
        let pattern = Pattern::Prefix(b"");
        let page = scope.list(&List { pattern, cursor, limit: PAGE }, deadline)?;
        let mut text = String::new();
        for entry in &page.entries {
            text.push_str(&key::show(entry.key.as_bytes()).to_string());
            text.push('\n');
        }
        Ok((text, page.next))
    })
    .await
}

/// How far a removal of everything came.
struct Cleared {
    removed: u64,
    /// Time was over before the end.
    cut: bool,
}

pub(super) async fn remove_all(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
) -> Answer {
    let query = query.as_deref();
    let force = match text_parameter(query, "force")?.as_deref() {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(_) => return Err(Wrong::input("force is true or false")),
    };
    let tenant = text_parameter(query, "tenant_id")?;
    let only = tenant.as_deref().map(tenant_named).transpose()?;
    let cleared =
        ask_within(master, LONG, move |scope, deadline| clear(scope, only, force, deadline));
    let cleared = cleared.await;
    let what = if force { "remove all, leased or not" } else { "remove all" };
    let subject = tenant.map_or("all tenants".to_owned(), |name| format!("tenant {name}"));
    let outcome = match &cleared {
        Ok(Cleared { removed, .. }) => Ok(format!("{removed} removed")),
        Err(Refused(_, why)) => Err(why.clone()),
    };
    changed(who, what, &subject, told(&outcome));
    let Cleared { removed, cut } = cleared?;
    if cut {
        let text = format!("{removed} keys were removed and time is over; ask again for the rest");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Err(Wrong { status, code: INTERNAL, text });
    }
    Ok(Json(json!({ "success": true, "removed_count": removed })))
}

/// Removes what a tenant has, or what all have, page after page.
fn clear(
    scope: &Scope,
    only: Option<TenantId>,
    force: bool,
    deadline: Deadline,
) -> Result<Cleared, CallError> {
    let master = scope.master();
    let rows = master.cluster_stat().tenants;
    let all = rows.iter().map(|row| row.tenant).chain([TenantId::DEFAULT]);
    let tenants: std::collections::BTreeSet<TenantId> = match only {
        Some(tenant) => [tenant].into(),
        None => all.collect(),
    };
    let mut removed = 0;
    for tenant in tenants {
        let scope = master.scope(tenant);
        let mut cursor = 0;
        loop {
            if deadline.passed(mooncrate_wire::clock::boottime()) {
                return Ok(Cleared { removed, cut: true });
            }
            let ask = RemoveMatching { pattern: Pattern::Prefix(b""), force, cursor };
            let Ok(step) = scope.remove_matching(&ask, deadline)? else {
                return Ok(Cleared { removed, cut: true });
            };
            // What is deferred can be found by nobody any more.
            removed += step.removed + step.deferred;
            let Some(next) = step.next else { break };
            cursor = next;
        }
    }
    Ok(Cleared { removed, cut: false })
}

/// The tenant that a request names.
pub(super) fn tenant_named(name: &str) -> Result<TenantId, Wrong> {
    let named = if name == DEFAULT_TENANT { "" } else { name };
    TenantId::named(named).map_err(|error| Wrong::input(error.to_string()))
}
