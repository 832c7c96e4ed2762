//! show: the window that a server opens to its own machine, over HTTP.
//!
//! ```text
//!   request ──► guard: from this machine, under a local name, from no foreign page
//!                 └──► routes of the role          GET /healthz   GET /metrics   …
//!   request of another machine ──► GET /healthz and GET /metrics alone
//! ```
//!
//! [`window`] puts the guard in front of a role's routes, [`metrics_only`] leaves the two of them that any machine may ask
//! for, [`serve`] answers; [`Page`] is how a role
//! shows its numbers to Prometheus; [`changed`] is the one line that the log gets for every change
//! that somebody made through a window.
//!
//! Connections are kept by the keeper of all doors (`wire::door`), which is what this crate uses `wire` for.
//!
//! Deliberately absent: what is shown (that is the role's), keys in metrics, answers
//! to other machines besides metrics and health.
#![forbid(unsafe_code)]

mod answers;
mod guard;
mod metrics_only;
mod page;
mod serve;

pub use guard::window;
pub use metrics_only::metrics_only;
pub use page::{Page, Shown, metrics, metrics_older, metrics_text};
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::registry::Registry;
pub use serve::{Settings, serve};

use axum::Json;
pub use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A request that was not answered, and why.
#[derive(Debug)]
pub struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// What most routes answer.
pub type Answer = Result<Json<Value>, Refused>;

/// The answer of a health check: 200 without reasons to worry, 503 with them.
pub fn health(reasons: &[String], more: Value) -> Response {
    let (code, status) = match reasons {
        [] => (StatusCode::OK, "ok"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    let mut body = json!({ "status": status, "reasons": reasons });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    (code, Json(body)).into_response()
}

/// An outcome whose words were made for it, for [`changed`].
pub fn told(outcome: &Result<String, String>) -> Result<&str, &str> {
    outcome.as_ref().map(String::as_str).map_err(String::as_str)
}

/// One line for a change that somebody made, or tried to make: who, what, to what, and what became of
/// it. The target `audit` lets an operator send these lines elsewhere. `subject` is free text without
/// keys (their hash will do): a log is read by more people than the store. `outcome`: what became of it, or
/// why it was refused.
pub fn changed(who: SocketAddr, what: &str, subject: &str, outcome: Result<&str, &str>) {
    // As strings, which tracing quotes and escapes: bare, a subject with spaces could pass for more fields.
    match outcome {
        Ok(outcome) => {
            tracing::info!(target: "audit", %who, what, subject, outcome, "changed by an operator");
        }
        Err(why) => {
            tracing::info!(target: "audit", %who, what, subject, why, "a change was refused");
        }
    }
}
