//! What every TCP connection is told, on both its ends.

use socket2::{Socket, TcpKeepalive};
use std::io;
use std::time::Duration;

/// How long a peer may be silent where it should have answered, before it counts as gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);

/// Sends what there is at once, and notices a peer that vanished without a word: by bytes that it does
/// not acknowledge, and where none are under way by asking it. Without the second a peer whose last
/// packets were lost would keep its pins, its open put and its place for ever.
pub(crate) fn tune(socket: &Socket, silence: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(silence))?;
    // The kernel counts these in seconds; the user timeout decides when unanswered ones are enough.
    let asking = silence.max(Duration::from_secs(1));
    let probes = TcpKeepalive::new().with_time(asking).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&probes)
}
