//! The door for GPU processes of the same host: the owner of a segment in VRAM lends its memory, and the
//! peer's own GPU copies from and to it. Headers stay with the owner, so the owner is asked before and told
//! after, by the messages that shared memory uses:
//!
//! ```text
//!   lend                          once per mount: a descriptor for the driver, the GPU's UUID
//!   pin ─ copy on the GPU ─ sum ─ unpin         a read: the range stays as it is in between (R2, R4)
//!   begin ─ copy on the GPU, value and table ─ signal      a put: nobody sees it before the signal (R7)
//! ```
//!
//! What must stay true: whoever copied verifies the seal before anybody believes the bytes, because the
//! owner has not seen them; a pin or a put is given back only when no work of the GPU uses its range any
//! more. No type of a GPU is known here: offsets, lengths, a descriptor.

use crate::error::TransferError;
use crate::local::in_memory;
use crate::segments::Segments;
use crate::shared::{PinnedByOwner, Shared};
use crate::stream::answer;
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Extent, Incarnation, PutToken, Seal, SegmentId};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, WriteGuard};
use mooncrate_wire::message::{self, DataReply, DataRequest};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{CallError, DataError, DecodeError};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a put that was given up may take to be told; its end must not hold its owner up.
const ABANDON_TIME: Duration = Duration::from_millis(500);

/// Memory of a GPU that the owner of a segment lends.
#[derive(Debug)]
pub struct LentMemory {
    /// Which segment lies in it.
    pub segment: SegmentId,
    /// Which mount of it. Another one may lie in the same memory or in other: it is lent anew.
    pub incarnation: Incarnation,
    /// Bytes of payload: every extent lies in the first so many bytes.
    pub bytes: u64,
    /// What the driver imports (a shareable handle of CUDA's virtual memory management).
    pub memory: OwnedFd,
    /// Bytes of the allocation behind it; importing wants exactly this.
    pub memory_bytes: u64,
    /// The UUID of the GPU: only a process that sees this one can map it.
    pub device: [u8; 16],
}

/// The way to an owner that lends memory of a GPU.
#[derive(Clone, Debug)]
pub struct DeviceDoor {
    owner: Owner,
}

#[derive(Clone, Debug)]
enum Owner {
    /// This process.
    Here(Arc<Segments>),
    /// Another one of this host.
    Near(Arc<Shared>),
}

impl DeviceDoor {
    pub(crate) fn here(segments: &Arc<Segments>) -> Self {
        Self { owner: Owner::Here(Arc::clone(segments)) }
    }

    pub(crate) fn near(shared: Arc<Shared>) -> Self {
        Self { owner: Owner::Near(shared) }
    }

    /// The memory of a segment. `Unsupported`: its owner does not lend it to this process; the bytes are
    /// reached through a [`crate::Transport`] all the same.
    pub fn lend(
        &self,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<LentMemory, TransferError> {
        match &self.owner {
            Owner::Here(segments) => lend_here(segments, segment),
            Owner::Near(shared) => lend_near(shared, segment, deadline),
        }
    }

    /// Keeps a value in its place until the pin is dropped. The owner has looked: the value was there, in
    /// this life, and the owner may serve.
    pub fn pin(&self, locator: &Locator, deadline: Deadline) -> Result<DevicePin, TransferError> {
        in_vram(locator)?;
        let pin = match &self.owner {
            Owner::Here(segments) => Held::Here(segments.find(locator)?.pin(boottime(), locator)?),
            Owner::Near(shared) => Held::Near(shared.pin_at_owner(locator, deadline)?),
        };
        Ok(DevicePin { locator: *locator, _pin: pin })
    }

    /// Opens a put whose value and slice table this process's GPU stores into the extent.
    pub fn begin(
        &self,
        put: &message::BeginWrite<'_>,
        deadline: Deadline,
    ) -> Result<DevicePut<'_>, TransferError> {
        in_vram(&put.locator)?;
        let (locator, token) = (put.locator, put.token);
        let open = match &self.owner {
            Owner::Here(segments) => {
                let segment = in_memory(segments.find(&locator)?)?;
                let hash = LabelHash::of(put.label);
                let message::BeginWrite { object, epoch, len, label, .. } = *put;
                let begin = BeginWrite { locator, token, object, epoch, len, label, hash };
                Open::Here(segment.begin(boottime(), &begin)?)
            }
            Owner::Near(shared) => {
                let mut link = shared.stream().link(deadline)?;
                let begin = DataRequest::Begin(message::Begin { put: *put });
                link.send_data(&begin, &[], deadline)?;
                answer(&mut link, deadline)??;
                Open::Near(link)
            }
        };
        Ok(DevicePut { locator, token, open: Some(open) })
    }
}

/// A value that its owner keeps in place. Drop it when the copy has ended, not when it was queued.
#[derive(Debug)]
#[must_use = "the range may be reused when the pin is dropped"]
pub struct DevicePin {
    locator: Locator,
    _pin: Held,
}

#[derive(Debug)]
enum Held {
    Here(#[expect(dead_code, reason = "held for its drop")] PinGuard),
    Near(#[expect(dead_code, reason = "held for its drop")] PinnedByOwner),
}

impl DevicePin {
    /// What is pinned.
    pub fn locator(&self) -> &Locator {
        &self.locator
    }

    /// Where in the lent memory it lies: the value, and behind it the table of its slices
    /// (`mooncrate_core::seal::table`).
    pub fn extent(&self) -> Extent {
        self.locator.extent
    }
}

/// A put whose range is ours. Dropping it gives the range up, so drop it, as well as signal it, only when
/// no work of the GPU stores there any more.
#[derive(Debug)]
pub struct DevicePut<'a> {
    locator: Locator,
    token: PutToken,
    /// `None`: signalled.
    open: Option<Open<'a>>,
}

#[derive(Debug)]
enum Open<'a> {
    Here(WriteGuard),
    Near(PooledLink<'a>),
}

impl DevicePut<'_> {
    /// Where in the lent memory the value goes, and behind it the table of its slices; the bytes between
    /// the two are zero (`mooncrate_core::seal::table`).
    pub fn extent(&self) -> Extent {
        self.locator.extent
    }

    /// Publishes, after the last byte has arrived in the far memory. Every reader verifies the seal.
    pub fn signal(mut self, seal: Seal, deadline: Deadline) -> Result<(), TransferError> {
        let (locator, token) = (self.locator, self.token);
        match self.open.take() {
            Some(Open::Here(guard)) => Ok(guard
                .publish_direct(boottime(), token, seal)
                .map_err(|refused| refused.error)?),
            Some(Open::Near(mut link)) => {
                let signal = message::Signal { locator, token, seal };
                link.send_data(&DataRequest::Signal(signal), &[], deadline)?;
                Ok(answer(&mut link, deadline)??)
            }
            None => Err(DataError::BadToken.into()),
        }
    }
}

impl Drop for DevicePut<'_> {
    /// The owner is told, so that the link can go on.
    fn drop(&mut self) {
        if let Some(Open::Near(link)) = &mut self.open
            && link.at_rest()
        {
            let abandon = message::Abandon { locator: self.locator, token: self.token };
            let deadline = boottime().deadline_in(ABANDON_TIME);
            // A failure closes the link, which tells the owner the same.
            let _ = link.call_data(&DataRequest::Abandon(abandon), &[], deadline);
        }
    }
}

/// Whether a replica lies in memory of a GPU.
fn in_vram(locator: &Locator) -> Result<(), TransferError> {
    match locator.segment.medium() {
        Medium::Vram => Ok(()),
        Medium::Dram | Medium::Ssd => Err(DataError::Unsupported.into()),
    }
}

fn lend_here(segments: &Segments, segment: SegmentId) -> Result<LentMemory, TransferError> {
    let found = segments.get(segment).ok_or(DataError::UnknownSegment)?;
    let share = found.far().ok_or(DataError::Unsupported)?.share().map_err(TransferError::Map)?;
    let share = share.ok_or(DataError::Unsupported)?;
    let identity = found.spec().identity();
    Ok(LentMemory {
        segment,
        incarnation: identity.incarnation,
        bytes: identity.bytes,
        memory: share.memory,
        memory_bytes: share.memory_bytes,
        device: share.device,
    })
}

fn lend_near(
    shared: &Shared,
    segment: SegmentId,
    deadline: Deadline,
) -> Result<LentMemory, TransferError> {
    let mut link = shared.stream().link(deadline)?;
    let request = DataRequest::Lend(message::Lend { segment });
    let lent = match link.call_data(&request, &[], deadline)? {
        DataReply::Lend(lent) => lent?,
        other => {
            return Err(CallError::from(DecodeError::Unexpected { kind: other.kind() }).into());
        }
    };
    let memory = link.take_fds().pop().ok_or_else(|| {
        TransferError::Map(std::io::Error::other("the owner sent no descriptor of its GPU memory"))
    })?;
    Ok(LentMemory {
        segment,
        incarnation: lent.incarnation,
        bytes: lent.bytes,
        memory,
        memory_bytes: lent.memory_bytes,
        device: lent.device,
    })
}
