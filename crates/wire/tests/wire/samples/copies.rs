//! Samples of what concerns copies and segments.

use super::*;

impl Samples {
    /// What administrators and readers ask about copies.
    pub(super) fn copy_request(&mut self, kind: Kind) -> Request<'static> {
        match kind {
            Kind::Drain => Request::Drain(Drain {
                node: NodeId(self.u64()),
                segment: self.optional(|s| SegmentId(s.u64())),
                wish: [DrainWish::Look, DrainWish::Move, DrainWish::Drop, DrainWish::Undo]
                    [self.0.below(4) as usize],
            }),
            Kind::Copy => Request::Copy(CopyKey {
                key: self.key(),
                from: self.optional(|s| SegmentId(s.u64())),
                to: SegmentId(self.u64()),
            }),
            Kind::DropCopy => {
                Request::DropCopy(DropCopy { key: self.key(), segment: SegmentId(self.u64()) })
            }
            Kind::Touch => Request::Touch(Touch { keys: self.keys() }),
            _ => Request::Command(Command { node: NodeId(self.u64()), command: self.command() }),
        }
    }

    /// What they are answered.
    pub(super) fn copy_reply(&mut self, kind: Kind) -> Reply {
        match kind {
            Kind::Drain => Reply::Drain(self.optional(|s| DrainStat {
                draining: s.u32(),
                start_bytes: s.u64(),
                start_replicas: s.u64(),
                left_bytes: s.u64(),
                left_replicas: s.u64(),
                moved: s.u64(),
                dropped: s.u64(),
                stuck: s.u64(),
            })),
            Kind::Copy => Reply::Copy(self.result(|_| (), Self::copy_error)),
            Kind::DropCopy => Reply::DropCopy(self.result(|_| (), Self::copy_error)),
            Kind::Touch => Reply::Touch(()),
            _ => Reply::Command(self.yes()),
        }
    }

    pub(super) fn command(&mut self) -> NodeCommand {
        let index = self.u64() as u16;
        if self.yes() {
            NodeCommand::Mount { index, bytes: self.u64() }
        } else {
            NodeCommand::Unmount { index }
        }
    }

    pub(super) fn copy_order(&mut self) -> CopyOrder {
        CopyOrder {
            target: self.locator(),
            sources: self.list(Self::locator),
            token: PutToken(self.u64()),
            object: self.object(),
            epoch: LeaderEpoch(self.u64()),
            len: self.u64(),
            seal: Seal(self.u64()),
            label: self.label(),
            time_ms: self.u32(),
        }
    }

    pub(super) fn copy_error(&mut self) -> CopyError {
        let after_ms = self.u32();
        match self.0.below(6) {
            0 => CopyError::Key(self.key_error()),
            1 => CopyError::NotFound,
            2 => CopyError::NoSource,
            3 => CopyError::NoTarget,
            4 => CopyError::NoRoom { after_ms },
            _ => CopyError::Busy { after_ms },
        }
    }
}
