//! Before anything listens: is the address one that only this machine can reach, and is it free?
//!
//! What must stay true: nothing here opens a door. Whoever could connect could read and write every
//! value, so an address that other machines reach needs credentials, or the operator's word.

use crate::failure::Failure;
use mooncrate_wire::Address;
use mooncrate_wire::address::Bound;
use std::fs;
use std::io;

/// One door that a command is about to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door<'a> {
    /// What listens there.
    pub(crate) what: &'static str,
    /// Where.
    pub(crate) address: &'a Address,
    /// The flag that moves it.
    pub(crate) flag: &'static str,
}

/// Refuses addresses that other machines can reach, unless callers are asked for credentials
/// (`guarded`) or the operator insists.
pub(crate) fn check_loopback(door: Door<'_>, guarded: bool, insecure: bool) -> Result<(), Failure> {
    if insecure || is_loopback(door)? || guarded {
        return Ok(());
    }
    let Door { what, address, flag } = door;
    let message = format!(
        "{what} would listen on {address}, where other machines could reach it, and nobody is asked \
         for credentials; only loopback addresses are open without them"
    );
    let hint = format!(
        "give --token-file (`mooncrate token new > cluster.token`), or --tls-cert, --tls-key and \
         --tls-ca, or choose {flag} 127.0.0.1:PORT, or accept the risk with --insecure-listen"
    );
    Err(Failure::usage(message).hint(hint))
}

/// The admin HTTP has no way out: it tells every key to whoever asks.
pub(crate) fn check_admin(door: Door<'_>) -> Result<(), Failure> {
    check_here(door, "it tells every key to whoever asks")
}

/// The same for whatever is for this machine only, and why.
pub(crate) fn check_here(door: Door<'_>, why: &str) -> Result<(), Failure> {
    if is_loopback(door)? {
        return Ok(());
    }
    let Door { what, address, flag } = door;
    let message =
        format!("{what} would listen on {address}; it listens on loopback only, because {why}");
    Err(Failure::usage(message).hint(format!("choose {flag} 127.0.0.1:PORT, or {flag} off")))
}

fn is_loopback(door: Door<'_>) -> Result<bool, Failure> {
    let Door { what, address, flag } = door;
    address.is_loopback().map_err(|error| {
        let message = format!("{what} cannot listen on {address}: {error}");
        Failure::usage(message).hint(format!("choose another address with {flag}"))
    })
}

/// Tries the address and lets it go again, so that the usual trouble is met with a good answer.
/// Whoever takes the address in between is met by the listener itself.
pub(crate) fn check_free(door: Door<'_>) -> Result<(), Failure> {
    match Bound::listen(door.address) {
        Ok(_) => {
            // A Unix socket leaves a file behind, which the real listener would have to clear.
            if let Address::Unix(path) = door.address {
                let _ = fs::remove_file(path);
            }
            Ok(())
        }
        Err(error) => Err(explain(door, &error)),
    }
}

/// Why listening failed, and what to do.
pub(crate) fn explain(door: Door<'_>, error: &io::Error) -> Failure {
    let Door { what, address, flag } = door;
    if error.kind() != io::ErrorKind::AddrInUse {
        let why = match error.kind() {
            io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
            _ => error.to_string(),
        };
        let message = format!("{what} cannot listen on {address}: {why}");
        return Failure::usage(message).hint(format!("choose another address with {flag}"));
    }
    let port = match address {
        Address::Tcp(name) => name.rsplit_once(':').and_then(|(_, port)| port.parse().ok()),
        Address::Unix(_) => None,
    };
    let taken = match port {
        Some(port) => format!("port {port} is taken by {}", holder(port)),
        None => format!("{address} is taken, perhaps by another mooncrate"),
    };
    Failure::usage(format!("{what} cannot listen on {address}: {taken}"))
        .hint(format!("stop that one, or choose another address with {flag}"))
}

/// Who listens on a TCP port, as far as this user may know.
fn holder(port: u16) -> String {
    match listening_inode(port).as_deref().and_then(process_with_socket) {
        Some((id, name)) if id == std::process::id() => {
            format!("process {id} ({name}), which is this one: two flags name one address")
        }
        Some((id, name)) => format!("process {id} ({name})"),
        None => format!("a process of another user (`ss -ltnp 'sport = :{port}'` may tell)"),
    }
}

fn listening_inode(port: u16) -> Option<String> {
    const LISTENING: &str = "0A";
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        fs::read_to_string(table).ok()?.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let found = fields.get(1)?.ends_with(&wanted) && *fields.get(3)? == LISTENING;
            found.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
    })
}

fn process_with_socket(inode: &str) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let id: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        files.find(|file| {
            fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
        })?;
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some((id, name.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(address: &Address) -> Door<'_> {
        Door { what: "the master", address, flag: "--master" }
    }

    #[test]
    fn only_loopback_is_open_without_the_operators_word() {
        for text in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix:/x"] {
            let address = text.parse().unwrap();
            assert_eq!(check_loopback(door(&address), false, false), Ok(()), "{text}");
            assert_eq!(check_admin(door(&address)), Ok(()), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let address = text.parse().unwrap();
            let error = check_loopback(door(&address), false, false).unwrap_err().to_string();
            assert!(error.contains("only loopback") && error.contains(text), "{error}");
            assert!(error.contains("--insecure-listen") && error.contains("--master"), "{error}");
            for way in ["--token-file", "--tls-cert", "--tls-ca"] {
                assert!(error.contains(way), "{error}");
            }
            assert_eq!(check_loopback(door(&address), false, true), Ok(()), "{text}");
            assert_eq!(check_loopback(door(&address), true, false), Ok(()), "{text}");
            let error = check_admin(door(&address)).unwrap_err().to_string();
            assert!(error.contains("loopback only"), "{error}");
        }
    }

    #[test]
    fn a_taken_port_names_its_holder_and_the_flag() {
        let holder = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address = holder.address().unwrap();
        let error = check_free(door(&address)).unwrap_err().to_string();
        let port = address.to_string().rsplit_once(':').unwrap().1.to_owned();
        assert!(error.contains(&format!("port {port} is taken")), "{error}");
        assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
        assert!(error.contains("--master"), "{error}");
        drop(holder);
        assert_eq!(check_free(door(&address)), Ok(()));
    }

    #[test]
    fn a_path_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("s"));
        assert_eq!(check_free(door(&address)), Ok(()));
        assert!(!folder.path().join("s").exists());
        let _holder = Bound::listen(&address).unwrap();
        let error = check_free(door(&address)).unwrap_err().to_string();
        assert!(error.contains("taken"), "{error}");
        let nowhere = Address::Unix("/no/such/folder/s".into());
        let error = check_free(door(&nowhere)).unwrap_err().to_string();
        assert!(error.contains("cannot listen"), "{error}");
    }
}
