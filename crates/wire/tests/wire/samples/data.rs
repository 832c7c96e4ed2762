//! Messages between clients and nodes.

use super::Samples;
use mooncrate_core::{Incarnation, LeaderEpoch, PutToken, Seal, SegmentId};
use mooncrate_wire::Kind;
use mooncrate_wire::message::*;

impl Samples {
    fn begin_write(&mut self) -> BeginWrite<'static> {
        BeginWrite {
            locator: self.locator(),
            token: PutToken(self.u64()),
            object: self.object(),
            epoch: LeaderEpoch(self.u64()),
            len: self.u64(),
            label: self.key(),
        }
    }

    pub(crate) fn data_request(&mut self, kind: Kind) -> Option<DataRequest<'static>> {
        let (locator, token) = (self.locator(), PutToken(self.u64()));
        Some(match kind {
            Kind::Attach => {
                let (segment, stores) = (SegmentId(self.u64()), self.yes());
                DataRequest::Attach(Attach { segment, stores })
            }
            Kind::Begin => DataRequest::Begin(Begin { put: self.begin_write() }),
            Kind::Write => DataRequest::Write(Write { put: self.begin_write() }),
            Kind::Signal => DataRequest::Signal(Signal { locator, token, seal: Seal(self.u64()) }),
            Kind::Read => DataRequest::Read(Read { locator, start: self.u64(), len: self.u64() }),
            Kind::Pin => DataRequest::Pin(Pin { locators: self.list(Self::locator).into() }),
            Kind::Unpin => DataRequest::Unpin(Unpin { ids: self.list(|s| PinId(s.u64())).into() }),
            Kind::Abandon => DataRequest::Abandon(Abandon { locator, token }),
            Kind::Open => DataRequest::Open(Open { put: self.begin_write() }),
            Kind::WritePart => {
                let (len, offset) = (self.u64(), self.u64());
                DataRequest::WritePart(WritePart { len, locator, token, offset })
            }
            Kind::Stage => {
                let item =
                    |s: &mut Self| StageItem { locator: s.locator(), start: s.u64(), len: s.u64() };
                DataRequest::Stage(Stage { items: self.list(item).into() })
            }
            Kind::Release => {
                DataRequest::Release(Release { locators: self.list(Self::locator).into() })
            }
            Kind::Verify => DataRequest::Verify(Verify { locator, seal: Seal(self.u64()) }),
            Kind::Lend => DataRequest::Lend(Lend { segment: SegmentId(self.u64()) }),
            _ => return None,
        })
    }

    pub(crate) fn data_reply(&mut self, kind: Kind) -> Option<DataReply> {
        Some(match kind {
            Kind::Attach => {
                let good = |s: &mut Self| Attached {
                    incarnation: Incarnation(s.u64()),
                    slots: s.u32(),
                    bytes: s.u64(),
                };
                DataReply::Attach(self.result(good, Self::data_error))
            }
            Kind::Begin => DataReply::Begin(self.result(|_| (), Self::data_error)),
            Kind::Write => DataReply::Write(self.result(|_| (), Self::data_error)),
            Kind::Signal => DataReply::Signal(self.result(|_| (), Self::data_error)),
            Kind::Read => {
                DataReply::Read(ReadReply { result: self.result(Self::u64, Self::data_error) })
            }
            Kind::Pin => {
                DataReply::Pin(self.list(|s| s.result(|s| PinId(s.u64()), Self::data_error)))
            }
            Kind::Unpin => DataReply::Unpin(()),
            Kind::Abandon => DataReply::Abandon(self.result(|_| (), Self::data_error)),
            Kind::Open => DataReply::Open(self.result(|_| (), Self::data_error)),
            Kind::WritePart => DataReply::WritePart(self.result(|_| (), Self::data_error)),
            Kind::Stage => {
                let good = |s: &mut Self| Staged {
                    locator: s.locator(),
                    len: s.u64(),
                    seal: Seal(s.u64()),
                    lease_ms: s.u32(),
                };
                DataReply::Stage(self.list(|s| s.result(good, Self::data_error)))
            }
            Kind::Release => DataReply::Release(()),
            Kind::Verify => DataReply::Verify(self.result(|s| s.0.chance(500), Self::data_error)),
            Kind::Lend => {
                let good = |s: &mut Self| Lent {
                    incarnation: Incarnation(s.u64()),
                    bytes: s.u64(),
                    memory_bytes: s.u64(),
                    device: std::array::from_fn(|_| s.u64() as u8),
                };
                DataReply::Lend(self.result(good, Self::data_error))
            }
            Kind::Refuse => DataReply::Refuse(self.refusal()),
            _ => return None,
        })
    }
}
