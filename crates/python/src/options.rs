//! How a store is opened, and what a put may wish: keyword arguments in plain words, checked here.

use crate::error::{Class, exception, invalid, make};
use crate::wait::waiting;
use bytesize::ByteSize;
use mooncrate::{
    Advice, ClientConfig, ConnectOptions, Credentials, EmbeddedOptions, Error, Masters,
    NodeOptions, PutConfig, Running, Security, SsdConfig, Store, TlsFiles, parse_ssds, this_host,
};
use mooncrate_core::TenantId;
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Keep, Medium, UnknownMedium};
use mooncrate_wire::{Address, LinkConfig, PoolConfig};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number of bytes: 4096 or "4GiB".
#[derive(Debug, FromPyObject)]
pub(crate) enum Size {
    Number(u64),
    Text(String),
}

impl Size {
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        match self {
            Self::Number(bytes) => Ok(*bytes),
            Self::Text(text) => text.parse().map(|ByteSize(bytes)| bytes).map_err(|_| {
                invalid(py, &format!("{text:?} is no size; write it as 256MiB or 1GiB"))
            }),
        }
    }
}

/// One disk as `PATH=SIZE`, or several.
#[derive(Debug, FromPyObject)]
pub(crate) enum Disks {
    One(String),
    Many(Vec<String>),
}

impl Disks {
    pub(crate) fn configs(&self, py: Python<'_>) -> PyResult<Vec<SsdConfig>> {
        let text = match self {
            Self::One(one) => one.clone(),
            Self::Many(many) if many.is_empty() => return Ok(Vec::new()),
            Self::Many(many) => many.join(";"),
        };
        parse_ssds(&text).map_err(|words| invalid(py, &format!("ssd: {words}")))
    }
}

/// The arguments of `Store(...)`.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) master: Option<String>,
    pub(crate) segment_size: Option<Size>,
    /// Disks, as `PATH=SIZE` with options.
    pub(crate) ssd: Option<Disks>,
    pub(crate) replicas: u8,
    pub(crate) tenant: String,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls: TlsFiles,
    pub(crate) timeout: f64,
    pub(crate) shared_memory: bool,
    pub(crate) host: Option<String>,
    pub(crate) zone: String,
    pub(crate) listen: Option<String>,
    /// Whether the memory may be larger than there is.
    pub(crate) memory_overcommit: bool,
    /// Whether reads and lookups keep values from being removed for a while.
    pub(crate) holds: bool,
}

impl Opening {
    /// Opens the store, and runs the node that lends memory where that was asked for.
    pub(crate) fn open(self, py: Python<'_>) -> PyResult<(Store, Option<Running>)> {
        let tenant = TenantId::named(&self.tenant).map_err(|e| invalid(py, &e.to_string()))?;
        let client = ClientConfig {
            call_time: span(py, "timeout", self.timeout)?,
            replicas: self.replicas,
            tenant,
            holds: self.holds,
            ..ClientConfig::default()
        };
        let bytes = self.segment_size.as_ref().map(|size| size.bytes(py)).transpose()?;
        match self.master.clone() {
            None => self.embedded(py, bytes, client),
            Some(master) => self.connected(py, &master, bytes, client),
        }
    }

    fn embedded(
        &self,
        py: Python<'_>,
        bytes: Option<u64>,
        client: ClientConfig,
    ) -> PyResult<(Store, Option<Running>)> {
        let tls = !self.tls.is_empty();
        let given = [
            ("token_file", self.token_file.is_some()),
            ("tls_cert, tls_key and tls_ca", tls),
            ("listen", self.listen.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
            let words = format!("{name} is for a store of a cluster; name it with master=");
            return Err(invalid(py, &words));
        }
        let ssd = self.disks(py)?;
        let memory_overcommit = self.memory_overcommit;
        let mut options =
            EmbeddedOptions { client, ssd, memory_overcommit, ..EmbeddedOptions::default() };
        match bytes {
            Some(0) => return Err(invalid(py, "a store in this process needs a segment_size")),
            Some(bytes) => options.segment_bytes = bytes,
            None => {}
        }
        let store = py.detach(|| Store::embedded(options)).map_err(|e| exception(py, e))?;
        Ok((store, None))
    }

    fn disks(&self, py: Python<'_>) -> PyResult<Vec<SsdConfig>> {
        self.ssd.as_ref().map_or_else(|| Ok(Vec::new()), |ssd| ssd.configs(py))
    }

    fn connected(
        self,
        py: Python<'_>,
        master: &str,
        bytes: Option<u64>,
        client: ClientConfig,
    ) -> PyResult<(Store, Option<Running>)> {
        let disks = self.disks(py)?;
        let master: Masters = master
            .parse()
            .map_err(|words: String| invalid(py, &format!("master={master:?}: {words}")))?;
        let host = self.host.unwrap_or_else(this_host);
        let credentials = Credentials { token_file: self.token_file, tls: self.tls };
        let access = credentials.access().map_err(|e| exception(py, e))?;
        let link = LinkConfig { access, ..LinkConfig::default() };
        let options = ConnectOptions {
            master: master.clone(),
            host: host.clone(),
            shared_memory: self.shared_memory,
            zone: self.zone.clone(),
            client,
            links: PoolConfig { link, ..PoolConfig::default() },
            ..ConnectOptions::default()
        };
        let store =
            waiting(py, || Store::connect(options))?.map_err(|e| unreached(py, &master, &e))?;
        let Some(segment_bytes) = bytes.filter(|bytes| *bytes > 0) else {
            if !disks.is_empty() {
                let words = "a store that lends a disk lends memory, too: give it a segment_size";
                return Err(invalid(py, words));
            }
            return Ok((store, None));
        };
        let listen = self.listen.as_deref().unwrap_or("127.0.0.1:0");
        let listen: Address = listen
            .parse()
            .map_err(|words: String| invalid(py, &format!("listen={listen:?}: {words}")))?;
        let security = credentials.security().map_err(|e| exception(py, e))?;
        let mut node = lent(master, listen, segment_bytes, host, self.zone, security);
        if let Some(first) = disks.first() {
            // What is on a disk is known under the node's name: the same after a restart.
            let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            node.name = format!("python-{}-{}", machine.trim(), first.path.display());
        }
        node.tier.disks = disks;
        node.memory_overcommit = self.memory_overcommit;
        let node = waiting(py, || store.lend(node))?.map_err(|e| exception(py, e))?;
        Ok((store, Some(node)))
    }
}

/// A node for the memory that a store of a cluster lends.
fn lent(
    master: Masters,
    listen: Address,
    segment_bytes: u64,
    host: String,
    zone: String,
    security: Security,
) -> NodeOptions {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: it only has to differ.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let start = mooncrate_wire::clock::boottime().0;
    // Unlike any other node: of this machine, of another process on it, or of this process.
    let mark = format!("{}-{start:x}-{count}", std::process::id());
    let unix = std::env::temp_dir().join(format!("mooncrate-{mark}.sock"));
    NodeOptions {
        name: format!("python-{host}-{mark}"),
        master,
        listen: Some(listen),
        unix: Some(unix),
        segment_bytes,
        host,
        zone,
        security,
        ..NodeOptions::default()
    }
}

/// A master that did not answer, or did not let us in.
fn unreached(py: Python<'_>, master: &Masters, error: &Error) -> PyErr {
    if error.is_denied() {
        // It was reached; its own words name the way out.
        return make(py, Class::Denied, &error.to_string(), error.advice());
    }
    let words = format!(
        "cannot reach the master at {master}: {error}; `mooncrate serve` starts one, and Store() \
         without a master needs none"
    );
    make(py, Class::Unavailable, &words, Advice::Retry { after_ms: 500 })
}

/// The wishes of a put, as they are given.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) replicas: Option<u8>,
    pub(crate) soft_pin: Option<f64>,
    pub(crate) hard_pin: bool,
    pub(crate) group: Option<String>,
    pub(crate) expire: Option<f64>,
    pub(crate) upsert: bool,
    /// Where all copies shall lie.
    pub(crate) medium: Option<String>,
}

impl Wishes {
    /// `config` with these wishes.
    pub(crate) fn onto(&self, py: Python<'_>, mut config: PutConfig) -> PyResult<PutConfig> {
        if let Some(replicas) = self.replicas {
            config.replicas = replicas;
        }
        config.keep = match self.soft_pin {
            Some(_) if self.hard_pin => {
                return Err(invalid(py, "a value has a soft pin or a hard pin, not both"));
            }
            Some(time) => Keep::Soft { ttl_ms: millis(py, "soft_pin", time)? },
            None if self.hard_pin => Keep::Hard,
            None => Keep::Normal,
        };
        if let Some(group) = &self.group {
            config.group = GroupId::named(group.as_bytes());
        }
        if let Some(time) = self.expire {
            config.expire_ms = millis(py, "expire", time)?;
        }
        config.upsert = self.upsert;
        if let Some(medium) = &self.medium {
            let medium: Medium =
                medium.parse().map_err(|error: UnknownMedium| invalid(py, &error.to_string()))?;
            config = config.on(medium);
        }
        Ok(config)
    }
}

/// A span of time in seconds.
pub(crate) fn span(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|span| !span.is_zero()).ok_or_else(|| {
        invalid(py, &format!("{name}={seconds} is no span of time; give seconds, more than 0"))
    })
}

/// The same in milliseconds, at least one.
fn millis(py: Python<'_>, name: &str, seconds: f64) -> PyResult<u32> {
    let millis = span(py, name, seconds)?.as_millis().max(1);
    u32::try_from(millis)
        .map_err(|_| invalid(py, &format!("{name}={seconds} is too long; at most 49 days")))
}
