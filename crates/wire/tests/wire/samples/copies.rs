//! What administrators and readers ask about copies and segments.

use super::*;

impl Samples {
    pub(super) fn drain_stat(&mut self) -> DrainStat {
        DrainStat {
            draining: self.u32(),
            start_bytes: self.u64(),
            start_replicas: self.u64(),
            left_bytes: self.u64(),
            left_replicas: self.u64(),
            moved: self.u64(),
            dropped: self.u64(),
            stuck: self.u64(),
        }
    }

    pub(super) fn in_use(&mut self) -> InUse {
        InUse { used_bytes: self.u64(), ending_bytes: self.u64() }
    }

    pub(super) fn marks_heard(&mut self) -> MarksHeard {
        MarksHeard { pause_ms: self.u32(), outdated: self.list(Self::read_mark) }
    }

    /// What administrators and readers ask about copies.
    pub(super) fn copy_request(&mut self, kind: Kind) -> Request<'static> {
        match kind {
            Kind::Drain => Request::Drain(Drain {
                node: NodeId(self.u64()),
                segment: self.optional(|s| SegmentId(s.u64())),
                wish: [DrainWish::Look, DrainWish::Move, DrainWish::Drop, DrainWish::Undo]
                    [self.0.below(4) as usize],
            }),
            Kind::Evict => {
                let (segment, used_max) = (SegmentId(self.u64()), self.u64());
                Request::Evict(Evict { segment, used_max })
            }
            Kind::Copy => Request::Copy(CopyKey {
                key: self.key(),
                from: self.optional(|s| SegmentId(s.u64())),
                to: SegmentId(self.u64()),
            }),
            Kind::DropCopy => {
                Request::DropCopy(DropCopy { key: self.key(), segment: SegmentId(self.u64()) })
            }
            Kind::ReadMarks => {
                Request::ReadMarks(ReadMarks { marks: self.list(Self::read_mark).into() })
            }
            _ => Request::Command(Command { node: NodeId(self.u64()), command: self.command() }),
        }
    }
}
