//! What can be typed.

use crate::doors::Doors;
use crate::ep::EpArgs;
use crate::kill_one::KillOne;
use crate::nano::NanoArgs;
use crate::reads::Reads;
use crate::tier::Tier;
use crate::verify::Verify;
use crate::verify::clear::Clear;
use crate::verify::leaders::Leaders;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Measure Mooncrate beside the floors of this machine
#[derive(Debug, Parser)]
#[command(name = "mooncrate-bench", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Look for about 20 seconds: shows that all works, and roughly how fast
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Only show that everything runs; the figures mean nothing
    #[arg(long, global = true, hide = true, conflicts_with = "quick")]
    pub(crate) smoke: bool,
    /// Let the scheduler choose cores, instead of keeping bench and servers apart
    #[arg(long, global = true)]
    pub(crate) any_core: bool,
    /// Also write all figures to this file, for programs
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write the tables to this file, as Markdown
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

impl Arguments {
    /// An error for files that the command would not write.
    pub(crate) fn check_files(&self) -> anyhow::Result<()> {
        let prints_itself = matches!(
            self.command,
            Some(
                Command::Verify(_)
                    | Command::Clear(_)
                    | Command::Leaders(_)
                    | Command::KillOne(_)
                    | Command::Tier(_)
                    | Command::Doors(_)
                    | Command::Reads(_)
                    | Command::Nano(_)
                    | Command::Ep(_)
                    | Command::Failover { .. }
            )
        );
        anyhow::ensure!(
            !prints_itself || (self.json.is_none() && self.markdown.is_none()),
            "this command prints its own table and knows no --json and --markdown; redirect what it prints"
        );
        Ok(())
    }
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Everything but `scale`, `nodes`, `rebuild`, `tls`, `ssd`, `drain`, `floors` and `copy` (the default)
    All,
    /// Put and get: same process, same host, TCP
    Paths,
    /// Control calls: 1 and 8 threads, 1 and 128 keys
    Control,
    /// Memory per indexed object, and cost per call as the index grows
    Index,
    /// The floors alone: copies and plain sockets
    Floors,
    /// The checksummed copy against a plain one
    Copy,
    /// Three masters on etcd lose their leader, by SIGKILL and by SIGSTOP
    Failover {
        /// Rounds of each kind.
        #[arg(default_value_t = 20)]
        rounds: u32,
    },
    /// Load a running cluster and judge every answer
    Verify(Verify),
    /// Remove every key of a running cluster and say what is left
    Clear(Clear),
    /// Watch who leads among several masters, and tempt those who lead no longer
    Leaders(Leaders),
    /// Three nodes, two replicas: kill -9 one owner under load and see what is lost
    KillOne(KillOne),
    /// A server with little memory and a disk: fill it, evict from it, slow it down
    Tier(Tier),
    /// Call at every port of a guarded server while thousands without a credential crowd it
    Doors(Doors),
    /// Whether what is read most stays: hot values beside cold puts, values of a disk, a trace
    Reads(Reads),
    /// Check the GPU-resident cache: the same list on every backend, with real processes
    Nano(NanoArgs),
    /// Check the expert exchange: the same list on every backend, with real processes
    Ep(EpArgs),
    /// Clients and nodes over TCP, beside bare sockets; small gets beside large transfers
    Scale,
    /// Calls of one client as the number of nodes grows, and what a node takes that nobody uses
    Nodes {
        /// Numbers of nodes; the first is the floor of the others
        #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 20, 100, 200],
              value_parser = clap::value_parser!(u64).range(1..=1000))]
        counts: Vec<u64>,
        /// Seconds for which idle nodes are watched
        #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = idle_seconds)]
        idle: f64,
    },
    /// Kill a master with many objects and see how fast it knows them again
    Rebuild {
        /// Objects of all nodes together.
        #[arg(long, default_value_t = 1_000_000)]
        objects: u64,
        /// Nodes that hold them.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
        nodes: u64,
        /// How often the master is killed.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
        rounds: u64,
    },
    /// A node is emptied while readers run
    Drain {
        /// Bytes that the node holds
        #[arg(long, value_name = "SIZE", default_value = "4GiB")]
        bytes: ByteSize,
        /// Bytes of a value
        #[arg(long, value_name = "SIZE", default_value = "1MiB")]
        value: ByteSize,
        /// Threads that read meanwhile
        #[arg(long, value_name = "COUNT", default_value_t = 8)]
        readers: u32,
    },
    /// A master that keeps its state, for the bench itself
    #[command(hide = true)]
    StateMasterForBench {
        /// Where it listens.
        #[arg(long)]
        listen: String,
        /// Its state file.
        #[arg(long)]
        state: PathBuf,
    },
    /// A node that fills itself, for the bench itself
    #[command(hide = true)]
    NodeForBench(NodeArguments),
    /// What tokens, grants and encryption cost over TCP
    Tls,
    /// Disks, and records kept on them, beside fio on the same file system
    Ssd {
        /// A directory on the disk to measure; files go to a folder of their own in it
        #[arg(long, value_name = "DIR", default_value = ".")]
        directory: PathBuf,
    },
    /// A master and a node, for the bench itself
    #[command(hide = true)]
    ServeForBench {
        /// Bytes of the node's segment.
        #[arg(long)]
        bytes: u64,
        /// A folder with a token.
        #[arg(long)]
        security: Option<PathBuf>,
        /// Use the certificates in that folder, too.
        #[arg(long)]
        tls: bool,
    },
    /// A master with an index of this size, for the bench itself
    #[command(hide = true)]
    MasterForBench {
        /// Objects in its index.
        #[arg(long)]
        objects: u64,
    },
    /// A master without nodes, for the bench itself
    #[command(hide = true)]
    PlainMasterForBench,
    /// Many nodes in one process, for the bench itself
    #[command(hide = true)]
    NodesForBench {
        /// Their master.
        #[arg(long)]
        master: String,
        /// How many.
        #[arg(long)]
        count: u64,
        /// Where their sockets go.
        #[arg(long)]
        folder: PathBuf,
    },
    /// The other end of the plain programs, for the bench itself
    #[command(hide = true)]
    FloorForBench {
        /// Bytes that its values are taken from.
        #[arg(long)]
        bytes: usize,
    },
    /// A node, for the bench itself
    #[command(hide = true)]
    DrainNodeForBench {
        /// Its name.
        #[arg(long)]
        name: String,
        /// Its master.
        #[arg(long)]
        master: String,
        /// Bytes of its segment.
        #[arg(long)]
        bytes: u64,
        /// Where its socket goes.
        #[arg(long)]
        folder: PathBuf,
    },
}

/// Less than a minute: after one, links that nobody uses end, and their threads with them.
fn idle_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=50.0).contains(&seconds) { Ok(seconds) } else { Err("not from 0.1 to 50".to_owned()) }
}

/// A node for the bench itself.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArguments {
    /// Its name.
    #[arg(long)]
    pub(crate) name: String,
    /// Its master.
    #[arg(long)]
    pub(crate) master: String,
    /// Its Unix socket.
    #[arg(long)]
    pub(crate) unix: PathBuf,
    /// Bytes of its segment.
    #[arg(long)]
    pub(crate) bytes: u64,
    /// The number of the first key that it fills in.
    #[arg(long, default_value_t = 0)]
    pub(crate) first: u64,
    /// How many it fills in.
    #[arg(long, default_value_t = 0)]
    pub(crate) objects: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound_and_all_is_the_default() {
        Arguments::command().debug_assert();
        let parsed = Arguments::parse_from(["mooncrate-bench", "--quick", "--json", "x.json"]);
        assert!(parsed.command.is_none() && parsed.quick);
        let parsed = Arguments::parse_from(["mooncrate-bench", "paths", "--quick"]);
        assert!(matches!(parsed.command, Some(Command::Paths)) && parsed.quick);
    }

    #[test]
    fn idle_nodes_are_watched_for_a_time_that_exists() {
        for (seconds, fine) in [
            ("0.1", true),
            ("50", true),
            ("0", false),
            ("-1", false),
            ("nan", false),
            ("60", false),
        ] {
            let idle = format!("--idle={seconds}");
            let parsed = Arguments::try_parse_from(["mooncrate-bench", "nodes", &idle]);
            assert_eq!(parsed.is_ok(), fine, "{seconds}");
        }
    }
}
