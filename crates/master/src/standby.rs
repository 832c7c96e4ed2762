//! The admin HTTP of a master that stands for election: while it leads, the usual window; while it
//! does not, 503 and where the leader is.

use crate::mooncake::standby;
use crate::seat::Seat;
use crate::service::Master;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use std::sync::Arc;
use tower::ServiceExt;

/// Routes that answer for whoever leads here. `window` makes the routes of one master.
pub fn router(
    seat: Arc<Seat>,
    window: impl Fn(Arc<Master>) -> Router + Clone + Send + Sync + 'static,
) -> Router {
    Router::new().fallback(move |request: Request| {
        let (seat, window) = (Arc::clone(&seat), window.clone());
        async move { answer(&seat, window, request).await }
    })
}

/// The same for a window with Mooncake's routes, whose words a standby then uses, too.
pub fn router_with_mooncake(
    seat: Arc<Seat>,
    window: impl Fn(Arc<Master>) -> Router + Clone + Send + Sync + 'static,
) -> Router {
    Router::new().fallback(move |request: Request| {
        let (seat, window) = (Arc::clone(&seat), window.clone());
        async move {
            let path = request.uri().path();
            match seat.master().is_none().then(|| standby(&seat, path)).flatten() {
                Some(response) => response,
                None => answer(&seat, window, request).await,
            }
        }
    })
}

async fn answer(seat: &Seat, window: impl Fn(Arc<Master>) -> Router, request: Request) -> Response {
    let Some(master) = seat.master() else {
        let (error, leader) = (seat.refusal().message, seat.leader());
        let body = Json(json!({ "status": "standby", "error": error, "leader": leader }));
        return (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    };
    match window(master).oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
