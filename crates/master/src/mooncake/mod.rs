//! The admin HTTP in the words of Mooncake's: what its engines, scripts and dashboards ask a master
//! for, beside our own routes, where an operator asks for it (`--mooncake-http`).
//!
//! ```text
//!   standing.rs  /health /role /ha_status /leader /metrics/summary /kv_events/status
//!   keys.rs      /query_key /batch_query_keys /get_all_keys /api/v1/remove_all
//!   segments.rs  /get_all_segments /get_segments_detail /query_segment /api/v1/segments/status
//!   drains.rs    /api/v1/drain_jobs[/query|/cancel]     jobs.rs     what those jobs are
//!   quotas.rs    /api/v1/tenant_quotas                  numbers.rs  /metrics
//!   metadata.rs  /metadata, on a port of its own
//! ```
//!
//! A segment of that API is a node of ours, under the node's name, or several that share one. `docs/mooncake-http.md` says what differs.
//!
//! What must stay true: a look grants no lease, moves nothing in the order of eviction and counts no
//! hit; whatever changes something stands behind the guard of the admin HTTP and leaves its line in the
//! audit log; a number that nobody counts is not shown.

mod drains;
pub(crate) mod jobs;
mod keys;
pub mod metadata;
mod numbers;
mod quotas;
mod segments;
mod shown;
mod standing;
#[cfg(test)]
mod tests;

pub use standing::standby;

pub(crate) use numbers::metrics;

use crate::service::Master;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mooncrate_admin::Refused;
use serde_json::json;
use std::sync::Arc;

/// What of that API is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mooncake {
    /// Quotas of tenants; without it they are refused, as their API says.
    pub quotas: bool,
}

pub(crate) fn routes(wanted: Mooncake) -> Router<Arc<Master>> {
    let quotas = if wanted.quotas { quotas::routes() } else { quotas::refused() };
    Router::new()
        .route("/health", get(standing::health))
        .route("/role", get(standing::role))
        .route("/ha_status", get(standing::ha_status))
        .route("/leader", get(standing::leader))
        .route("/metrics/summary", get(standing::summary))
        .route("/kv_events/status", get(standing::kv_events))
        .route("/query_key", get(keys::query))
        .route("/batch_query_keys", get(keys::query_many))
        .route("/get_all_keys", get(keys::all))
        .route("/api/v1/remove_all", post(keys::remove_all))
        .route("/get_all_segments", get(segments::names))
        .route("/get_segments_detail", get(segments::detail))
        .route("/query_segment", get(segments::query))
        .route("/api/v1/segments/status", get(segments::status))
        .route("/api/v1/drain_jobs", post(drains::create))
        .route("/api/v1/drain_jobs/query", get(drains::query))
        .route("/api/v1/drain_jobs/cancel", post(drains::cancel))
        .route("/api/v1/tenant_quotas", quotas)
        .method_not_allowed_fallback(nothing_here)
}

/// What that API answers to a path, or a verb, that it does not have.
pub(crate) async fn nothing_here() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 Not Found")
}

/// An error code of that API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code(i32, &'static str);

const INTERNAL: Code = Code(-1, "INTERNAL_ERROR");
const SEGMENT_NOT_FOUND: Code = Code(-101, "SEGMENT_NOT_FOUND");
const INVALID_PARAMS: Code = Code(-600, "INVALID_PARAMS");
const OBJECT_NOT_FOUND: Code = Code(-704, "OBJECT_NOT_FOUND");
const WRONG_STATUS: Code = Code(-1010, "UNAVAILABLE_IN_CURRENT_STATUS");
const WRONG_MODE: Code = Code(-1011, "UNAVAILABLE_IN_CURRENT_MODE");
const TOO_MANY_TASKS: Code = Code(-1401, "TASK_PENDING_LIMIT_EXCEEDED");
const JOB_NOT_FOUND: Code = Code(-1402, "JOB_NOT_FOUND");
const TENANT_NOT_FOUND: Code = Code(-1701, "TENANT_NOT_REGISTERED");
/// What a master that does not lead says.
const NOT_ACTIVE: &str = "service plane is not active";

/// A refusal as that API words it.
#[derive(Debug)]
struct Wrong {
    status: StatusCode,
    code: Code,
    text: String,
}

impl Wrong {
    /// What was asked for makes no sense.
    fn input(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: INVALID_PARAMS, text: text.into() }
    }

    /// There is no such thing.
    fn unknown(code: Code) -> Self {
        Self { status: StatusCode::NOT_FOUND, code, text: code.1.to_owned() }
    }

    /// Not now, or not here.
    fn conflict(code: Code, text: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, code, text: text.into() }
    }
}

impl From<Refused> for Wrong {
    fn from(Refused(status, text): Refused) -> Self {
        let code = match status {
            StatusCode::SERVICE_UNAVAILABLE => WRONG_MODE,
            StatusCode::BAD_REQUEST => INVALID_PARAMS,
            _ => INTERNAL,
        };
        Self { status, code, text }
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let Self { status, code, text } = self;
        let body = json!({ "success": false, "error_code": code.0, "error_message": text });
        (status, Json(body)).into_response()
    }
}

/// What most routes answer.
type Answer = Result<Json<serde_json::Value>, Wrong>;

/// A parameter of a query; `None`: it is not there, or empty.
fn parameter(query: Option<&str>, name: &str) -> Result<Option<Vec<u8>>, Wrong> {
    let found = crate::query::parameter(query.unwrap_or_default(), name).map_err(Wrong::input)?;
    Ok(found.filter(|value| !value.is_empty()))
}

/// A parameter that must be text.
fn text_parameter(query: Option<&str>, name: &str) -> Result<Option<String>, Wrong> {
    let Some(bytes) = parameter(query, name)? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| Wrong::input(format!("{name} is no text")))?;
    Ok(Some(text))
}
