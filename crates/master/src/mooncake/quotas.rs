//! Quotas of tenants as that API has them. The quotas are the ones of `/v1/quotas`, under other names.

use super::keys::{DEFAULT_TENANT, tenant_named};
use super::{Answer, TENANT_NOT_FOUND, WRONG_MODE, Wrong, text_parameter};
use crate::admin::ask;
use crate::service::Master;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::routing::{MethodRouter, get};
use mooncrate_admin::{Refused, changed};
use mooncrate_core::TenantId;
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{SetQuota, TenantRow};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) fn routes() -> MethodRouter<Arc<Master>> {
    get(look).put(set).delete(clear)
}

/// Where quotas are not wanted.
pub(super) fn refused() -> MethodRouter<Arc<Master>> {
    get(refuse).put(refuse).delete(refuse)
}

async fn refuse() -> Wrong {
    let text = format!("{}: start the master with enable_multi_tenants", WRONG_MODE.1);
    Wrong::conflict(WRONG_MODE, text)
}

fn row_json(name: &str, row: &TenantRow) -> Value {
    // Without a quota the whole pool may be used, and that has no number.
    let quota = row.quota.unwrap_or(0);
    json!({
        "tenant_id": name,
        "requested_quota_bytes": quota,
        "effective_quota_bytes": quota,
        "charged_bytes": row.used_bytes,
        "admission_closed": row.quota.is_some_and(|quota| row.used_bytes >= quota),
        "over_quota": row.quota.is_some_and(|quota| row.used_bytes > quota),
        "has_explicit_policy": row.quota.is_some(),
    })
}

/// Names are not kept, only what they hash to.
fn shown(tenant: TenantId) -> String {
    if tenant == TenantId::DEFAULT { DEFAULT_TENANT.to_owned() } else { tenant.to_string() }
}

async fn look(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let name = text_parameter(query.as_deref(), "tenant_id")?;
    let rows = ask(master, MasterApi::stat).await?.tenants;
    let data = match name {
        None => rows.iter().map(|row| row_json(&shown(row.tenant), row)).collect(),
        Some(name) => {
            let tenant = tenant_named(&name)?;
            let row = rows.iter().find(|row| row.tenant == tenant);
            row_json(&name, row.ok_or_else(|| Wrong::unknown(TENANT_NOT_FOUND))?)
        }
    };
    Ok(Json(json!({ "success": true, "data": data })))
}

async fn set(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Answer {
    let name = tenant_id(query.as_deref())?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let bytes = body["requested_quota_bytes"].as_u64().filter(|bytes| *bytes > 0);
    let wanted = "requested_quota_bytes: a number above 0 is wanted; DELETE takes a quota away";
    let bytes = bytes.ok_or_else(|| Wrong::input(wanted))?;
    change(master, who, name, Some(bytes)).await
}

async fn clear(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
) -> Answer {
    let name = tenant_id(query.as_deref())?;
    change(master, who, name, None).await
}

fn tenant_id(query: Option<&str>) -> Result<String, Wrong> {
    let name = text_parameter(query, "tenant_id")?;
    name.ok_or_else(|| Wrong::input("Missing tenant_id query parameter"))
}

async fn change(master: Arc<Master>, who: SocketAddr, name: String, quota: Option<u64>) -> Answer {
    let tenant = tenant_named(&name)?;
    let set = ask(master, move |scope, deadline| {
        let before = scope.stat(deadline)?.tenants;
        let had = before.iter().any(|row| row.tenant == tenant && row.quota.is_some());
        if quota.is_none() && !had {
            return Ok(None);
        }
        scope.set_quota(&SetQuota { tenant, quota }, deadline)?;
        let rows = scope.stat(deadline)?.tenants;
        let nothing = TenantRow { tenant, used_bytes: 0, hard_bytes: 0, quota };
        Ok(Some(rows.into_iter().find(|row| row.tenant == tenant).unwrap_or(nothing)))
    })
    .await;
    let what =
        quota.map_or("clear quota".to_owned(), |bytes| format!("set quota to {bytes} bytes"));
    let outcome = match &set {
        Ok(Some(_)) => Ok("done"),
        Ok(None) => Err("it has none"),
        Err(Refused(_, why)) => Err(why.as_str()),
    };
    changed(who, &what, &format!("tenant {name}"), outcome);
    let row = set?.ok_or_else(|| Wrong::unknown(TENANT_NOT_FOUND))?;
    Ok(Json(json!({ "success": true, "data": row_json(&name, &row) })))
}
