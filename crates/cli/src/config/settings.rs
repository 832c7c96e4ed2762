//! The settings with their types, as the commands use them.

use super::Layers;
use super::keys::{
    AUTO, OFF, address, count, endpoints, gpus, masters, permille, size, span, switch, tenant,
    users,
};
use mooncrate::{Credentials, TierConfig, TlsFiles, VramConfig, parse_ssds};
use mooncrate_core::TenantId;
use mooncrate_core::catalog::Offload;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::ids::name_hash;
use mooncrate_core::place::PlacementKind;
use mooncrate_wire::{Address, Masters};
use std::path::{Path, PathBuf};
use std::time::Duration;

const CHECKED: &str = "every layer checks its values";

/// Where a master answers gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grpc {
    /// Where gRPC usually is, in a `serve` whose master is where it usually is; else nowhere, so
    /// that a second cluster on the machine does not meet the first one there.
    Auto,
    /// Nowhere.
    Off,
    /// Here.
    At(Address),
}

/// What is offered to programs that were written for Mooncake.
#[derive(Clone, Debug)]
pub(crate) struct Mooncake {
    /// Whether the admin HTTP has its routes.
    pub(crate) http: bool,
    /// Whether those for quotas are among them.
    pub(crate) quotas: bool,
    /// Where its metadata server listens.
    pub(crate) metadata: Option<Address>,
    /// The directory in which its stores keep their disks, unless they name one.
    pub(crate) root: Option<String>,
    /// Where its dummy stores ask for a cluster.
    pub(crate) door: Option<Address>,
    /// The tenant that they are told.
    pub(crate) tenant: String,
}

/// How a master uses the disks of its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffloadSettings {
    /// When objects are copied to disks …
    pub(crate) policy: Offload,
    /// … and how full a segment may be before that begins ahead of evictions, in thousandths.
    pub(crate) above: u32,
    /// Whether what is read from disks repeatedly comes back into memory.
    pub(crate) promote: bool,
    /// At which read.
    pub(crate) promote_reads: u32,
}

/// Where a master keeps what the next one must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StateFile {
    /// Where the platform keeps state, named by its address.
    Usual,
    /// Nowhere.
    Off,
    /// There.
    At(PathBuf),
}

impl StateFile {
    fn parse(text: &str) -> Self {
        match text {
            AUTO => Self::Usual,
            OFF => Self::Off,
            path => Self::At(path.into()),
        }
    }
}

/// What the commands start from.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that somebody can set")]
pub(crate) struct Settings {
    /// Where the master listens, or where masters are found.
    pub(crate) master: Masters,
    /// Where the admin HTTP of a master listens.
    pub(crate) admin: Option<Address>,
    /// Where that of a node alone listens.
    pub(crate) node_admin: Option<Address>,
    /// Where other machines read metrics and health.
    pub(crate) metrics_listen: Option<Address>,
    /// Where a master answers gRPC.
    pub(crate) grpc: Grpc,
    /// Where a node listens for readers and writers.
    pub(crate) data: Option<Address>,
    /// Where a node hands out shared memory.
    pub(crate) unix: Option<PathBuf>,
    /// Whether listeners may be reached from other machines.
    pub(crate) insecure_listen: bool,
    /// Token and certificates, shown and asked for.
    pub(crate) credentials: Credentials,
    /// The tenant that a node is dedicated to.
    pub(crate) tenant: Option<TenantId>,
    /// Users who may map a node's memory.
    pub(crate) share_users: Vec<u32>,
    /// What is offered to programs that were written for Mooncake.
    pub(crate) mooncake: Mooncake,
    /// Bytes of a node's segment.
    pub(crate) segment_bytes: u64,
    /// Headers in its table.
    pub(crate) slots: Option<u32>,
    /// Whether it is made of huge pages.
    pub(crate) huge_pages: bool,
    /// Whether it may be larger than the memory there is.
    pub(crate) memory_overcommit: bool,
    /// Whether its pages are taken at the start.
    pub(crate) prefault: bool,
    /// GPUs whose memory it lends.
    pub(crate) vram: Vec<VramConfig>,
    /// Its disks.
    pub(crate) tier: TierConfig,
    /// The node's name.
    pub(crate) node_name: String,
    /// The machine.
    pub(crate) host: String,
    /// The failure zone.
    pub(crate) zone: String,
    /// How long a node that stops may hand its values over; `None`: it stops at once.
    pub(crate) drain_on_stop: Option<Duration>,
    /// Where a master keeps its state.
    pub(crate) state_file: StateFile,
    /// Where etcd is; none: the master is the only one.
    pub(crate) etcd: Vec<String>,
    /// What our keys there begin with.
    pub(crate) etcd_prefix: String,
    /// The name of a master among several; `None`: from its machine and its port.
    pub(crate) name: Option<String>,
    /// Where others reach it; `None`: where it listens.
    pub(crate) advertise: Option<Address>,
    /// How long a silent leader keeps its seat.
    pub(crate) election_ttl: Duration,
    /// Threads of a master.
    pub(crate) workers: usize,
    /// When an open put gives its key back.
    pub(crate) put_timeout: Duration,
    /// How long lookups that ask for it keep values from being removed.
    pub(crate) lease_ttl: Duration,
    /// Which objects go first.
    pub(crate) evict_policy: PolicyKind,
    /// How full a segment may be before objects go, in thousandths …
    pub(crate) evict_above: u32,
    /// … and how full it is when that ends.
    pub(crate) evict_to: u32,
    /// Where objects go.
    pub(crate) placement: PlacementKind,
    /// What goes to disks, and what comes back.
    pub(crate) offload: OffloadSettings,
    /// Whether clients map the memory of nodes on the same machine.
    pub(crate) shared_memory: bool,
    /// How long a client waits for one call.
    pub(crate) deadline: Duration,
    /// What is logged.
    pub(crate) log: Option<String>,
}

impl Settings {
    /// Types for the values. `runtime_dir` is where this user's sockets live, if there is a place.
    pub(crate) fn new(layers: &Layers, runtime_dir: Option<&Path>) -> Self {
        let or_off = |name| Some(layers.value(name)).filter(|value| *value != OFF);
        let or_auto = |name| Some(layers.value(name)).filter(|value| *value != AUTO);
        let truth = |name| switch(layers.value(name)).expect(CHECKED);
        let time = |name| span(layers.value(name)).expect(CHECKED);
        let data = or_off("data").map(|text| address(text).expect(CHECKED));
        let label = label(data.as_ref());
        let tier = tier(layers);
        let host = or_auto("host").map_or_else(mooncrate::this_host, str::to_owned);
        let unix = or_off("unix").map(|text| match text {
            AUTO => socket_path(&label, runtime_dir),
            path => PathBuf::from(path),
        });
        Self {
            master: masters(layers.value("master")).expect(CHECKED),
            admin: or_off("admin").map(|text| address(text).expect(CHECKED)),
            node_admin: or_off("node_admin").map(|text| address(text).expect(CHECKED)),
            metrics_listen: or_off("metrics_listen").map(|text| address(text).expect(CHECKED)),
            grpc: match layers.value("grpc") {
                AUTO => Grpc::Auto,
                OFF => Grpc::Off,
                text => Grpc::At(address(text).expect(CHECKED)),
            },
            data,
            unix,
            insecure_listen: truth("insecure_listen"),
            credentials: credentials(layers),
            tenant: or_off("tenant").map(|text| tenant(text).expect(CHECKED)),
            share_users: or_off("share_users")
                .map_or_else(Vec::new, |text| users(text).expect(CHECKED)),
            mooncake: mooncake(layers),
            segment_bytes: size(layers.value("segment_size")).expect(CHECKED),
            slots: or_auto("slots").map(|text| count(text).expect(CHECKED)),
            huge_pages: truth("huge_pages"),
            memory_overcommit: truth("memory_overcommit"),
            prefault: truth("prefault"),
            vram: or_off("vram").map_or_else(Vec::new, |text| gpus(text).expect(CHECKED)),
            node_name: or_auto("node_name").map_or_else(
                || {
                    let kept = tier.disks.first().map(|disk| disk_label(&disk.path));
                    format!("{}-{}", hostname(), kept.unwrap_or(label))
                },
                str::to_owned,
            ),
            tier,
            host,
            zone: or_auto("zone").unwrap_or_default().to_owned(),
            drain_on_stop: or_off("drain_on_stop").map(|text| span(text).expect(CHECKED)),
            state_file: StateFile::parse(layers.value("state_file")),
            etcd: or_off("etcd").map(|text| endpoints(text).expect(CHECKED)).unwrap_or_default(),
            etcd_prefix: layers.value("etcd_prefix").to_owned(),
            name: or_auto("name").map(str::to_owned),
            advertise: or_auto("advertise").map(|text| address(text).expect(CHECKED)),
            election_ttl: time("election_ttl"),
            workers: or_auto("workers").map_or_else(mooncrate::workers_by_cores, whole),
            put_timeout: time("put_timeout"),
            lease_ttl: time("lease_ttl"),
            evict_policy: layers.value("evict_policy").parse().expect(CHECKED),
            evict_above: permille(layers.value("evict_above")).expect(CHECKED),
            evict_to: permille(layers.value("evict_to")).expect(CHECKED),
            placement: layers.value("placement").parse().expect(CHECKED),
            offload: offload(layers),
            shared_memory: truth("shared_memory"),
            deadline: time("deadline"),
            log: or_auto("log").map(str::to_owned),
        }
    }
}

/// The disks of a node.
fn tier(layers: &Layers) -> TierConfig {
    let or_off = |name| Some(layers.value(name)).filter(|value| *value != OFF);
    let bytes = |name| or_off(name).map(|text| size(text).expect(CHECKED));
    TierConfig {
        disks: or_off("ssd").map_or_else(Vec::new, |text| parse_ssds(text).expect(CHECKED)),
        staging_bytes: size(layers.value("staging_size")).expect(CHECKED),
        write_bytes_per_day: bytes("ssd_writes_per_day"),
        scrub_bytes_per_second: bytes("scrub_rate").unwrap_or(0),
        ..TierConfig::default()
    }
}

/// What is offered to programs that were written for Mooncake.
fn mooncake(layers: &Layers) -> Mooncake {
    let or_off = |name| Some(layers.value(name)).filter(|value| *value != OFF);
    let truth = |name| switch(layers.value(name)).expect(CHECKED);
    Mooncake {
        http: truth("mooncake_http"),
        quotas: truth("mooncake_quotas"),
        metadata: or_off("mooncake_metadata").map(|text| address(text).expect(CHECKED)),
        root: or_off("mooncake_root").map(str::to_owned),
        door: or_off("mooncake_door").map(|text| address(text).expect(CHECKED)),
        tenant: layers.value("mooncake_tenant").to_owned(),
    }
}

fn credentials(layers: &Layers) -> Credentials {
    let file = |name| Some(layers.value(name)).filter(|value| *value != OFF).map(PathBuf::from);
    Credentials {
        token_file: file("token_file"),
        tls: TlsFiles { cert: file("tls_cert"), key: file("tls_key"), ca: file("tls_ca") },
    }
}

fn offload(layers: &Layers) -> OffloadSettings {
    OffloadSettings {
        policy: layers.value("offload").parse().expect(CHECKED),
        above: permille(layers.value("offload_above")).expect(CHECKED),
        promote: switch(layers.value("promote")).expect(CHECKED),
        promote_reads: count(layers.value("promote_reads")).expect(CHECKED),
    }
}

impl Settings {
    /// The name of a master that listens there, when nobody gives it one.
    pub(crate) fn usual_name(listen: &Address) -> String {
        format!("{}-{}", hostname(), label(Some(listen)))
    }
}

/// What tells this node from others of the same user on the same machine: its port. A port that is
/// not chosen yet cannot do that, the process can.
fn label(data: Option<&Address>) -> String {
    let port = match data {
        Some(Address::Tcp(name)) => name.rsplit_once(':').map(|(_, port)| port),
        _ => None,
    };
    match port {
        Some(port) if port != "0" => port.to_owned(),
        _ => format!("p{}", std::process::id()),
    }
}

/// What tells a node with a disk from others of its machine: that disk. It finds its records again after a
/// restart only under the same name, whatever its port.
fn disk_label(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    format!("ssd-{:08x}", name_hash(&path.to_string_lossy()) as u32)
}

/// Where a node's socket is: in the user's own folder, or else under a name that holds the user.
fn socket_path(label: &str, runtime_dir: Option<&Path>) -> PathBuf {
    if let Some(folder) = runtime_dir {
        return folder.join(format!("mooncrate-{label}.sock"));
    }
    let user = rustix::process::getuid().as_raw();
    PathBuf::from(format!("/tmp/mooncrate-{user}-{label}.sock"))
}

/// The name of this machine.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// A number that was checked.
fn whole(text: &str) -> usize {
    count(text).expect(CHECKED) as usize
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    fn settings(given: &[(&'static str, &str)]) -> Settings {
        let flags = given
            .iter()
            .map(|(key, value)| Given { flag: "--x", key, value: (*value).to_owned() })
            .collect();
        let layers = Layers::read(None, [], flags).unwrap();
        Settings::new(&layers, Some(Path::new("/run/user/7")))
    }

    #[test]
    fn sockets_and_names_follow_the_port() {
        let plain = settings(&[]);
        assert_eq!(plain.unix.unwrap(), Path::new("/run/user/7/mooncrate-7413.sock"));
        assert_eq!(plain.node_name, format!("{}-7413", hostname()));
        assert_eq!((plain.slots, plain.log), (None, None));
        assert_eq!(plain.state_file, StateFile::Usual);
        assert_eq!(plain.segment_bytes, 256 << 20);

        let any = settings(&[("data", "127.0.0.1:0"), ("unix", "auto")]);
        let expected = format!("/run/user/7/mooncrate-p{}.sock", std::process::id());
        assert_eq!(any.unix.unwrap(), Path::new(&expected));
        let user = rustix::process::getuid().as_raw();
        let path = socket_path("9", None);
        assert_eq!(path, PathBuf::from(format!("/tmp/mooncrate-{user}-9.sock")));
    }

    #[test]
    fn what_is_off_is_none_and_what_is_given_is_taken() {
        let s = settings(&[("admin", "off"), ("data", "off"), ("unix", "off"), ("slots", "9")]);
        assert_eq!((s.admin, s.data, s.unix, s.slots), (None, None, None, Some(9)));
        assert_eq!(s.grpc, Grpc::Auto);
        assert_eq!(settings(&[("grpc", "off")]).grpc, Grpc::Off);
        let at = Grpc::At(Address::Tcp("127.0.0.1:9".into()));
        assert_eq!(settings(&[("grpc", "127.0.0.1:9")]).grpc, at);
        let two = settings(&[("vram", "0=8GiB,2=1MiB")]).vram;
        assert_eq!(
            two.iter().map(|gpu| (gpu.device, gpu.bytes)).collect::<Vec<_>>(),
            [(0, 8 << 30), (2, 1 << 20)]
        );
        let s = settings(&[("node_name", "n"), ("deadline", "2min"), ("huge_pages", "true")]);
        assert_eq!(s.node_name, "n");
        // A disk names its node: the same one after every restart, whatever port it gets.
        let disk = [("ssd", "/var/disk=1GiB"), ("data", "127.0.0.1:0")];
        let (first, again) = (settings(&disk).node_name, settings(&disk[..1]).node_name);
        assert!(first.contains("-ssd-"), "{first}");
        assert_eq!(first, again);
        assert_ne!(first, settings(&[("ssd", "/var/other=1GiB")]).node_name);
        assert_eq!((s.deadline, s.huge_pages), (Duration::from_mins(2), true));
    }
}
