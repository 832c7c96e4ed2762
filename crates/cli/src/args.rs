//! What can be typed. Flags that are settings keep their text: the configuration judges it, so that
//! a value is good or bad for the same reason in a file, in the environment and here.

mod given;
mod replay;

pub(crate) use replay::{Loads, Replay};

use clap::{Args, Parser, Subcommand};
use mooncrate_core::ids::{BadTenant, TenantId};
use mooncrate_wire::Role;
use std::ffi::OsString;
use std::path::PathBuf;

/// A cache of KV blocks for LLM inference: a get returns exactly what was put, or a miss
#[derive(Debug, Parser)]
#[command(
    name = "mooncrate",
    version,
    max_term_width = 100,
    after_help = "Settings come from defaults, a TOML file, MOONCRATE_… variables and flags; later \
                  ones win.\nExit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 3 \
                  no such key."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct Common {
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Everywhere",
        help = "Read settings from this file [default: $MOONCRATE_CONFIG, or mooncrate.toml if \
                present]"
    )]
    pub(crate) config: Option<PathBuf>,
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        help_heading = "Everywhere",
        help = "What to log to stderr, as in debug or warn,mooncrate_node=debug [default: auto]"
    )]
    pub(crate) log: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) credentials: CredentialFlags,
}

/// What is shown to others, and what servers ask for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Credentials")]
pub(crate) struct CredentialFlags {
    /// The cluster's secret, or a token made from it; readable by its owner only [default: off]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<String>,
    /// Our certificate, in PEM [default: off]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls_cert: Option<String>,
    /// The key of our certificate, in PEM [default: off]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls_key: Option<String>,
    /// The CA whose certificates are believed; callers must show one of it [default: off]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls_ca: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a master and a node in one process: all that one machine needs
    Serve(Box<Serve>),
    /// Run a master alone: it knows where values are and holds none
    Master(MasterAlone),
    /// Run a node alone: it offers memory to the cluster of a master
    Node(NodeAlone),
    /// Store a value; a key that has one keeps it
    Put(Put),
    /// Fetch a value
    Get(Get),
    /// Remove values
    Rm(Rm),
    /// List keys
    Ls(Ls),
    /// Show the cluster in numbers, or one value: its size and where its copies are
    Stat(Stat),
    /// Watch the cluster at work, until q is pressed
    Top(Top),
    /// Empty a node while it serves: everything goes elsewhere, nothing new comes
    Drain(Drain),
    /// End a drain: the node gets values again
    Undrain(Undrain),
    /// Set what a tenant may use, or show what all of them do
    Quota(Quota),
    /// Measure puts and gets against a running cluster
    Bench(Bench),
    /// Show what eviction policies find of a trace or a generated load, beside the best possible
    Replay(Replay),
    /// Say what this machine offers, and what to change
    Doctor(Doctor),
    /// Make the cluster's secret, and tokens for clients
    Token(TokenArgs),
}

/// `token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) action: TokenAction,
}

/// What to do about tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenAction {
    /// Print a new secret: `umask 077; mooncrate token new > cluster.token`
    New,
    /// Print a token of one role and tenant, made from the secret in --token-file
    Derive {
        /// What its holder is: client, node, master or admin
        #[arg(long, value_name = "ROLE", default_value = "client", value_parser = role)]
        role: Role,
        /// Whose keys its holder sees; nothing: the default tenant's
        #[arg(long, value_name = "NAME", default_value = "", value_parser = tenant)]
        tenant: String,
    },
}

fn role(text: &str) -> Result<Role, String> {
    Role::named(text).ok_or_else(|| format!("`{text}` is none of client, node, master, admin"))
}

fn tenant(text: &str) -> Result<String, BadTenant> {
    TenantId::named(text).map(|_| text.to_owned())
}

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) here: MasterHere,
    #[command(flatten)]
    pub(crate) master: MasterFlags,
    #[command(flatten)]
    pub(crate) mooncake: MooncakeMaster,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

/// `master`.
#[derive(Debug, Args)]
pub(crate) struct MasterAlone {
    #[command(flatten)]
    pub(crate) here: MasterHere,
    #[command(flatten)]
    pub(crate) master: MasterFlags,
    #[command(flatten)]
    pub(crate) mooncake: MooncakeMaster,
    #[command(flatten)]
    pub(crate) election: ElectionFlags,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}

/// `node`.
#[derive(Debug, Args)]
pub(crate) struct NodeAlone {
    #[command(flatten)]
    pub(crate) there: MasterThere,
    /// Where the node shows its health and its metrics over HTTP, or off [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) node_admin: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    #[command(flatten)]
    pub(crate) mooncake: MooncakeNode,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Be no node, but the guard of one: how a node starts its own
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) guard_of: Option<u32>,
}

/// The master of this process.
#[derive(Debug, Args)]
pub(crate) struct MasterHere {
    /// Where the master listens [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) master: Option<String>,
}

/// The master of another process.
#[derive(Debug, Args)]
pub(crate) struct MasterThere {
    /// Where the master is, or all masters that elect a leader [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT,…")]
    pub(crate) master: Option<String>,
}

/// How a master works.
#[derive(Debug, Args)]
pub(crate) struct MasterFlags {
    /// Where the admin HTTP listens, or off [default: 127.0.0.1:7412]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) admin: Option<String>,
    /// Where the master answers gRPC, or off [default: auto]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) grpc: Option<String>,
    /// Keep the epoch, nodes and quotas across restarts in this file, or off; auto: a master alone keeps it
    /// where the system keeps state, below ~/.local/state or /var/lib, if that can be written [default: auto]
    #[arg(long, value_name = "FILE")]
    pub(crate) state_file: Option<String>,
    /// Threads that answer; auto: half of the cores, 2 to 8 [default: auto]
    #[arg(long, value_name = "COUNT")]
    pub(crate) workers: Option<String>,
    /// After how long an unfinished put gives its key back [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) put_timeout: Option<String>,
    /// How long clients that look values up keep them from being removed, where they ask for that
    /// [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease_ttl: Option<String>,
    /// Which values go first when room is short: lru, fifo or density, which learns from the reads and finds most
    /// among values of one size [default: lru]
    #[arg(long, value_name = "POLICY")]
    pub(crate) evict_policy: Option<String>,
    /// Make room in a segment that is fuller than this [default: 95%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) evict_above: Option<String>,
    /// … until it is no fuller than this [default: 90%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) evict_to: Option<String>,
    /// Where values go: random, least-loaded, local-first or by-zone [default: random]
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) placement: Option<String>,
    /// When values are copied to disks: eager (after each put), watermark (ahead of evictions), evict
    /// (when they are evicted) or off [default: watermark]
    #[arg(long, value_name = "POLICY")]
    pub(crate) offload: Option<String>,
    /// With watermark: in segments that are fuller than this [default: 70%]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) offload_above: Option<String>,
    /// Leave what is read from disks repeatedly on disks
    #[arg(long)]
    pub(crate) no_promote: bool,
    /// Bring what is on disks only back into memory at this read of it [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) promote_reads: Option<String>,
}

/// What a master offers to programs that were written for Mooncake.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "each is named as its setting is")]
pub(crate) struct MooncakeMaster {
    /// Answer the requests of Mooncake's admin HTTP beside our own
    #[arg(long)]
    pub(crate) mooncake_http: bool,
    /// … those for quotas of tenants, too
    #[arg(long)]
    pub(crate) mooncake_quotas: bool,
    /// Where a metadata server for Mooncake's programs listens, or off [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) mooncake_metadata: Option<String>,
    /// Directory in which stores of Mooncake's programs keep their disks, or off [default: off]
    #[arg(long, value_name = "DIR")]
    pub(crate) mooncake_root: Option<String>,
}

/// What a node offers to programs that were written for Mooncake.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "each is named as its setting is")]
pub(crate) struct MooncakeNode {
    /// Answer the requests of Mooncake's client HTTP at --node-admin, too
    #[arg(long)]
    pub(crate) mooncake_http: bool,
    /// Where Mooncake's dummy stores ask for this cluster, or off [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) mooncake_door: Option<String>,
    /// The tenant that they are told [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) mooncake_tenant: Option<String>,
}

/// How a master stands for election among several.
#[derive(Debug, Args)]
pub(crate) struct ElectionFlags {
    #[arg(
        long,
        value_name = "URL,…",
        help = "Elect a leader among several masters through etcd, as in http://127.0.0.1:2379 \
                [default: off]"
    )]
    pub(crate) etcd: Option<String>,
    /// What the names of the keys in etcd begin with: the cluster [default: mooncrate]
    #[arg(long, value_name = "NAME")]
    pub(crate) etcd_prefix: Option<String>,
    /// The name of this master, unlike that of any other [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where clients and nodes reach this master [default: auto]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// How long a leader that has fallen silent keeps its seat, in whole seconds [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub(crate) election_ttl: Option<String>,
}

/// How a node works.
#[derive(Debug, Args)]
pub(crate) struct NodeFlags {
    /// Where the node listens for values over TCP, or off [default: 127.0.0.1:7413]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) data: Option<String>,
    /// The socket that hands out shared memory, or off [default: auto]
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Option<String>,
    /// Memory to offer [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) segment_size: Option<String>,
    /// Most values that the memory holds at a time [default: auto]
    #[arg(long, value_name = "COUNT")]
    pub(crate) slots: Option<String>,
    /// Make the memory of huge pages
    #[arg(long)]
    pub(crate) huge_pages: bool,
    /// Offer more memory than the machine has, or than its cgroup allows; the kernel kills the node when
    /// values have filled what there is
    #[arg(long)]
    pub(crate) memory_overcommit: bool,
    /// Take all pages of the memory from the system before the node joins, so that its own cgroup pays for them and a
    /// limit that is too small shows at the start
    #[arg(long)]
    pub(crate) prefault: bool,
    /// A GPU, by its number, and how much of its memory to lend for values that are put there; may be given
    /// several times, for one GPU each [default: off]
    #[arg(long, value_name = "GPU=SIZE")]
    pub(crate) vram: Vec<String>,
    /// A directory on a disk, and how much of it to use, for what memory cannot hold and what outlives a
    /// restart; may be given several times [default: off]
    ///
    /// Options follow with commas: `backend=bucket|per_key|offset`, `io=auto|posix|uring`,
    /// `evict=fifo|lru`, `bucket_size=SIZE`, `bucket_keys=COUNT`, `verify=true|false`.
    #[arg(long, value_name = "PATH=SIZE")]
    pub(crate) ssd: Vec<String>,
    /// Memory that values on disks are loaded into for readers elsewhere [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) staging_size: Option<String>,
    /// Bytes that each disk may be written per day, or off [default: off]
    #[arg(long, value_name = "SIZE")]
    pub(crate) ssd_writes_per_day: Option<String>,
    /// Bytes per second that each disk is read for damage, or off [default: 8MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) scrub_rate: Option<String>,
    /// A name of its own; the same after a restart [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// The machine, for placement [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// The failure zone, for placement [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
    /// Hand all values over to other nodes before a stop, for at most this long, or off
    /// [default: off]
    #[arg(long, value_name = "TIME")]
    pub(crate) drain_on_stop: Option<String>,
    /// Hold values of this tenant only, or off; then its clients may share the memory [default: off]
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Users besides this one whose processes may share the memory, or off [default: off]
    #[arg(long, value_name = "UID,…")]
    pub(crate) share_users: Option<String>,
}

/// Flags of everything that listens.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// Listen where other machines can connect, although nobody is asked for credentials
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Where other machines read /metrics and /healthz, and nothing else, over HTTP, or off; no credentials
    /// are asked for [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_listen: Option<String>,
    /// Show all settings and where each comes from, and stop
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// How a client reaches the cluster.
#[derive(Debug, Args)]
pub(crate) struct ClientFlags {
    #[command(flatten)]
    pub(crate) there: MasterThere,
    /// How long one call may take [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) deadline: Option<String>,
    /// Move values over TCP even on the same machine
    #[arg(long)]
    pub(crate) no_shared_memory: bool,
}

/// How keys are typed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct KeyFlags {
    /// Keys are typed as hexadecimal digits, for keys that are not text
    #[arg(long)]
    pub(crate) key_hex: bool,
}

/// `put`.
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The key
    pub(crate) key: OsString,
    /// The file that holds the value; - or nothing: stdin
    #[arg(conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,
    /// The value itself
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<OsString>,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
    #[command(flatten)]
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// What a put may wish for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Wishes {
    /// Copies, on distinct nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) replicas: u8,
    /// Be content with fewer copies where there are too few nodes
    #[arg(long)]
    pub(crate) best_effort: bool,
    /// Replace the value that the key has
    #[arg(long)]
    pub(crate) upsert: bool,
    /// Evict it last, for this long after its last lookup
    #[arg(long, value_name = "TIME", value_parser = crate::config::span)]
    pub(crate) soft_pin: Option<std::time::Duration>,
    /// Never evict it
    #[arg(long, conflicts_with = "soft_pin")]
    pub(crate) hard_pin: bool,
    /// Evict it together with the other values of this group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Remove it this long after it was fetched for the first time
    #[arg(long, value_name = "TIME", value_parser = crate::config::span)]
    pub(crate) expire: Option<std::time::Duration>,
}

/// `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The key
    pub(crate) key: OsString,
    /// Write the value to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write bytes that are not text even to a terminal
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `rm`.
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The keys
    #[arg(value_name = "KEY", required_unless_present_any = ["prefix", "regex"])]
    pub(crate) names: Vec<OsString>,
    /// Remove every key that starts so
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["names", "regex"])]
    pub(crate) prefix: Option<OsString>,
    /// Remove every key in which this regular expression finds a match
    #[arg(long, value_name = "REGEX", conflicts_with = "names")]
    pub(crate) regex: Option<String>,
    /// Remove values that somebody holds a lease on, too
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `ls`.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only keys that start so
    pub(crate) prefix: Option<OsString>,
    /// Only keys in which this regular expression finds a match
    #[arg(long, value_name = "REGEX", conflicts_with = "prefix")]
    pub(crate) regex: Option<String>,
    /// Most keys to list
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `stat`.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// The key of the value to show; nothing: the cluster
    pub(crate) key: Option<OsString>,
    #[command(flatten)]
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::config::span)]
    pub(crate) every: std::time::Duration,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `quota`.
#[derive(Debug, Args)]
pub(crate) struct Quota {
    /// The tenant; without one, all are shown
    #[arg(value_parser = tenant)]
    pub(crate) tenant: Option<String>,
    /// What it may use, as 10GiB, or off
    #[arg(value_name = "QUOTA", requires = "tenant", value_parser = quota)]
    pub(crate) bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// Bytes; 0 stands for no limit.
fn quota(text: &str) -> Result<u64, String> {
    if text == "off" { Ok(0) } else { crate::config::size(text) }
}

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {}

/// `drain`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The name of the node
    pub(crate) node: String,
    /// Only this segment of it, by its number
    #[arg(long, value_name = "NUMBER")]
    pub(crate) segment: Option<u16>,
    /// Drop the values instead of moving them; those that are pinned hard are moved
    #[arg(long)]
    pub(crate) drop: bool,
    /// Wait until nothing is left: then the node may stop without loss
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `undrain`.
#[derive(Debug, Args)]
pub(crate) struct Undrain {
    /// The name of the node
    pub(crate) node: String,
    /// Only this segment of it, by its number
    #[arg(long, value_name = "NUMBER")]
    pub(crate) segment: Option<u16>,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

/// `bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Sizes of values
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "4KiB,64KiB,1MiB",
        value_parser = crate::config::size
    )]
    pub(crate) sizes: Vec<u64>,
    /// Threads that put and get at the same time
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = crate::config::count)]
    pub(crate) threads: u32,
    /// How long each size is put, and how long it is read
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::config::span)]
    pub(crate) time: std::time::Duration,
    /// Bytes that are in the cluster at a time
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = crate::config::size)]
    pub(crate) working_set: u64,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
