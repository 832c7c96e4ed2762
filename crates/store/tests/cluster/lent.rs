//! A store that lends memory: it reaches that memory without a socket, and lets go of it with the node.

use crate::fleet::{Fleet, connect, node};
use mooncrate::Path;
use mooncrate_wire::Address;

#[test]
fn own_memory_is_reached_without_a_socket() {
    let fleet = Fleet::start(&[]);
    let store = connect(&fleet.address, true);
    let running = store.lend(node("own", &fleet.address, fleet.folder.path())).unwrap();
    let values = [vec![1; 100], vec![2; 200_000]];
    for (key, value) in [b"small", b"large"].iter().zip(&values) {
        store.put(*key, value).unwrap();
        assert_eq!(store.path(*key).unwrap(), Some(Path::Local));
        assert_eq!(store.get(*key).unwrap().as_ref(), Some(value));
    }
    // Another store of the same process, and a second node of the first, go the ways of others.
    let other = connect(&fleet.address, true);
    assert_eq!(other.get(b"large").unwrap().as_ref(), Some(&values[1]));
    assert_eq!(other.path(b"large").unwrap(), Some(Path::Shared));
    drop(running);
    // What the node held is gone with it, also for who remembers where it was.
    for store in [&store, &other] {
        assert_eq!(store.get(b"large").unwrap(), None);
    }
    let _running = store.lend(node("next", &fleet.address, fleet.folder.path())).unwrap();
    store.put(b"next", b"of the next node").unwrap();
    assert_eq!(store.get(b"next").unwrap().as_deref(), Some(&b"of the next node"[..]));
    assert_eq!(store.path(b"next").unwrap(), Some(Path::Shared));
}

/// A node that does not start leaves the place to the next one.
#[test]
fn a_node_that_does_not_start_leaves_its_place() {
    let fleet = Fleet::start(&[]);
    let store = connect(&fleet.address, true);
    let mut taken = node("own", &fleet.address, fleet.folder.path());
    taken.unix = Some(fleet.folder.path().join("no/such/folder/socket"));
    store.lend(taken).unwrap_err();
    let _running = store.lend(node("own", &fleet.address, fleet.folder.path())).unwrap();
    store.put(b"key", b"value").unwrap();
    assert_eq!(store.path(b"key").unwrap(), Some(Path::Local));
}

/// Was: the sockets of a node whose master did not take it stayed open, with their port, and the next one was found
/// elsewhere.
#[test]
fn a_node_that_is_not_taken_leaves_its_port() {
    let fleet = Fleet::start(&[]);
    let store = connect(&fleet.address, true);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = Address::Tcp(free.local_addr().unwrap().to_string());
    drop(free);
    // A master that says nothing.
    let silent = Address::Tcp(nobody.local_addr().unwrap().to_string());
    let mut options = node("own", &silent, fleet.folder.path());
    options.listen = Some(port.clone());
    let socket = options.unix.clone().unwrap();
    store.lend(options).unwrap_err();
    assert!(!socket.exists());
    let mut options = node("own", &fleet.address, fleet.folder.path());
    options.listen = Some(port.clone());
    let running = store.lend(options).unwrap();
    assert_eq!(running.data_address(), Some(port));
    store.put(b"key", b"value").unwrap();
    assert_eq!(store.path(b"key").unwrap(), Some(Path::Local));
}
