//! Starting a server that would be open, and entering one with the wrong key.

use crate::cluster::{Guarded, any_port, secret, security};
use mooncrate::{
    Address, ConnectOptions, Credentials, Error, MasterOptions, NodeOptions, Security, Store,
    run_master, run_node,
};
use mooncrate_check::certs::Authority;
use mooncrate_wire::message::Role;
use mooncrate_wire::tls::TlsFiles;
use std::os::unix::fs::PermissionsExt;

#[test]
fn security_an_open_bind_needs_credentials_or_the_operators_word() {
    let open = || Address::Tcp("0.0.0.0:0".into());
    let error = run_master(MasterOptions { listen: open(), ..MasterOptions::default() });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::OpenBind { .. }), "{error}");
    for way in ["--token-file", "--tls-ca", "--insecure-listen", "0.0.0.0:0"] {
        assert!(error.to_string().contains(way), "{error}");
    }
    let cluster = Guarded::start(None);
    let node = NodeOptions {
        name: "open".into(),
        master: cluster.master().into(),
        listen: Some(open()),
        segment_bytes: 1 << 20,
        ..NodeOptions::default()
    };
    assert!(matches!(run_node(node.clone()), Err(Error::OpenBind { .. })));
    run_node(NodeOptions { security: security(), ..node }).unwrap().stop();
    let insisted = Security { insecure_listen: true, ..Security::default() };
    for security in [security(), insisted] {
        run_master(MasterOptions { listen: open(), security, ..MasterOptions::default() })
            .unwrap()
            .stop();
    }
}

/// A bearer token is sent as it is: nobody on the way may read it.
#[test]
fn security_grpc_beyond_loopback_needs_credentials_and_tls() {
    let open = || Some(Address::Tcp("0.0.0.0:0".into()));
    let start = |security: Security, grpc| {
        run_master(MasterOptions { listen: any_port(), security, grpc, ..MasterOptions::default() })
    };
    let folder = tempfile::tempdir().unwrap();
    let keep = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        Some(path)
    };
    let issued = Authority::default().issue(&["master.mooncrate"]);
    let (cert, key) = (keep("cert.pem", &issued.cert), keep("key.pem", &issued.key));
    let tls = TlsFiles { cert, key, ca: None };
    let encrypted = Credentials { token_file: None, tls: tls.clone() }.security().unwrap();
    let insisted = Security { insecure_listen: true, ..Security::default() };
    // Open; with a token in the clear; encrypted for everybody.
    for security in [Security::default(), insisted, security(), encrypted] {
        let error = start(security.clone(), open()).unwrap_err();
        assert!(matches!(error, Error::GrpcInTheClear { .. }), "{error}");
        for way in ["0.0.0.0:0", "--tls-cert", "--token-file", "--tls-ca", "--grpc off"] {
            assert!(error.to_string().contains(way), "{error}");
        }
        let running = start(security, Some(any_port())).unwrap();
        assert!(running.grpc_address().is_some(), "on loopback it opens");
        running.stop();
    }
    let token_file = keep("cluster.token", &secret().to_hex());
    let both = Credentials { token_file, tls }.security().unwrap();
    start(both, open()).unwrap().stop();
}

#[test]
fn security_a_server_needs_the_secret_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let token = secret().derive(Role::Node, "").unwrap();
    std::fs::write(&path, token.to_text()).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let credentials = Credentials { token_file: Some(path), ..Credentials::default() };
    assert!(matches!(credentials.security(), Err(Error::DerivedToken)));
    assert!(credentials.access().is_ok());
}

#[test]
fn security_strangers_and_open_clusters_are_told_apart() {
    let cluster = Guarded::start(None);
    let stranger = ConnectOptions { master: cluster.master().into(), ..ConnectOptions::default() };
    let error = Store::connect(stranger).unwrap_err();
    assert!(error.is_denied() && error.to_string().contains("--token-file"), "{error}");
    // A node that does not know the secret does not join.
    let node = NodeOptions {
        name: "stranger".into(),
        master: cluster.master().into(),
        listen: Some(any_port()),
        segment_bytes: 1 << 20,
        ..NodeOptions::default()
    };
    let error = run_node(node).unwrap_err();
    assert!(error.is_denied(), "{error}");
}
