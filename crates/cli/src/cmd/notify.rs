//! The service manager's notification socket: tells systemd when a server is ready and when it begins to stop.
//!
//! A unit with `Type=notify` sets `NOTIFY_SOCKET`. Without that variable nothing is sent. A message that cannot be sent
//! is logged and changes nothing else: the server works without a service manager.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The server answers requests.
pub(super) const READY: &str = "READY=1";
/// The server has begun to stop: it drains, then it ends.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Sends a message to the service manager that started this process, if there is one.
pub(super) fn notify(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, message) {
        tracing::warn!(%error, message, "cannot notify the service manager");
    }
}

/// A name that begins with `@` is in Linux's abstract namespace, any other is a path.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut room = [0; 64];
        let length = socket.recv(&mut room).unwrap();
        String::from_utf8(room[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_message_reaches_a_socket_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        assert_eq!(received(&by_path), READY);

        let name = format!("mooncrate-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        assert_eq!(received(&by_name), STOPPING);
    }

    #[test]
    fn a_socket_that_nothing_reads_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().unwrap();
        assert!(send(folder.path().join("absent").as_os_str(), READY).is_err());
    }
}
