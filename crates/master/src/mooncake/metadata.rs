//! The metadata server of Mooncake's: a small map of keys to bytes, on a port of its own. Stores of ours
//! need none; it is there for programs that insist on one.
//!
//! ```text
//!   GET    /metadata?key=K    200 and the bytes, or 404
//!   PUT    /metadata?key=K    200; an `rpc_meta` key is not replaced by other bytes: 400
//!   DELETE /metadata?key=K    200, or 404
//!   GET    /health            OK
//! ```
//!
//! What must stay true: what it holds is bounded and gone with the process; nothing in it decides where
//! a value is.

use axum::Router;
use axum::body::{Bytes, HttpBody, to_bytes};
use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mooncrate_lock::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one key.
const KEY_BYTES_MAX: usize = 8192;
/// Bytes of one value.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of all keys and values.
const TOTAL_BYTES_MAX: usize = 64 << 20;
/// What an entry costs beside its bytes, so that empty ones are bounded, too.
const ENTRY_BYTES: usize = 128;
/// A key that holds this belongs to one writer.
const OWNED: &str = "rpc_meta";

/// What is kept.
#[derive(Debug, Default)]
struct Shelf {
    entries: BTreeMap<String, Bytes>,
    bytes: usize,
}

type Shared = Arc<Mutex<Shelf>>;
type Words = (StatusCode, &'static str);

/// Its routes, with nothing kept yet.
pub fn routes() -> Router {
    Router::new()
        .route("/metadata", get(look).put(keep).delete(drop_it))
        .route("/health", get(|| async { "OK" }))
        .method_not_allowed_fallback(super::nothing_here)
        .fallback(super::nothing_here)
        .with_state(Shared::default())
}

/// The key that is meant.
fn key_of(query: Option<&str>) -> Result<String, Words> {
    let missing = (StatusCode::BAD_REQUEST, "Missing key parameter");
    let bad = (StatusCode::BAD_REQUEST, "the key is no percent-encoded text of at most 8192 bytes");
    let key = crate::query::parameter(query.unwrap_or_default(), "key").map_err(|_| bad)?;
    let key = String::from_utf8(key.ok_or(missing)?).map_err(|_| bad)?;
    match key.len() {
        0 => Err(missing),
        1..=KEY_BYTES_MAX => Ok(key),
        _ => Err(bad),
    }
}

async fn look(State(shelf): State<Shared>, RawQuery(query): RawQuery) -> Result<Response, Words> {
    let key = key_of(query.as_deref())?;
    let found = shelf.lock().entries.get(&key).cloned();
    let bytes = found.ok_or((StatusCode::NOT_FOUND, "metadata not found"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

async fn keep(
    State(shelf): State<Shared>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<&'static str, Words> {
    let key = key_of(query.as_deref())?;
    let too_large = (StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large");
    // What is announced as too large is not waited for.
    if request.body().size_hint().lower() > VALUE_BYTES_MAX as u64 {
        return Err(too_large);
    }
    let body = to_bytes(request.into_body(), VALUE_BYTES_MAX).await.map_err(|_| too_large)?;
    shelf.lock().keep(key, &body)
}

async fn drop_it(
    State(shelf): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<&'static str, Words> {
    let key = key_of(query.as_deref())?;
    let mut shelf = shelf.lock();
    let gone = shelf.entries.remove(&key).ok_or((StatusCode::NOT_FOUND, "metadata not found"))?;
    shelf.bytes -= cost(&key, &gone);
    Ok("metadata deleted")
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

impl Shelf {
    fn keep(&mut self, key: String, value: &[u8]) -> Result<&'static str, Words> {
        let old = self.entries.get(&key);
        if let Some(old) = old.filter(|_| key.contains(OWNED)) {
            return if *old == value {
                Ok("metadata unchanged")
            } else {
                Err((StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed"))
            };
        }
        let freed = old.map_or(0, |old| cost(&key, old));
        let bytes = self.bytes - freed + cost(&key, value);
        if bytes > TOTAL_BYTES_MAX {
            return Err((StatusCode::INSUFFICIENT_STORAGE, "the metadata server is full"));
        }
        self.bytes = bytes;
        // A copy of its own: the body may lie in a buffer that is larger than it is.
        self.entries.insert(key, Bytes::copy_from_slice(value));
        Ok("metadata updated")
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_is_kept_is_counted_and_bounded() {
        let mut shelf = Shelf::default();
        let large = vec![7; VALUE_BYTES_MAX];
        let mut kept = 0;
        let full = loop {
            match shelf.keep(format!("k{kept}"), &large) {
                Ok(_) => kept += 1,
                Err((status, _)) => break status,
            }
        };
        assert_eq!(full, StatusCode::INSUFFICIENT_STORAGE);
        assert_eq!(kept, TOTAL_BYTES_MAX / VALUE_BYTES_MAX - 1, "what stands beside counts");
        // Replacing by less makes room.
        assert_eq!(shelf.keep("k0".into(), b""), Ok("metadata updated"));
        assert_eq!(shelf.keep("new".into(), &large), Ok("metadata updated"));
        let sum: usize = shelf.entries.iter().map(|(key, value)| cost(key, value)).sum();
        assert_eq!(shelf.bytes, sum);
    }

    #[test]
    fn an_owned_key_is_not_replaced_by_other_bytes() {
        let mut shelf = Shelf::default();
        let key = || "mooncake/rpc_meta/a".to_owned();
        assert_eq!(shelf.keep(key(), b"1"), Ok("metadata updated"));
        assert_eq!(shelf.keep(key(), b"1"), Ok("metadata unchanged"));
        let refused = shelf.keep(key(), b"2").unwrap_err();
        assert_eq!(refused.0, StatusCode::BAD_REQUEST);
        assert_eq!(shelf.entries[&key()], Bytes::from_static(b"1"));
    }

    #[test]
    fn keys_are_decoded_and_must_be_there() {
        assert_eq!(key_of(Some("key=mooncake%2Fram%2Fa:1")).unwrap(), "mooncake/ram/a:1");
        for bad in [None, Some(""), Some("key="), Some("key=%zz"), Some("key=%ff"), Some("k=1")] {
            assert!(key_of(bad).is_err(), "{bad:?}");
        }
        assert!(key_of(Some(&format!("key={}", "x".repeat(9000)))).is_err());
    }
}
