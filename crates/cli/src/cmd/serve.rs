//! `serve`, `master`, `node`: start, say where, wait for a signal, stop.
//!
//! What must stay true: signals are caught before anything is started, so none is lost; a second
//! signal, or too long a stop, ends the process at once. Values may vanish with it; nothing that a
//! client could read afterwards is wrong.

use super::failed;
use super::notify::{self, notify};
use super::signals::Signals;
use super::state_file;
use super::windows::{self, Windows};
use crate::config::{Grpc, Settings, StateFile};
use crate::failure::Failure;
use crate::listen::{self, Door};
use crate::progress;
use crate::render::{Output, Started};
use indicatif::ProgressBar;
use mooncrate::{
    ElectionConfig, GuardCommand, Listener, MasterOptions, NodeOptions, Progress, Running,
    Security, SsdConfig, TierConfig,
};
use mooncrate_core::catalog;
use mooncrate_lock::Mutex;
use mooncrate_mem::memory::Claim;
use mooncrate_wire::Address;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// What the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All that one machine needs.
    Both,
    /// The index alone.
    Master,
    /// Memory alone.
    Node,
}

/// Longest wait for the requests under way when stopping.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the admin HTTP and its like.
const WINDOWS_STOP_MAX: Duration = Duration::from_secs(1);
/// Where clients look for a master when nobody tells them.
const USUAL_MASTER: &str = "127.0.0.1:7411";
/// Where gRPC clients look.
const USUAL_GRPC: &str = "127.0.0.1:50051";

/// Serves until a signal comes. `program` is how people call us.
pub(crate) fn run(
    role: Role,
    settings: &Settings,
    program: &str,
    out: Output,
) -> Result<(), Failure> {
    // One each: servers of one process count their callers by themselves.
    let security = (security(settings)?, security(settings)?);
    check(role, settings, &security.0)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start a runtime: {error}")))?;
    let served = runtime.block_on(serve(role, settings, security, program, out));
    // A call that does not come back must not keep the process.
    runtime.shutdown_background();
    served
}

fn security(settings: &Settings) -> Result<Security, Failure> {
    let read = settings.credentials.security();
    let security = read.map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Security { insecure_listen: settings.insecure_listen, ..security })
}

/// All that can be said before anything is started: first what is wrong with the settings, then which ports are taken.
fn check(role: Role, settings: &Settings, security: &Security) -> Result<(), Failure> {
    let unix = settings.unix.clone().map(Address::Unix);
    let grpc = grpc_address(role, settings);
    let mut doors = Vec::new();
    let mut door = |what, address, flag| doors.push(Door { what, address, flag });
    if role != Role::Node {
        door("the master", own_address(settings)?, "--master");
    }
    check_election(role, settings)?;
    check_eviction(settings)?;
    if role != Role::Master {
        settings.tier.disks.iter().try_for_each(check_disk)?;
        check_memory(settings)?;
    }
    if let Some(grpc) = &grpc {
        security.check_grpc(grpc).map_err(|error| Failure::usage(error.to_string()))?;
    }
    if role != Role::Master {
        if let Some(data) = &settings.data {
            door("the node", data, "--data");
        }
        if let Some(unix) = &unix {
            door("the node", unix, "--unix");
        }
        if settings.data.is_none() && unix.is_none() {
            let message = "a node without --data and without --unix cannot be reached";
            return Err(Failure::usage(message).hint("leave one of them on"));
        }
    }
    for door in &doors {
        listen::check_loopback(*door, security.gate.is_guarded(), settings.insecure_listen)?;
    }
    windows::check(role, settings)?;
    let grpc = grpc.as_ref().map(|address| Door { what: "gRPC", address, flag: "--grpc" });
    doors.into_iter().chain(grpc).try_for_each(listen::check_free)
}

/// Where the master of this process listens.
fn own_address(settings: &Settings) -> Result<&Address, Failure> {
    settings.master.only().ok_or_else(|| {
        let message = format!("a master listens at one address, not at {}", settings.master);
        let hint = "name its own with --master HOST:PORT; clients and nodes name all of them";
        Failure::usage(message).hint(hint)
    })
}

/// Where this process answers gRPC.
fn grpc_address(role: Role, settings: &Settings) -> Option<Address> {
    let usual = settings.master.to_string() == USUAL_MASTER;
    match &settings.grpc {
        Grpc::At(address) if role != Role::Node => Some(address.clone()),
        Grpc::Auto if role == Role::Both && usual => Some(Address::Tcp(USUAL_GRPC.into())),
        _ => None,
    }
}

/// Whether a disk can ever hold what it shall. Less may be free now: others may make room.
fn check_disk(disk: &SsdConfig) -> Result<(), Failure> {
    // The directory is made later; its file system is that of the nearest one that is there.
    let there = disk.path.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        rustix::fs::statvfs(path).ok()
    });
    let all = there.map(|about| about.f_blocks.saturating_mul(about.f_frsize));
    // Some file systems do not tell their size: they report 0 blocks.
    let Some(all) = all.filter(|all| *all > 0) else { return Ok(()) };
    if disk.bytes <= all {
        return Ok(());
    }
    let message = format!(
        "--ssd {}: {} bytes are asked for, and its file system has {all} in all",
        disk.path.display(),
        disk.bytes
    );
    Err(Failure::usage(message).hint("ask for less, or name a directory of a larger disk"))
}

/// Whether the memory of the node can ever be filled. Less may be free now: others may give some back.
fn check_memory(settings: &Settings) -> Result<(), Failure> {
    let refused = Claim::checked(settings.segment_bytes, settings.huge_pages).err();
    let Some(error) = refused.filter(|_| !settings.memory_overcommit) else { return Ok(()) };
    let hint = "offer less, raise the limit, or say that it is meant with --memory-overcommit";
    Err(Failure::usage(format!("--segment-size: {error}")).hint(hint))
}

/// Whether eviction can end.
fn check_eviction(settings: &Settings) -> Result<(), Failure> {
    let (above, to) = (settings.evict_above, settings.evict_to);
    if to < above {
        return Ok(());
    }
    let message = format!(
        "--evict-to ({}.{}%) must be below --evict-above ({}.{}%), or eviction never ends",
        to / 10,
        to % 10,
        above / 10,
        above % 10,
    );
    Err(Failure::usage(message).hint("leave them away, or choose another one"))
}

/// Whether several masters can work like this.
fn check_election(role: Role, settings: &Settings) -> Result<(), Failure> {
    if settings.etcd.is_empty() || role == Role::Node {
        return Ok(());
    }
    if role == Role::Both {
        let message = "a master that is elected through etcd runs alone";
        let hint = "use `mooncrate master` and `mooncrate node` in place of `mooncrate serve`";
        return Err(Failure::usage(message).hint(hint));
    }
    if let StateFile::At(_) = settings.state_file {
        let message = "a master that is elected through etcd keeps its state there, not in a file";
        return Err(Failure::usage(message).hint("leave --state-file or --etcd away"));
    }
    Ok(())
}

async fn serve(
    role: Role,
    settings: &Settings,
    security: (Security, Security),
    program: &str,
    out: Output,
) -> Result<(), Failure> {
    let mut signals = Signals::catch()
        .map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    let windows = Windows::bind(role, settings).await?;
    let gate = security.0.gate.clone();
    let node = node_options(settings, security.1, role == Role::Node);
    let options = (master_options(role, settings, security.0)?, node);
    let starting = spawn_blocking(move || match role {
        Role::Both => mooncrate::run_both(options.0, options.1),
        Role::Master => mooncrate::run_master(options.0),
        Role::Node => mooncrate::run_node(options.1),
    });
    let running = tokio::select! {
        started = starting => started.map_err(|error| died(&error))?.map_err(failed)?,
        () = signals.next() => return Ok(()),
    };
    out.started(&started(role, settings, &running, &windows, program))?;
    notify(notify::READY);

    let (stop, stops) = watch::channel(());
    let numbers = windows::metrics_routes(&running, settings.mooncake.http);
    let routes = (windows::routes(&running, gate, &settings.mooncake), numbers);
    let serving = windows.serve(routes, settings, &stops);
    tokio::pin!(serving);
    let mut windows_ended = false;
    tokio::select! {
        () = signals.next() => {}
        // They do not end on their own; if they did, the store is worth more than its windows.
        () = &mut serving => {
            windows_ended = true;
            signals.next().await;
        }
    }
    tracing::info!("stopping");
    notify(notify::STOPPING);
    drop(stop);
    let rest_of_windows = async move {
        if !windows_ended {
            serving.await;
        }
    };
    // A drain has its own limit, and comes before the requests that are still under way.
    let stop_max = STOP_MAX + settings.drain_on_stop.unwrap_or_default();
    let stopping = timeout(stop_max, spawn_blocking(move || running.stop()));
    let all = async { tokio::join!(stopping, timeout(WINDOWS_STOP_MAX, rest_of_windows)) };
    tokio::select! {
        (stopped, _) = all => stopped.map_or_else(
            |_| {
                tracing::warn!("requests under way did not end in {stop_max:?} and were cut off");
                Ok(())
            },
            |ended| ended.map_err(|error| died(&error)),
        ),
        () = signals.next() => Err(Failure::failed("stopped at once by a second signal")),
    }
}

fn died(error: &tokio::task::JoinError) -> Failure {
    Failure::failed(format!("a thread of the server died: {error}"))
}

fn master_options(
    role: Role,
    settings: &Settings,
    security: Security,
) -> Result<MasterOptions, Failure> {
    if role == Role::Node {
        return Ok(MasterOptions::default());
    }
    let listen = own_address(settings)?.clone();
    Ok(MasterOptions {
        election: (!settings.etcd.is_empty()).then(|| election(settings, &listen)),
        state_file: match &settings.state_file {
            StateFile::At(path) => Some(path.clone()),
            StateFile::Usual | StateFile::Off => None,
        },
        usual_state: match settings.state_file {
            // `serve` keeps it on its disks; without disks its memory is gone with it.
            StateFile::Usual if role == Role::Master => state_file::usual(settings, &listen),
            _ => Vec::new(),
        },
        listen,
        grpc: grpc_address(role, settings),
        catalog: catalog::Config {
            put_timeout: settings.put_timeout,
            lease_ttl: settings.lease_ttl,
            policy: settings.evict_policy,
            high_permille: settings.evict_above,
            low_permille: settings.evict_to,
            placement: settings.placement,
            offload: settings.offload.policy,
            offload_permille: settings.offload.above,
            promote: settings.offload.promote,
            promote_reads: settings.offload.promote_reads,
            ..catalog::Config::default()
        },
        workers: settings.workers,
        security,
        disk_root: settings.mooncake.root.clone().unwrap_or_default(),
    })
}

fn election(settings: &Settings, listen: &Address) -> ElectionConfig {
    let advertise = settings.advertise.as_ref().map(Address::to_string).unwrap_or_default();
    ElectionConfig {
        endpoints: settings.etcd.clone(),
        prefix: settings.etcd_prefix.clone(),
        name: settings.name.clone().unwrap_or_else(|| Settings::usual_name(listen)),
        advertise,
        ttl: settings.election_ttl,
    }
}

fn node_options(settings: &Settings, security: Security, guard: bool) -> NodeOptions {
    NodeOptions {
        name: settings.node_name.clone(),
        master: settings.master.clone(),
        listen: settings.data.clone(),
        unix: settings.unix.clone(),
        segment_bytes: settings.segment_bytes,
        slots: settings.slots,
        host: settings.host.clone(),
        zone: settings.zone.clone(),
        huge_pages: settings.huge_pages,
        memory_overcommit: settings.memory_overcommit,
        prefault: settings.prefault,
        vram: settings.vram.clone(),
        security,
        tenant: settings.tenant,
        share_users: settings.share_users.clone(),
        drain_on_stop: settings.drain_on_stop,
        guard: guard.then(guard_command),
        tier: TierConfig {
            on_progress: Some(Listener(Arc::new(recovering()))),
            ..settings.tier.clone()
        },
    }
}

/// This very command, which is told whom to guard. Beside a master in the same process a guard is of no
/// use: there is nobody to tell.
fn guard_command() -> GuardCommand {
    GuardCommand {
        // The program that runs, even if its file has been replaced since.
        program: "/proc/self/exe".into(),
        args: std::env::args_os().skip(1).collect(),
    }
}

/// Guards the node process `owner`, which was started with the same settings.
pub(crate) fn guard(owner: u32, settings: &Settings) -> Result<(), Failure> {
    let options = node_options(settings, security(settings)?, false);
    mooncrate::guard_node(&options, owner).map_err(failed)
}

/// Shows how far the recovery of disks is, where a person looks at it: one bar for each.
fn recovering() -> impl Fn(&SsdConfig, Progress) + Send + Sync {
    let bars = Mutex::new(BTreeMap::<PathBuf, ProgressBar>::new());
    move |disk, so_far| {
        let mut bars = bars.lock();
        let new = || progress::bar("recovering", so_far.total);
        let bar = bars.entry(disk.path.clone()).or_insert_with(new);
        bar.set_position(so_far.done);
        if so_far.done >= so_far.total {
            bar.finish_and_clear();
        }
    }
}

fn started(
    role: Role,
    settings: &Settings,
    running: &Running,
    windows: &Windows,
    program: &str,
) -> Started {
    let node = role != Role::Master;
    let master = running.master_address().map(|address| address.to_string());
    let find_master = match master.as_deref() {
        None | Some(USUAL_MASTER) => String::new(),
        Some(address) => format!(" --master {address}"),
    };
    Started {
        joined: (role == Role::Node).then(|| settings.master.to_string()),
        data: running.data_address().map(|address| address.to_string()),
        unix: running.unix_path(),
        admin: windows.admin_at().map(|address| format!("http://{address}")),
        metrics: windows.metrics_at().map(|address| format!("http://{address}/metrics")),
        grpc: running.grpc_address().map(|address| address.to_string()),
        metadata: windows.metadata_at().map(|address| format!("http://{address}/metadata")),
        door: windows.door_at().map(|address| address.to_string()),
        node_name: node.then(|| settings.node_name.clone()),
        segment_bytes: node.then_some(settings.segment_bytes),
        master,
        find_master,
        program: program.to_owned(),
    }
}
