//! Where a master keeps what the next leader must know ([`Kept`]): nowhere, in a file, or in etcd
//! beside the election.

use crate::config::MasterConfig;
use crate::copies_of_state::StateCopies;
use crate::election::EtcdKeeper;
use crate::kept::Kept;
use crate::state_file::StateFile;
use crate::usual_state::{Found, UsualState};
use mooncrate_core::LeaderEpoch;
use std::io;

/// The place.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// A restart forgets.
    Nowhere,
    /// One master, which was told where.
    File(StateFile),
    /// One master, which was not.
    Usual(UsualState),
    /// One master beside disks.
    Copies(StateCopies),
    /// Several masters.
    Etcd(EtcdKeeper),
}

impl Keeper {
    /// The place of a master alone, what is kept there, and whether a master led that nobody can read of.
    pub(crate) fn open(config: &MasterConfig) -> io::Result<(Self, Option<Kept>, bool)> {
        if let Some(path) = &config.state_file {
            let (file, kept) = StateFile::named(path)?;
            return Ok((Self::File(file), kept, false));
        }
        if !config.disks.is_empty() {
            let (copies, kept) = StateCopies::open(&config.disks)?;
            return Ok((Self::Copies(copies), kept, false));
        }
        if config.usual_state.is_empty() {
            return Ok((Self::Nowhere, None, false));
        }
        let Found { state, kept, damaged } = UsualState::open(&config.usual_state);
        Ok((state.map_or(Self::Nowhere, Self::Usual), kept, damaged))
    }

    /// Whether it was chosen by this master: then it is no reason to refuse anything.
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self, Self::Usual(_))
    }

    /// Whether anything is kept.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// Makes the place say `kept`; a no-op if it does. False: nothing is kept there, and nobody can read an
    /// earlier list either.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<bool> {
        match self {
            Self::Nowhere => return Ok(false),
            Self::Usual(state) => return state.keep(kept),
            Self::File(file) => file.keep(kept)?,
            Self::Copies(copies) => copies.keep(&kept)?,
            Self::Etcd(etcd) => etcd.keep(kept)?,
        }
        Ok(true)
    }

    /// Reserves an epoch before it is used. A file has one master, which writes it with the rest.
    pub(crate) fn raise(&mut self, epoch: LeaderEpoch) -> io::Result<()> {
        match self {
            Self::Nowhere | Self::File(_) | Self::Usual(_) | Self::Copies(_) => Ok(()),
            Self::Etcd(etcd) => etcd.raise(epoch),
        }
    }

    /// Whether no mount is answered that could not be kept. With a file, serving goes on without it, but for nodes that
    /// are not on its list, and for keys of disks that are away (`trust.rs` of core).
    pub(crate) fn must(&self) -> bool {
        matches!(self, Self::Etcd(_))
    }
}
