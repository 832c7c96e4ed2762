//! Where a master keeps what the next leader must know ([`Kept`]): nowhere, in a file, or in etcd
//! beside the election.

use crate::copies_of_state::StateCopies;
use crate::election::EtcdKeeper;
use crate::kept::Kept;
use crate::state_file::StateFile;
use mooncrate_core::LeaderEpoch;
use std::io;

/// The place.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// A restart forgets.
    Nowhere,
    /// One master.
    File(StateFile),
    /// One master beside disks.
    Copies(StateCopies),
    /// Several masters.
    Etcd(EtcdKeeper),
}

impl Keeper {
    /// Whether anything is kept.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// Makes the place say `kept`; a no-op if it does.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::File(file) => file.keep(kept),
            Self::Copies(copies) => copies.keep(&kept),
            Self::Etcd(etcd) => etcd.keep(kept),
        }
    }

    /// Reserves an epoch before it is used. A file has one master, which writes it with the rest.
    pub(crate) fn raise(&mut self, epoch: LeaderEpoch) -> io::Result<()> {
        match self {
            Self::Nowhere | Self::File(_) | Self::Copies(_) => Ok(()),
            Self::Etcd(etcd) => etcd.raise(epoch),
        }
    }

    /// Whether a mount that could not be kept must not be answered. With a file, serving goes on
    /// without it (but for keys of disks that are away: `trust.rs` of core); among several masters
    /// the next leader would not wait for that node (M9).
    pub(crate) fn must(&self) -> bool {
        matches!(self, Self::Etcd(_))
    }
}
