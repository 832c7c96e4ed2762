//! The memory of a node before it joins a cluster: reserved, and taken from the system at once where `prefault` asks for
//! that.
//!
//! What must stay true: this comes before a master learns of the node, so that a client never waits for pages that are
//! being taken, and a node whose memory cannot be had changes nothing elsewhere. A node that starts over later, because its
//! master gave it up, does not do this again: its old memory may still be there, and both together could be too much.

use crate::config::NodeConfig;
use crate::duty::NodeError;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::memory::Bytes;
use mooncrate_mem::{Segment, TouchError};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// Between two lines that say how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// A node's segment.
#[derive(Debug)]
pub struct OpenMemory(pub(crate) Arc<Segment>);

impl OpenMemory {
    /// Reserves it. With `prefault` it returns when every page is there.
    pub fn open(config: &NodeConfig) -> Result<Self, NodeError> {
        let segment = config.create(config.spec(config.incarnation))?;
        if config.prefault {
            touch(&segment).map_err(|error| refused(&segment, error))?;
        }
        Ok(Self(segment))
    }
}

fn touch(segment: &Segment) -> Result<(), TouchError> {
    let (all, began) = (segment.spec().bytes, boottime());
    let mut told = began;
    tracing::info!("touching {} of memory (--prefault)", Bytes(all));
    segment.touch(|touched| {
        let now = boottime();
        if touched == all {
            let took = now.since(began).as_secs_f64();
            tracing::info!("touched {0} of {0} in {took:.1} s", Bytes(all));
        } else if now.since(told) >= TOLD_EVERY {
            told = now;
            tracing::info!("touched {} of {}", Bytes(touched), Bytes(all));
        }
    })
}

fn refused(segment: &Segment, TouchError { touched, source }: TouchError) -> NodeError {
    let help = match Errno::from_io_error(&source) {
        Some(Errno::NOMEM) => {
            "the machine or the cgroup has no more memory: offer less with --segment-size, or raise the limit"
        }
        Some(Errno::FAULT) => {
            "there are no more pages of this kind: offer less with --segment-size, or enlarge the pool of huge pages"
        }
        Some(Errno::HWPOISON) => {
            "a page of this machine's memory is broken: start again, and have the machine looked at"
        }
        _ => "offer less with --segment-size, or leave --prefault away",
    };
    let (touched, bytes) = (Bytes(touched), Bytes(segment.spec().bytes));
    NodeError::Prefault { touched, bytes, source, help }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_refusal_names_how_far_it_came_and_what_helps() {
        let config = NodeConfig { segment_bytes: 64 << 20, shared: false, ..NodeConfig::default() };
        let OpenMemory(segment) = OpenMemory::open(&config).unwrap();
        for (errno, helps) in [
            (Errno::NOMEM, "raise the limit"),
            (Errno::FAULT, "pool of huge pages"),
            (Errno::HWPOISON, "broken"),
            (Errno::PERM, "leave --prefault away"),
        ] {
            let error = TouchError { touched: 3 << 20, source: io::Error::from(errno) };
            let words = refused(&segment, error).to_string();
            assert!(words.starts_with("3.0 MiB of the 64.0 MiB"), "{words}");
            assert!(words.contains(helps) && words.contains("os error"), "{words}");
        }
    }
}
