//! The part of a role's routes that other machines may ask for: `/metrics` and `/healthz`.
//!
//! What must stay true: only GET and HEAD of these two paths reach the routes. Every other request is answered with 404
//! here, so a route that a role gets later is not served to other machines by accident.

use crate::Refused;
use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};

/// The two paths.
const PATHS: [&str; 2] = ["/metrics", "/healthz"];

/// Leaves metrics and health of the routes. Neither holds a key, a tenant or a credential, so no `Host` and no peer is
/// refused.
pub fn metrics_only(routes: Router) -> Router {
    routes.layer(from_fn(only_numbers))
}

async fn only_numbers(request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if looks && PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let message = "GET /metrics and GET /healthz are served here; the admin HTTP is another port";
    Refused(StatusCode::NOT_FOUND, message.to_owned()).into_response()
}
