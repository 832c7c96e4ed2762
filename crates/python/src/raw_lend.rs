//! Memory that a store lends to its cluster under a name of its choice, and segments that come and go.

use crate::error::{exception, invalid};
use crate::fork::{Own, drop_detached};
use crate::options::Disks;
use crate::store::Store;
use crate::wait::waiting;
use mooncrate::{Credentials, Error, NodeOptions, Running, TierConfig, TlsFiles, this_host};
use mooncrate_lock::Mutex;
use mooncrate_wire::{Address, Masters};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A node in this process that serves memory lent by a store; it says farewell when it is closed or dropped.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct Lender {
    held: Own<Mutex<Option<Running>>>,
    /// `host:port` where its values are served.
    #[pyo3(get)]
    endpoint: String,
    /// Its name in the cluster.
    #[pyo3(get)]
    name: String,
}

/// Where the memory of this start is handed out on this machine.
fn socket() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: it only has to differ.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let start = mooncrate_wire::clock::boottime().0;
    std::env::temp_dir().join(format!("mooncrate-{}-{start:x}-{count}.sock", std::process::id()))
}

#[pymethods]
impl Lender {
    #[new]
    #[pyo3(signature = (store, *, master, name, listen, segment_size, ssd=None, host=None, token_file=None,
        tls_cert=None, tls_key=None, tls_ca=None, insecure_listen=false,
        memory_overcommit=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        store: &Store,
        master: &str,
        name: String,
        listen: &str,
        segment_size: u64,
        ssd: Option<Disks>,
        host: Option<String>,
        token_file: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        insecure_listen: bool,
        memory_overcommit: bool,
    ) -> PyResult<Self> {
        let bad = |what: &str, words: String| invalid(py, &format!("{what}: {words}"));
        let master: Masters = master.parse().map_err(|words| bad("master", words))?;
        let listen: Address = listen.parse().map_err(|words| bad("listen", words))?;
        let tls = TlsFiles { cert: tls_cert, key: tls_key, ca: tls_ca };
        let credentials = Credentials { token_file, tls };
        let mut security = credentials.security().map_err(|error| exception(py, error))?;
        security.insecure_listen = insecure_listen;
        let disks = ssd.map_or_else(|| Ok(Vec::new()), |ssd| ssd.configs(py))?;
        let options = NodeOptions {
            name: name.clone(),
            master,
            listen: Some(listen),
            unix: Some(socket()),
            segment_bytes: segment_size,
            memory_overcommit,
            host: host.unwrap_or_else(this_host),
            security,
            tier: TierConfig { disks, ..TierConfig::default() },
            ..NodeOptions::default()
        };
        let running = store.detached(py, |live| live.store().lend(options))?;
        let running = running.map_err(|error| exception(py, error))?;
        let endpoint = match running.data_address() {
            Some(Address::Tcp(address)) => address,
            _ => String::new(),
        };
        Ok(Self { held: Own::new(Mutex::new(Some(running))), endpoint, name })
    }

    /// Mounts one more segment; its id.
    fn mount(&self, py: Python<'_>, index: u16, bytes: u64) -> PyResult<u64> {
        let node = self.node(py)?;
        let mounted = waiting(py, || node.mount_segment(index, bytes))?;
        mounted.map(|id| id.0).map_err(|error| exception(py, Error::Node(error)))
    }

    /// Gives a segment up, with what it still holds.
    fn unmount(&self, py: Python<'_>, index: u16) -> PyResult<()> {
        let node = self.node(py)?;
        let done = waiting(py, || node.unmount_segment(index))?;
        done.map_err(|error| exception(py, Error::Node(error)))
    }

    /// Says farewell and serves no more. More than once is fine.
    fn close(&self, py: Python<'_>) {
        let running = self.held.get().and_then(|held| held.lock().take());
        py.detach(|| drop(running));
    }
}

impl Lender {
    fn node(&self, py: Python<'_>) -> PyResult<std::sync::Arc<mooncrate_node::Node>> {
        let held = self.held.get().ok_or_else(|| crate::error::forked(py))?;
        let node = held.lock().as_ref().and_then(|running| running.node().cloned());
        node.ok_or_else(|| crate::error::closed(py))
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if let Some(running) = self.held.get().and_then(|held| held.lock().take()) {
            drop_detached(running);
        }
    }
}
