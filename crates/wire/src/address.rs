//! Where a peer listens, and listening itself: `host:port`, or `unix:/path`.

use mooncrate_rt as rt;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How long the kernel of this machine may take to refuse a connection: it does so at once, or not at all.
const REFUSAL_TIME: Duration = Duration::from_millis(50);

/// Where a peer listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host, by name or number, and a port.
    Tcp(String),
    /// A path on the same machine.
    Unix(PathBuf),
}

impl Address {
    /// Socket addresses to try, in order. A name is looked up by the system's resolver, which has
    /// timeouts of its own: use numbers where every millisecond of a deadline counts.
    pub fn resolve(&self) -> io::Result<Vec<SockAddr>> {
        match self {
            Self::Tcp(name) => {
                let found: Vec<_> = name.to_socket_addrs()?.map(SockAddr::from).collect();
                if found.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
                }
                Ok(found)
            }
            Self::Unix(path) => Ok(vec![SockAddr::unix(path)?]),
        }
    }

    /// How a world knows it.
    pub fn name_in_world(&self) -> String {
        match self {
            Self::Tcp(name) => name.clone(),
            Self::Unix(path) => path.display().to_string(),
        }
    }

    /// Whether the system chooses the port: nobody can listen at the same address on purpose later.
    pub fn is_any_port(&self) -> bool {
        let port = |name: &str| name.rsplit_once(':')?.1.parse::<u16>().ok();
        matches!(self, Self::Tcp(name) if port(name) == Some(0))
    }

    /// Whether the kernel of this machine says that no process listens there. Asked only where the address is
    /// one of this machine: elsewhere a packet filter or a proxy may refuse in the name of a peer that is alive.
    /// So may a forwarder on this machine: whoever asks knows that the peer runs here, too.
    pub fn nobody_listens(&self) -> bool {
        if let Some(world) = rt::world() {
            let asked = world.connect(&self.name_in_world(), REFUSAL_TIME);
            return asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        }
        let refused = |target: &SockAddr| {
            let asked = Socket::new(target.domain(), Type::STREAM, None)
                .and_then(|socket| socket.connect_timeout(target, REFUSAL_TIME));
            asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        let found = self.resolve().unwrap_or_default();
        !found.is_empty() && found.iter().all(|target| is_here(target) && refused(target))
    }

    /// Whether only this machine can connect to it.
    pub fn is_loopback(&self) -> io::Result<bool> {
        Ok(self.resolve()?.iter().all(|address| match address.as_socket() {
            Some(address) => address.ip().to_canonical().is_loopback(),
            None => address.is_unix(),
        }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(name) => f.write_str(name),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("`unix:` needs a path, as in unix:/run/mooncrate.sock".to_owned());
            }
            return Ok(Self::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(text.to_owned()))
            }
            _ => Err(format!("`{text}` is neither host:port nor unix:/path")),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address.to_string())
    }
}

/// How a world knows an address.
pub(crate) fn name_of(target: &SockAddr) -> String {
    match (target.as_socket(), target.as_pathname()) {
        (Some(address), _) => address.to_string(),
        (_, Some(path)) => path.display().to_string(),
        _ => String::new(),
    }
}

/// Whether an address is one of this machine: what is sent there by default comes from the same address.
fn is_here(target: &SockAddr) -> bool {
    let Some(target) = target.as_socket() else { return target.is_unix() };
    let unspecified: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent: the kernel only chooses the route.
    let routed = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    routed.is_ok_and(|own| own.ip() == target.ip())
}

/// A listening socket, not yet tied to a runtime: each worker thread takes a clone.
#[derive(Debug)]
pub enum Bound {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
    /// An address of the world that this thread has entered.
    World(Address),
}

impl Bound {
    /// Listens. The socket does not block, as async runtimes want it.
    pub fn listen(address: &Address) -> io::Result<Self> {
        if rt::world().is_some() {
            return Ok(Self::World(address.clone()));
        }
        match address {
            Address::Tcp(_) => {
                let addresses = address.resolve()?;
                let socket = Socket::new(addresses[0].domain(), Type::STREAM, None)?;
                // A restarted server must not wait for old connections to time out.
                socket.set_reuse_address(true)?;
                socket.bind(&addresses[0])?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Tcp(socket.into()))
            }
            Address::Unix(path) => {
                clear_stale(path)?;
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.bind(&SockAddr::unix(path)?)?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(socket.into()))
            }
        }
    }

    /// Where it listens really: the port that was given for port 0.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.into(),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Address::Unix(address.as_pathname().map(PathBuf::from).unwrap_or_default())
            }
            Self::World(address) => address.clone(),
        })
    }

    /// The same socket once more, for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
            Self::World(address) => Self::World(address.clone()),
        })
    }
}

/// Removes the socket file of a server that is gone. One that answers is left alone, and so is
/// everything that is not a socket.
fn clear_stale(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if found.file_type().is_socket()
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:7070", "[::1]:9", "node-3.local:80", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "nohost", ":80", "host:port", "host:99999", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_port_that_was_given_is_known() {
        let any: Address = "127.0.0.1:0".parse().unwrap();
        assert!(any.is_any_port());
        let bound = Bound::listen(&any).unwrap();
        assert!(!bound.address().unwrap().is_any_port());
        for named in ["127.0.0.1:10", "unix:/run/x:0"] {
            assert!(!named.parse::<Address>().unwrap().is_any_port(), "{named}");
        }
    }

    /// Only a refusal by this machine proves that there is no listener.
    #[test]
    fn no_listener_is_told_from_a_silent_one() {
        let folder = tempfile::tempdir().unwrap();
        let unix = Address::Unix(folder.path().join("s"));
        assert!(!unix.nobody_listens(), "the file may have been deleted under a listener");
        for address in ["127.0.0.1:0".parse().unwrap(), unix] {
            let bound = Bound::listen(&address).unwrap();
            let address = bound.address().unwrap();
            assert!(
                !address.nobody_listens(),
                "{address} accepts, whether its process runs or not"
            );
            drop(bound);
            assert!(address.nobody_listens(), "{address}");
        }
        // A documentation address: somebody else's, whatever refuses there.
        assert!(!"192.0.2.1:9".parse::<Address>().unwrap().nobody_listens());
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("s"));
        let first = Bound::listen(&address).unwrap();
        assert_eq!(first.address().unwrap(), address);
        assert_eq!(Bound::listen(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        Bound::listen(&address).unwrap();
    }
}
