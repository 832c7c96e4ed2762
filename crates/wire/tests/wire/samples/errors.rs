//! Errors: every variant of every kind turns up.

use super::Samples;
use mooncrate_core::Incarnation;
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::key::KeyError;
use mooncrate_core::plan::Medium;
use mooncrate_wire::{DataError, Refusal, RefusalCode};

impl Samples {
    pub(super) fn key_error(&mut self) -> KeyError {
        if self.yes() { KeyError::Empty } else { KeyError::TooLong { bytes: self.u64() as usize } }
    }

    pub(crate) fn put_error(&mut self) -> PutError {
        let after_ms = self.u32();
        match self.0.below(18) {
            0 => PutError::Key(self.key_error()),
            1 => PutError::Exists,
            2 => PutError::InProgress { after_ms },
            3 => PutError::TooLarge { len: self.u64() },
            4 => PutError::LargerThanAnySegment { wanted: self.u64(), largest: self.u64() },
            5 => PutError::BadReplicas { wanted: self.u32() },
            6 => PutError::TooFewNodes { wanted: self.u32(), nodes: self.u32() },
            7 => PutError::NoSegments,
            8 => PutError::Busy { after_ms },
            9 => PutError::Reclaiming { after_ms },
            10 => PutError::Rebuilding { after_ms },
            11 => PutError::Held { after_ms },
            12 => PutError::Replacing { after_ms },
            13 => PutError::BadSeals { stripes: self.u32(), seals: self.u32() },
            14 => PutError::Quota { quota: self.u64(), total: self.u64() },
            15 => PutError::HardFull { limit: self.u64(), total: self.u64() },
            16 => PutError::NoMedium { medium: Medium::ALL[self.0.below(3) as usize] },
            _ => PutError::NoSuchPut,
        }
    }

    pub(super) fn get_error(&mut self) -> GetError {
        match self.0.below(3) {
            0 => GetError::Key(self.key_error()),
            1 => GetError::NotFound,
            _ => GetError::Rebuilding { after_ms: self.u32() },
        }
    }

    pub(super) fn remove_error(&mut self) -> RemoveError {
        match self.0.below(6) {
            0 => RemoveError::Key(self.key_error()),
            1 => RemoveError::NotFound,
            2 => RemoveError::Leased { left_ms: self.u32() },
            3 => RemoveError::Deferred { after_ms: self.u32() },
            4 => RemoveError::InProgress,
            _ => RemoveError::Rebuilding { after_ms: self.u32() },
        }
    }

    pub(super) fn mount_error(&mut self) -> MountError {
        match self.0.below(6) {
            0 => MountError::StaleIncarnation {
                last: Incarnation(self.u64()),
                over: self.0.below(2) == 1,
            },
            1 => MountError::ForeignSegment,
            2 => MountError::BadOffer { bytes: self.u64(), slots: self.u32() },
            3 => MountError::TooManySegments { count: self.u32() },
            4 => MountError::UnknownNode,
            _ => MountError::BadAnnouncement { slot: self.u32() },
        }
    }

    pub(super) fn data_error(&mut self) -> DataError {
        match self.0.below(11) {
            0 => DataError::Stale,
            1 => DataError::Busy { after_ms: self.u32() },
            2 => DataError::OldEpoch,
            3 => DataError::BadToken,
            4 => DataError::Corrupt,
            5 => DataError::OutOfBounds,
            6 => DataError::UnknownSegment,
            7 => DataError::Denied,
            8 => DataError::Device,
            9 => DataError::Expired,
            _ => DataError::Unsupported,
        }
    }

    pub(super) fn refusal(&mut self) -> Refusal {
        let code = RefusalCode::ALL[self.0.below(RefusalCode::ALL.len() as u64) as usize];
        let message = self.text();
        let leader = if code == RefusalCode::NotLeader { self.text() } else { String::new() };
        Refusal { code, message, leader }
    }
}
