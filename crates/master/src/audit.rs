//! One line per change that an administrator makes: who, what, how many. Keys are never shown.

use mooncrate_wire::auth::mutates;
use mooncrate_wire::message::{DrainWish, Role};
use mooncrate_wire::server::Peer;
use mooncrate_wire::{Kind, Request};

/// A line in the audit log. `who` is a name for people (a peer's, an address); `what` a verb with its
/// object, in plain words and without keys.
pub fn line(who: &str, what: &str) {
    tracing::info!(target: "audit", who, what, "audit");
}

/// What an admin asks for over a control link.
pub(crate) fn admin(peer: &Peer, request: &Request<'_>) {
    if peer.role != Role::Admin || !mutates(request.kind()) {
        return;
    }
    // Looking how far a drain is changes nothing.
    if matches!(request, Request::Drain(ask) if ask.wish == DrainWish::Look) {
        return;
    }
    let what = match request {
        Request::Remove(remove) if remove.force => {
            format!("remove {} keys by force", remove.keys.len())
        }
        Request::Remove(remove) => format!("remove {} keys", remove.keys.len()),
        Request::PutStart(put) => format!("start {} puts", put.items.len()),
        other => Kind::name(other.kind()).to_owned(),
    };
    let Peer { name, tenant, connection, .. } = peer;
    let who = format!("admin {name:?}, tenant {tenant}, connection {connection}");
    line(&who, &what);
}
