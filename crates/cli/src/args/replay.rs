//! The arguments of `replay`.

use clap::{ArgGroup, Args};
use mooncrate_paged::Policy;
use mooncrate_paged::replay::{BLOCK_TOKENS, BYTES_PER_TOKEN, Load};
use std::path::PathBuf;

/// The generated loads that `replay --load` names.
#[derive(Clone, Debug)]
pub(crate) struct Loads(pub(crate) Vec<Load>);

fn loads(name: &str) -> Result<Loads, String> {
    if name == "all" {
        return Ok(Loads(Load::ALL.to_vec()));
    }
    name.parse().map(|load| Loads(vec![load])).map_err(|unknown| format!("{unknown}, or all"))
}

/// Clients of a store that is replayed: each is a thread with connections to master and node in the same process.
pub(crate) const CLIENTS_MAX: u32 = 256;

fn clients(text: &str) -> Result<u32, String> {
    match crate::config::count(text)? {
        count if count > CLIENTS_MAX => Err(format!("{count} clients are more than {CLIENTS_MAX}")),
        count => Ok(count),
    }
}

/// `replay`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("requests").args(["trace", "load"]).required(true))]
pub(crate) struct Replay {
    #[arg(
        value_name = "TRACE",
        help = "The trace: JSON lines with timestamp, input_length, output_length and hash_ids"
    )]
    pub(crate) trace: Option<PathBuf>,
    /// Instead of a trace, a generated load: scans, loop, shift, flood, zipf, turns, agents, rag or mixed; all: one
    /// table for each
    #[arg(long, value_name = "NAME", value_parser = loads)]
    pub(crate) load: Option<Loads>,
    /// Which requests a generated load has: the same seed, the same requests
    #[arg(long, value_name = "NUMBER", default_value_t = 1, conflicts_with = "trace")]
    pub(crate) seed: u64,
    /// Sizes of the cache in blocks [default: powers of two, up to all blocks of the trace]
    #[arg(
        long,
        value_name = "BLOCKS,…",
        value_delimiter = ',',
        value_parser = crate::config::count
    )]
    pub(crate) capacity: Vec<u32>,
    /// Which policies: density (learned from the requests), lru, fifo, priority (heads of prefixes stay) or
    /// importance (what was asked for often stays) [default: all]
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,
    /// Tokens of a block in the trace
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = BLOCK_TOKENS,
        value_parser = crate::config::count
    )]
    pub(crate) block_tokens: u32,
    /// KV cache of one token; the default is that of Llama 3 8B with two bytes per number
    #[arg(
        long,
        value_name = "SIZE",
        default_value_t = BYTES_PER_TOKEN,
        value_parser = crate::config::size
    )]
    pub(crate) bytes_per_token: u64,
    /// Leave lines out that are no requests, and say how many there were
    #[arg(long, conflicts_with = "load")]
    pub(crate) skip_broken: bool,
    /// Replay through the block manager, too, with the first of the policies, or density
    #[arg(long)]
    pub(crate) block_manager: bool,
    /// Replay through a real store, too, with the first of the policies, or density: density, lru or fifo
    #[arg(long)]
    pub(crate) store: bool,
    /// Clients of that store, at most 256
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 4,
        requires = "store",
        value_parser = clients
    )]
    pub(crate) clients: u32,
    /// Give that store a disk of this size below its memory, and show what is written to it
    #[arg(
        long,
        value_name = "SIZE",
        requires = "store",
        value_parser = crate::config::size
    )]
    pub(crate) disk: Option<u64>,
    /// Draw the hit rates over the sizes into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
