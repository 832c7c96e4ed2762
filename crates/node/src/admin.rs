//! The admin HTTP of a node that runs alone: is it well, and its numbers.
//!
//! ```text
//!   GET /healthz     200, or 503 with the reasons
//!   GET /metrics     for Prometheus
//! ```
//!
//! What must stay true: it shows no key and changes nothing.

use crate::duty::Node;
use crate::metrics::Health;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use mooncrate_admin::{Refused, Registry, health};
use serde_json::json;
use std::sync::Arc;

/// All routes, to be put behind a window.
pub fn routes(node: Arc<Node>, registry: Arc<Registry>) -> Router {
    own_routes(node)
        .route("/metrics", get(move || async move { mooncrate_admin::metrics(&registry) }))
        .fallback(nothing_here)
}

pub(crate) fn own_routes(node: Arc<Node>) -> Router {
    Router::new().route("/healthz", get(move || async move { healthz(&node) }))
}

fn healthz(node: &Node) -> Response {
    let Health { mounted, heartbeat_age, serve_left } = Health::of(node);
    let mut reasons = Vec::new();
    if !mounted {
        reasons.push("the master does not know this node: is it running?".to_owned());
    }
    if serve_left <= 0.0 {
        reasons.push(format!(
            "no heartbeat was answered for {heartbeat_age:.1} s, so nothing is served: look at the \
             master and the network"
        ));
    }
    health(&reasons, json!({ "name": node.info().name, "node": node.id().to_string() }))
}

async fn nothing_here() -> Refused {
    Refused(StatusCode::NOT_FOUND, "nothing is here; try /healthz or /metrics".to_owned())
}
