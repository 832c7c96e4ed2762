//! What can be typed. Flags that are settings keep their text: the configuration judges it, so that
//! a value is good or bad for the same reason in a file, in the environment and here.

use crate::config::Given;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// A cache of KV blocks for LLM inference: a get returns exactly what was put, or a miss
#[derive(Debug, Parser)]
#[command(
    name = "mooncrate",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
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
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a master and a node in one process: all that one machine needs
    Serve(Serve),
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
    /// Show the cluster in numbers
    Stat(Stat),
    /// Measure puts and gets against a running cluster
    Bench(Bench),
}

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) here: MasterHere,
    #[command(flatten)]
    pub(crate) master: MasterFlags,
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
    pub(crate) server: ServerFlags,
}

/// `node`.
#[derive(Debug, Args)]
pub(crate) struct NodeAlone {
    #[command(flatten)]
    pub(crate) there: MasterThere,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
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
    /// Where the master is [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT")]
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
    /// Keep the epoch and the names of nodes across restarts in this file, or off [default: off]
    #[arg(long, value_name = "FILE")]
    pub(crate) state_file: Option<String>,
    /// Threads that answer [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) workers: Option<String>,
    /// After how long an unfinished put gives its key back [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) put_timeout: Option<String>,
    /// Which values go first when room is short: fifo, lru or sieve [default: sieve]
    #[arg(long, value_name = "POLICY")]
    pub(crate) evict_policy: Option<String>,
    /// Where values go: random, least-loaded, local-first or by-zone [default: random]
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) placement: Option<String>,
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
    /// A name of its own; the same after a restart [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// The machine, for placement [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// The failure zone, for placement [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
}

/// Flags of everything that listens.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// Listen where other machines can connect, although nobody is asked for credentials
    #[arg(long)]
    pub(crate) insecure_listen: bool,
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
    pub(crate) keys: KeyFlags,
    #[command(flatten)]
    pub(crate) client: ClientFlags,
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
    #[arg(value_name = "KEY", required = true)]
    pub(crate) names: Vec<OsString>,
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

/// Collects the flags that are settings.
#[derive(Debug, Default)]
struct Flags(Vec<Given>);

impl Flags {
    fn text(&mut self, flag: &'static str, key: &'static str, value: Option<&String>) {
        if let Some(value) = value {
            self.0.push(Given { flag, key, value: value.clone() });
        }
    }

    fn switch(&mut self, flag: &'static str, key: &'static str, given: bool, means: bool) {
        if given {
            self.0.push(Given { flag, key, value: means.to_string() });
        }
    }

    fn master(&mut self, flags: &MasterFlags) {
        self.text("--admin", "admin", flags.admin.as_ref());
        self.text("--grpc", "grpc", flags.grpc.as_ref());
        self.text("--state-file", "state_file", flags.state_file.as_ref());
        self.text("--workers", "workers", flags.workers.as_ref());
        self.text("--put-timeout", "put_timeout", flags.put_timeout.as_ref());
        self.text("--evict-policy", "evict_policy", flags.evict_policy.as_ref());
        self.text("--placement", "placement", flags.placement.as_ref());
    }

    fn node(&mut self, flags: &NodeFlags) {
        self.text("--data", "data", flags.data.as_ref());
        self.text("--unix", "unix", flags.unix.as_ref());
        self.text("--segment-size", "segment_size", flags.segment_size.as_ref());
        self.text("--slots", "slots", flags.slots.as_ref());
        self.switch("--huge-pages", "huge_pages", flags.huge_pages, true);
        self.text("--node-name", "node_name", flags.node_name.as_ref());
        self.text("--host", "host", flags.host.as_ref());
        self.text("--zone", "zone", flags.zone.as_ref());
    }

    fn server(&mut self, flags: &ServerFlags) {
        self.switch("--insecure-listen", "insecure_listen", flags.insecure_listen, true);
    }

    fn client(&mut self, flags: &ClientFlags) {
        self.text("--master", "master", flags.there.master.as_ref());
        self.text("--deadline", "deadline", flags.deadline.as_ref());
        self.switch("--no-shared-memory", "shared_memory", flags.no_shared_memory, false);
    }
}

impl Arguments {
    /// The flags that are settings.
    pub(crate) fn given(&self) -> Vec<Given> {
        let mut flags = Flags::default();
        flags.text("--log", "log", self.common.log.as_ref());
        match &self.command {
            Command::Serve(serve) => {
                flags.text("--master", "master", serve.here.master.as_ref());
                flags.master(&serve.master);
                flags.node(&serve.node);
                flags.server(&serve.server);
            }
            Command::Master(alone) => {
                flags.text("--master", "master", alone.here.master.as_ref());
                flags.master(&alone.master);
                flags.server(&alone.server);
            }
            Command::Node(alone) => {
                flags.text("--master", "master", alone.there.master.as_ref());
                flags.node(&alone.node);
                flags.server(&alone.server);
            }
            Command::Put(Put { client, .. })
            | Command::Get(Get { client, .. })
            | Command::Rm(Rm { client, .. })
            | Command::Ls(Ls { client, .. })
            | Command::Stat(Stat { client })
            | Command::Bench(Bench { client, .. }) => flags.client(client),
        }
        flags.0
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
