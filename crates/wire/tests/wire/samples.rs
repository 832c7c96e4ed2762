//! Random messages of every kind, from a seed: edges, short and empty lists, every variant of every error.

mod copies;
mod data;
mod errors;
mod stats;

use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainMode, DrainStat};
use mooncrate_core::error::CopyError;
use mooncrate_core::ids::*;
use mooncrate_core::key::Key;
use mooncrate_core::label::{Label, StripeOf};
use mooncrate_core::plan::*;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Extent, Seal};
use mooncrate_wire::message::*;
use mooncrate_wire::{Kind, LinkKind};
use std::borrow::Cow;

pub(crate) struct Samples(Rng);

impl Samples {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub(crate) fn u64(&mut self) -> u64 {
        match self.0.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => self.0.below(256),
            3 => self.0.below(1 << 32),
            _ => self.0.next(),
        }
    }

    fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    fn yes(&mut self) -> bool {
        self.0.chance(500)
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = [0, 1, 2, 7][self.0.below(4) as usize];
        (0..count).map(|_| one(self)).collect()
    }

    fn optional<T>(&mut self, one: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.yes() { Some(one(self)) } else { None }
    }

    fn result<T, E>(
        &mut self,
        good: impl FnOnce(&mut Self) -> T,
        bad: impl FnOnce(&mut Self) -> E,
    ) -> Result<T, E> {
        if self.yes() { Ok(good(self)) } else { Err(bad(self)) }
    }

    /// Key bytes; requests may carry what is no key, so empty ones too. Leaked: tests are short.
    fn key(&mut self) -> &'static [u8] {
        let bytes: Vec<u8> = (0..self.0.below(40)).map(|_| self.0.next() as u8).collect();
        bytes.leak()
    }

    fn kept_key(&mut self) -> Key {
        let mut bytes = self.key().to_vec();
        bytes.push(1);
        Key::new(bytes).unwrap()
    }

    fn text(&mut self) -> String {
        ["", "node-1", "127.0.0.1:7070", "/run/mooncrate.sock", "é\u{1f980}"]
            [self.0.below(5) as usize]
            .to_owned()
    }

    fn extent(&mut self) -> Extent {
        let offset = self.u64();
        let len = self.u64();
        Extent::new(offset, len).unwrap_or(Extent::new(0, len).unwrap())
    }

    fn grant(&mut self) -> Option<Grant> {
        let mac = [self.u64().to_le_bytes(), self.u64().to_le_bytes()].concat();
        self.yes().then(|| Grant {
            tenant: TenantId(self.u32()),
            expires_s: self.u32(),
            right: if self.yes() { Right::Read } else { Right::Write },
            mac: mac.try_into().unwrap(),
        })
    }

    fn locator(&mut self) -> Locator {
        Locator {
            segment: SegmentId(self.u64()),
            incarnation: Incarnation(self.u64()),
            slot: Slot(self.u32()),
            generation: Generation(self.u32()),
            extent: self.extent(),
            stripe: self.u64() as u8,
            grant: self.grant(),
        }
    }

    fn object(&mut self) -> ObjectId {
        ObjectId { epoch: LeaderEpoch(self.u64()), sequence: self.u64() }
    }

    fn offer(&mut self) -> SegmentOffer {
        SegmentOffer {
            segment: SegmentId(self.u64()),
            incarnation: Incarnation(self.u64()),
            node: NodeId(self.u64()),
            medium: [Medium::Vram, Medium::Dram, Medium::Ssd][self.0.below(3) as usize],
            bytes: self.u64(),
            slots: self.u32(),
            host: HostId(self.u64()),
            zone: ZoneId(self.u64()),
            tenant: self.optional(|s| TenantId(s.u32())),
            evidence: Evidence {
                stamp: Stamp(self.u64()),
                before: (Stamp(self.u64()), Stamp(self.u64())),
                lapsed: self.yes(),
            },
        }
    }

    fn keep(&mut self) -> Keep {
        match self.0.below(3) {
            0 => Keep::Normal,
            1 => Keep::Soft { ttl_ms: self.u32() },
            _ => Keep::Hard,
        }
    }

    fn striping(&mut self) -> Striping {
        let unit = self.u64().min(1 << 40);
        if self.yes() && unit > 0 {
            return Striping { len: unit * 3, stripe_bytes: unit };
        }
        Striping::whole(unit)
    }

    fn label(&mut self) -> Label {
        let striping = self.striping();
        let stripe = (striping.stripes() > 1).then_some(StripeOf { stripe: 2, striping });
        Label {
            tenant: TenantId(self.u32()),
            key: self.kept_key(),
            keep: self.keep(),
            group: GroupId(self.u64()),
            expire_ms: self.u32(),
            stripe,
            copies: 1 + self.0.below(8) as u8,
        }
    }

    fn put_config(&mut self) -> PutConfig {
        PutConfig {
            replicas: self.u64() as u8,
            best_effort: self.yes(),
            media: [self.u64() as u8, 0, self.u64() as u8],
            preferred: self.list(|s| SegmentId(s.u64())),
            avoid: self.list(|s| SegmentId(s.u64())),
            host: HostId(self.u64()),
            zone: ZoneId(self.u64()),
            keep: self.keep(),
            group: GroupId(self.u64()),
            expire_ms: self.u32(),
            upsert: self.yes(),
        }
    }

    fn seals(&mut self) -> SealList<'static> {
        let seals = [Seal(self.u64()), Seal(self.u64())];
        let count = 1 + self.0.below(2) as usize;
        SealList::of(SealList::encode(&seals[..count]).leak())
    }

    fn pattern(&mut self) -> Pattern<'static> {
        let text: &'static str = self.text().leak();
        if self.yes() { Pattern::Regex(text) } else { Pattern::Prefix(self.key()) }
    }

    fn info(&mut self) -> NodeInfo {
        NodeInfo {
            node: NodeId(self.u64()),
            name: self.text(),
            tcp: self.text(),
            unix: self.text(),
            host: HostId(self.u64()),
            zone: ZoneId(self.u64()),
        }
    }

    fn mounts(&mut self) -> Vec<(SegmentId, Incarnation)> {
        self.list(|s| (SegmentId(s.u64()), Incarnation(s.u64())))
    }

    fn drains(&mut self) -> Vec<(SegmentId, DrainMode)> {
        self.list(|s| {
            let mode = if s.yes() { DrainMode::Move } else { DrainMode::Drop };
            (SegmentId(s.u64()), mode)
        })
    }

    fn announced(&mut self) -> Announced {
        Announced {
            slot: Slot(self.u32()),
            generation: Generation(self.u32()),
            life: self.optional(|s| AnnouncedLife {
                extent: s.extent(),
                object: s.optional(|s| AnnouncedObject {
                    label: s.label(),
                    object: s.object(),
                    len: s.u64(),
                    seal: Seal(s.u64()),
                }),
            }),
        }
    }

    fn order(&mut self) -> Order {
        Order {
            segment: SegmentId(self.u64()),
            incarnation: Incarnation(self.u64()),
            slot: Slot(self.u32()),
            generation: Generation(self.u32()),
            action: match self.0.below(3) {
                0 => Action::Evict,
                1 => Action::Retire { free_after_ms: self.u32() },
                _ => Action::Abort,
            },
        }
    }

    fn notice(&mut self) -> Notice {
        Notice {
            segment: SegmentId(self.u64()),
            incarnation: Incarnation(self.u64()),
            slot: Slot(self.u32()),
            generation: Generation(self.u32()),
            result: match self.0.below(5) {
                0 => OrderResult::Freed { next: Generation(self.u32()) },
                1 => OrderResult::Pinned,
                2 => OrderResult::Waiting,
                3 => OrderResult::Bad,
                _ => OrderResult::Holds { seal: self.0.chance(500).then(|| Seal(self.u64())) },
            },
        }
    }

    fn keys(&mut self) -> Cow<'static, [&'static [u8]]> {
        self.list(Self::key).into()
    }

    pub(crate) fn request(&mut self, kind: Kind) -> Option<Request<'static>> {
        Some(match kind {
            Kind::Ping => Request::Ping(Ping {}),
            Kind::PutStart => Request::PutStart(PutStart {
                config: Cow::Owned(self.put_config()),
                items: self
                    .list(|s| PutItem { key: s.key(), len: s.u64(), group: GroupId(s.u64()) })
                    .into(),
            }),
            Kind::PutEnd => Request::PutEnd(PutEnd {
                items: self
                    .list(|s| PutEndItem {
                        key: s.key(),
                        token: PutToken(s.u64()),
                        seals: s.seals(),
                    })
                    .into(),
            }),
            Kind::PutRevoke => Request::PutRevoke(PutRevoke {
                items: self
                    .list(|s| PutRevokeItem { key: s.key(), token: PutToken(s.u64()) })
                    .into(),
            }),
            Kind::Locate => Request::Locate(Locate { lease_ms: self.u32(), keys: self.keys() }),
            Kind::Exist => Request::Exist(Exist { keys: self.keys() }),
            Kind::Look => Request::Look(Look {
                hold: self.yes(),
                places: self.yes(),
                reads: self.yes(),
                keys: self.keys(),
            }),
            Kind::Remove => Request::Remove(Remove { force: self.yes(), keys: self.keys() }),
            Kind::List => Request::List(List {
                pattern: self.pattern(),
                cursor: self.u64(),
                limit: self.u32(),
            }),
            Kind::Stat => Request::Stat(Stat {}),
            Kind::Nodes => Request::Nodes(Nodes {}),
            Kind::PutReplan => Request::PutReplan(PutReplan {
                config: Cow::Owned(self.put_config()),
                key: self.key(),
                token: PutToken(self.u64()),
                failed: self.list(|s| SegmentId(s.u64())),
            }),
            Kind::RemoveMatching => Request::RemoveMatching(RemoveMatching {
                pattern: self.pattern(),
                force: self.yes(),
                cursor: self.u64(),
            }),
            Kind::SetQuota => Request::SetQuota(SetQuota {
                tenant: TenantId(self.u32()),
                quota: self.optional(Self::u64),
            }),
            Kind::Drain
            | Kind::Evict
            | Kind::Copy
            | Kind::DropCopy
            | Kind::ReadMarks
            | Kind::Command => self.copy_request(kind),
            Kind::Mount | Kind::Announce | Kind::Unmount | Kind::Heartbeat | Kind::Orders => {
                self.node_request(kind)
            }
            _ => return None,
        })
    }

    pub(crate) fn reply(&mut self, kind: Kind) -> Option<Reply> {
        let epoch = LeaderEpoch(self.u64());
        let registration_ms = self.u32();
        Some(match kind {
            Kind::Ping => Reply::Ping(Pong { epoch }),
            Kind::PutStart => Reply::PutStart(self.list(|s| s.result(Self::plan, Self::put_error))),
            Kind::PutEnd => Reply::PutEnd(self.list(|s| s.result(|_| (), Self::put_error))),
            Kind::PutRevoke => Reply::PutRevoke(self.list(|s| s.result(|_| (), Self::put_error))),
            Kind::Locate => Reply::Locate(self.list(|s| s.result(Self::located, Self::get_error))),
            Kind::Exist => Reply::Exist(self.list(|s| s.result(Self::yes, Self::get_error))),
            Kind::Look => Reply::Look(self.list(|s| s.result(Self::looked, Self::get_error))),
            Kind::Remove => Reply::Remove(self.list(|s| s.result(|_| (), Self::remove_error))),
            Kind::List => Reply::List(Listing {
                entries: self.list(|s| Listed {
                    key: s.kept_key(),
                    len: s.u64(),
                    object: s.object(),
                    replicas: s.u64() as u8,
                }),
                next: self.optional(Self::u64),
            }),
            Kind::Stat => Reply::Stat(self.stat(epoch)),
            Kind::Nodes => {
                Reply::Nodes(self.list(|s| NodeEntry { info: s.info(), segments: s.mounts() }))
            }
            Kind::PutReplan => Reply::PutReplan(self.result(Self::plan, Self::put_error)),
            Kind::RemoveMatching => {
                let good = |s: &mut Self| Removed {
                    removed: s.u64(),
                    deferred: s.u64(),
                    leased: s.u64(),
                    next: s.optional(Self::u64),
                };
                Reply::RemoveMatching(self.result(good, Self::remove_error))
            }
            Kind::SetQuota => Reply::SetQuota(()),
            Kind::Drain => Reply::Drain(self.optional(Self::drain_stat)),
            Kind::Evict => Reply::Evict(self.optional(Self::in_use)),
            Kind::Copy => Reply::Copy(self.result(|_| (), Self::copy_error)),
            Kind::DropCopy => Reply::DropCopy(self.result(|_| (), Self::copy_error)),
            Kind::ReadMarks => Reply::ReadMarks(self.marks_heard()),
            Kind::Command => Reply::Command(self.yes()),
            Kind::Mount => {
                let good = |s: &mut Self| Mounted { epoch, registration_ms, fence_ms: s.u32() };
                Reply::Mount(self.result(good, Self::mount_error))
            }
            Kind::Announce => Reply::Announce(self.result(|_| (), Self::mount_error)),
            Kind::Unmount => Reply::Unmount(self.result(|_| (), Self::mount_error)),
            Kind::Heartbeat => {
                let good = |s: &mut Self| Pulse {
                    epoch,
                    registration_ms,
                    draining: s.drains(),
                    serve_ms: s.u32(),
                };
                Reply::Heartbeat(self.result(good, Self::mount_error))
            }
            Kind::Orders => {
                let good = |s: &mut Self| OrderBatch {
                    epoch,
                    orders: s.list(Self::order),
                    copies: s.list(Self::copy_order),
                    commands: s.list(Self::command),
                };
                Reply::Orders(self.result(good, Self::mount_error))
            }
            Kind::Refuse => Reply::Refuse(self.refusal()),
            _ => return None,
        })
    }

    fn node_request(&mut self, kind: Kind) -> Request<'static> {
        match kind {
            Kind::Mount => Request::Mount(Mount {
                info: self.info(),
                seen: LeaderEpoch(self.u64()),
                offers: self.list(Self::offer),
                fence_ms: self.optional(Self::u32),
                draining: self.drains(),
            }),
            Kind::Announce => Request::Announce(Announce {
                epoch: LeaderEpoch(self.u64()),
                segment: SegmentId(self.u64()),
                incarnation: Incarnation(self.u64()),
                page: self.list(Self::announced),
                last: self.yes(),
            }),
            Kind::Unmount => {
                Request::Unmount(Unmount { node: NodeId(self.u64()), segments: self.mounts() })
            }
            Kind::Heartbeat => Request::Heartbeat(Heartbeat {
                node: NodeId(self.u64()),
                incarnation: Incarnation(self.u64()),
            }),
            Kind::Orders => Request::Orders(Orders {
                node: NodeId(self.u64()),
                notices: self.list(Self::notice),
                copied: self.list(|s| CopyDone::of(&s.locator(), s.yes())),
                wait_ms: self.u32(),
            }),
            kind => unreachable!("{kind} is not asked by a node"),
        }
    }

    fn read_mark(&mut self) -> ReadMark {
        ReadMark {
            segment: SegmentId(self.u64()),
            slot: Slot(self.u32()),
            generation: Generation(self.u32()),
            reads: self.u32(),
            copies: self.u64() as u16,
            tag: self.u64(),
        }
    }

    fn command(&mut self) -> NodeCommand {
        let index = self.u64() as u16;
        if self.yes() {
            NodeCommand::Mount { index, bytes: self.u64() }
        } else {
            NodeCommand::Unmount { index }
        }
    }

    fn copy_order(&mut self) -> CopyOrder {
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

    fn copy_error(&mut self) -> CopyError {
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

    fn plan(&mut self) -> WritePlan {
        WritePlan {
            object: self.object(),
            token: PutToken(self.u64()),
            epoch: LeaderEpoch(self.u64()),
            striping: self.striping(),
            replicas: self.list(Self::locator),
        }
    }

    fn looked(&mut self) -> Looked {
        match self.0.below(4) {
            0 => Looked::Missing,
            1 => Looked::Writing,
            2 => Looked::Here { len: self.u64(), group: GroupId(self.u64()) },
            _ => Looked::At(self.located()),
        }
    }

    fn located(&mut self) -> Located {
        Located {
            object: self.object(),
            striping: self.striping(),
            seal: Seal(self.u64()),
            more_seals: self.list(|s| Seal(s.u64())),
            lease_ms: self.u32(),
            replicas: self.list(Self::locator),
        }
    }

    pub(crate) fn hello(&mut self) -> Hello {
        Hello {
            version_min: self.u64() as u8,
            version_max: self.u64() as u8,
            role: [Role::Client, Role::Node, Role::Master, Role::Admin][self.0.below(4) as usize],
            link: if self.yes() { LinkKind::Control } else { LinkKind::Data },
            name: self.text(),
        }
    }

    pub(crate) fn hello_ack(&mut self) -> HelloAck {
        HelloAck {
            version: self.u64() as u8,
            name: self.text(),
            epoch: LeaderEpoch(self.u64()),
            host: HostId(self.u64()),
        }
    }
}
