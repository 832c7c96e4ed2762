//! The heaps of all ranks, as one of them sees them.

use crate::error::{GroupError, HeapError};
use crate::group::{Group, Shared};
use crate::rank::{RANKS_MAX, Rank, World};
use mooncrate_gpu::{
    AddressRange, DeviceBuffer, Gpu, GpuError, IPC_HANDLE_BYTES, IpcBuffer, IpcHandle, Peer,
    SharedMemory, Span, Stream,
};
use mooncrate_mem::{Access, Pages, Region};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Device memory is shared by pages of this length.
const GPU_PAGE: u64 = 2 << 20;

/// Where one process has mapped the heap of each rank. Kernels take it by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bases(pub [u64; RANKS_MAX]);

impl Bases {
    /// The address at which `to` has what `me` has at `address`.
    pub fn translate(&self, address: u64, me: Rank, to: Rank) -> u64 {
        self.0[to.index()].wrapping_add(address.wrapping_sub(self.0[me.index()]))
    }
}

/// One heap per rank, all of the same length, all zero at first.
#[derive(Debug)]
pub struct Heap {
    rank: Rank,
    world: World,
    bytes: u64,
    /// By rank. Ranks of one process share them.
    places: Arc<Vec<Place>>,
    /// How this rank's GPU reaches that of each other one; the same one where it does not matter.
    peers: Vec<Peer>,
}

#[derive(Debug)]
enum Place {
    Host(Region),
    Mapped(AddressRange),
    Own(DeviceBuffer),
    Ipc(IpcBuffer),
}

impl Heap {
    /// A heap in host memory for each process of the group.
    pub fn host(group: &mut Group, bytes: u64, within: Duration) -> Result<Self, HeapError> {
        let own = host_memory(bytes);
        let said = own.as_ref().map(|_| bytes.to_le_bytes()).map_err(ToString::to_string);
        let fd = own.as_ref().ok().and_then(Region::fd);
        let heaps = exchange(group, "share heaps", &said, fd, within)?;
        let own = own?;
        check_even(group, &heaps, bytes)?;
        let len = host_len(bytes)?;
        let places = places(group, Place::Host(own), |rank| {
            let fd = heaps[rank.index()].fd.as_ref().ok_or_else(no_descriptor)?;
            Region::map(fd.as_fd(), len, Access::ReadWrite)
                .map(Place::Host)
                .map_err(|error| HeapError::Memory { bytes, error })
        });
        Self::agreed(group, bytes, places, within)
    }

    /// A heap in the memory of each process's GPU; several processes may use the same one. `bytes` is
    /// rounded up to whole pages of 2 MiB. Memory is passed by descriptor; where a rank cannot do that, all
    /// of them use CUDA IPC.
    pub fn cuda(
        group: &mut Group,
        gpu: &Gpu,
        bytes: u64,
        within: Duration,
    ) -> Result<Self, HeapError> {
        let bytes = whole_pages(bytes)?;
        let peers = peers(group, gpu, within)?;
        let made = match Self::by_descriptor(group, gpu, bytes, within) {
            // Another rank's refusal is everybody's, so all come here together.
            Err(first @ HeapError::Peer { .. }) => {
                Self::by_ipc(group, gpu, bytes, within).map_err(|second| match second {
                    HeapError::Peer { rank, text } => HeapError::Peer {
                        rank,
                        text: format!("{text}; and by descriptor: {first}"),
                    },
                    other => other,
                })
            }
            made => made,
        };
        Ok(Self { peers, ..made? })
    }

    fn by_descriptor(
        group: &mut Group,
        gpu: &Gpu,
        bytes: u64,
        within: Duration,
    ) -> Result<Self, HeapError> {
        let own = mapped(gpu, bytes);
        let fd = own.as_ref().ok().map(|(memory, _)| memory.export()).transpose();
        let said = match (&own, &fd) {
            (Ok(_), Ok(_)) => Ok(bytes.to_le_bytes()),
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        };
        let sent = fd.as_ref().ok().and_then(Option::as_ref).map(AsFd::as_fd);
        let heaps = exchange(group, "share heaps by descriptor", &said, sent, within)?;
        check_even(group, &heaps, bytes)?;
        let (_, range) = own?;
        let places = places(group, Place::Mapped(range), |rank| {
            let fd = heaps[rank.index()].fd.as_ref().ok_or_else(no_descriptor)?;
            let memory = SharedMemory::import(gpu, fd.as_fd(), bytes)?;
            Ok(Place::Mapped(AddressRange::of(&memory)?))
        });
        Self::agreed(group, bytes, places, within)
    }

    fn by_ipc(
        group: &mut Group,
        gpu: &Gpu,
        bytes: u64,
        within: Duration,
    ) -> Result<Self, HeapError> {
        let own = zeroed(gpu, bytes);
        let said = own.as_ref().map_err(ToString::to_string).and_then(|own| {
            let handle = own.ipc_handle().map_err(|error| error.to_string())?;
            Ok([bytes.to_le_bytes().as_slice(), &handle.to_bytes()].concat())
        });
        let heaps = exchange(group, "share heaps by CUDA IPC", &said, None, within)?;
        check_even(group, &heaps, bytes)?;
        let places = places(group, Place::Own(own?), |rank| {
            let handle = heaps[rank.index()].body.get(8..);
            let handle: Option<[u8; IPC_HANDLE_BYTES]> =
                handle.and_then(|bytes| bytes.try_into().ok());
            let handle = IpcHandle::from_bytes(handle.ok_or_else(no_descriptor)?);
            // SAFETY: the rank made the handle of an allocation of as many bytes, as `check_even` saw, and
            // frees it after `close`, for which it waits for us.
            Ok(Place::Ipc(unsafe { IpcBuffer::open(gpu, handle, bytes) }?))
        });
        Self::agreed(group, bytes, places, within)
    }

    /// All ranks in this process, in host memory: one heap for the thread of each rank.
    pub fn host_ranks(world: World, bytes: u64) -> Result<Vec<Self>, HeapError> {
        let places = world.ranks().map(|_| host_memory(bytes).map(Place::Host));
        Ok(Self::all_ranks(world, bytes, places.collect::<Result<_, _>>()?))
    }

    /// All ranks in this process, on one GPU: one heap for the stream of each rank. A test arrangement: the
    /// GPU does not promise to run the ranks' kernels at the same time.
    pub fn cuda_ranks(gpu: &Gpu, world: World, bytes: u64) -> Result<Vec<Self>, HeapError> {
        let bytes = whole_pages(bytes)?;
        let places = world.ranks().map(|_| zeroed(gpu, bytes).map(Place::Own));
        Ok(Self::all_ranks(world, bytes, places.collect::<Result<_, _>>()?))
    }

    fn all_ranks(world: World, bytes: u64, places: Vec<Place>) -> Vec<Self> {
        let places = Arc::new(places);
        let one =
            |rank| Self { rank, world, bytes, places: Arc::clone(&places), peers: alike(world) };
        world.ranks().map(one).collect()
    }

    /// The heap, once every rank has mapped every other one.
    fn agreed(
        group: &mut Group,
        bytes: u64,
        places: Result<Vec<Place>, HeapError>,
        within: Duration,
    ) -> Result<Self, HeapError> {
        let said = places.as_ref().map(|_| [0; 8]).map_err(ToString::to_string);
        exchange(group, "map heaps", &said, None, within)?;
        let (rank, world) = (group.rank(), group.world());
        Ok(Self { rank, world, bytes, places: Arc::new(places?), peers: alike(world) })
    }

    /// How the GPU of this rank reaches that of another one.
    pub fn peer(&self, rank: Rank) -> Peer {
        self.peers.get(rank.index()).copied().unwrap_or(Peer::Hidden)
    }

    /// How many other ranks are on the GPU of this one, each in a process of its own.
    pub fn beside(&self) -> usize {
        let alone = self.places.iter().all(|place| matches!(place, Place::Host(_) | Place::Own(_)));
        let same = self.peers.iter().filter(|peer| **peer == Peer::Same).count();
        if alone { 0 } else { same.saturating_sub(1) }
    }

    /// Whose view this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many heaps there are.
    pub fn world(&self) -> World {
        self.world
    }

    /// Bytes of each heap.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How other ranks reach this one's memory, for people.
    pub fn shared_by(&self) -> &'static str {
        match self.places.iter().max_by_key(|place| matches!(place, Place::Ipc(_))) {
            Some(Place::Host(_)) => "host memory",
            Some(Place::Mapped(_)) => "device memory, by descriptor",
            Some(Place::Ipc(_)) => "device memory, by CUDA IPC",
            _ => "device memory of one process",
        }
    }

    /// Where this process has mapped each heap; 0 for ranks that do not exist.
    pub fn bases(&self) -> Bases {
        let mut bases = [0; RANKS_MAX];
        for (base, place) in bases.iter_mut().zip(self.places.iter()) {
            *base = match place {
                Place::Host(region) => region.address(),
                Place::Mapped(range) => range.address(),
                Place::Own(buffer) => buffer.span().address(),
                Place::Ipc(buffer) => buffer.span().address(),
            };
        }
        Bases(bases)
    }

    /// The heap of a rank as host memory; `None`: it is on a GPU, or there is no such rank.
    pub fn region(&self, rank: Rank) -> Option<&Region> {
        match self.places.get(rank.index())? {
            Place::Host(region) => Some(region),
            _ => None,
        }
    }

    /// The heap of a rank as device memory; `None`: it is on the host, or there is no such rank.
    pub fn span(&self, rank: Rank) -> Option<Span<'_>> {
        match self.places.get(rank.index())? {
            Place::Host(_) => None,
            Place::Mapped(range) => {
                Some(range.span(0..self.bytes).expect("the whole heap is mapped"))
            }
            Place::Own(buffer) => Some(buffer.span()),
            Place::Ipc(buffer) => Some(buffer.span()),
        }
    }

    /// Gives the heap back: first what this process has mapped of others, and, once all have done so, its
    /// own. Dropping a heap does the same without waiting for the others, which CUDA IPC does not allow
    /// while they use it.
    pub fn close(self, group: &mut Group, within: Duration) -> Result<(), GroupError> {
        // Only ranks of one process share their places, and those have no group.
        let mut places = Arc::into_inner(self.places).unwrap_or_default();
        let own = (self.rank.index() < places.len()).then(|| places.remove(self.rank.index()));
        drop(places);
        let closed = group.barrier("close heaps", within);
        drop(own);
        closed
    }
}

fn alike(world: World) -> Vec<Peer> {
    vec![Peer::Same; world.len()]
}

/// Whether this rank's GPU reaches those of all others; if not, that is everybody's error.
fn peers(group: &mut Group, gpu: &Gpu, within: Duration) -> Result<Vec<Peer>, HeapError> {
    let uuids = exchange(group, "tell which GPU", &Ok(gpu.uuid()), None, within)?;
    let peers = uuids.iter().map(|uuid| {
        let uuid = uuid.body.first_chunk().copied().unwrap_or_default();
        gpu.peer(uuid)
    });
    let peers: Result<Vec<Peer>, GpuError> = peers.collect();
    let said = match &peers {
        Err(error) => Err(error.to_string()),
        Ok(peers) => match group.world().ranks().zip(peers).find_map(|(rank, peer)| match peer {
            Peer::Unreachable => Some(format!(
                "GPU {} cannot reach the memory of the GPU of {rank}; use GPUs that are joined by NVLink, or \
                 that have peer access",
                gpu.ordinal()
            )),
            Peer::Hidden => Some(format!(
                "this process does not see the GPU of {rank}; name it in CUDA_VISIBLE_DEVICES"
            )),
            _ => None,
        }) {
            None => Ok([0; 8]),
            Some(text) => Err(text),
        },
    };
    exchange(group, "reach GPUs", &said, None, within)?;
    Ok(peers?)
}

/// What all ranks said, unless one of them could not do its part: then that is everybody's error.
fn exchange(
    group: &mut Group,
    doing: &'static str,
    said: &Result<impl AsRef<[u8]>, String>,
    fd: Option<BorrowedFd<'_>>,
    within: Duration,
) -> Result<Vec<Shared>, HeapError> {
    let body = match said {
        Ok(bytes) => [&[0], bytes.as_ref()].concat(),
        Err(text) => [&[1], text.as_bytes()].concat(),
    };
    let mut heard = group.gather(doing, &body, fd.filter(|_| said.is_ok()), within)?;
    for (rank, shared) in group.world().ranks().zip(&mut heard) {
        if shared.body.first() != Some(&0) {
            let text = shared.body.get(1..).unwrap_or_default();
            return Err(HeapError::Peer { rank, text: String::from_utf8_lossy(text).into_owned() });
        }
        shared.body.remove(0);
    }
    Ok(heard)
}

fn check_even(group: &Group, heaps: &[Shared], ours: u64) -> Result<(), HeapError> {
    for (rank, heap) in group.world().ranks().zip(heaps) {
        let theirs = heap.body.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if theirs != ours {
            return Err(HeapError::Uneven { rank, theirs, ours });
        }
    }
    Ok(())
}

/// The heaps of all ranks, by rank. Each process maps them in another order, its own first, so that a
/// mistake with addresses shows up also where the system gives every process the same ones.
fn places(
    group: &Group,
    own: Place,
    map: impl Fn(Rank) -> Result<Place, HeapError>,
) -> Result<Vec<Place>, HeapError> {
    let (me, world) = (group.rank().index(), group.world());
    let mut others = Vec::with_capacity(world.len());
    for step in 1..world.len() {
        let rank = world.rank((me + step) % world.len()).expect("it is below the world");
        others.push(map(rank)?);
    }
    // They stand from the one after `me` on; the heap of rank 0 is as far from the end as `me` is large.
    others.rotate_right(me);
    others.insert(me, own);
    Ok(others)
}

fn host_len(bytes: u64) -> Result<usize, HeapError> {
    usize::try_from(bytes)
        .map_err(|error| HeapError::Memory { bytes, error: io::Error::other(error) })
}

fn host_memory(bytes: u64) -> Result<Region, HeapError> {
    Region::memfd("mooncrate-heap", host_len(bytes)?, Pages::Transparent)
        .map_err(|error| HeapError::Memory { bytes, error })
}

fn whole_pages(bytes: u64) -> Result<u64, HeapError> {
    let rounded = bytes.checked_next_multiple_of(GPU_PAGE).filter(|bytes| *bytes > 0);
    rounded.ok_or_else(|| GpuError::Invalid(format!("a heap of {bytes} bytes")).into())
}

fn mapped(gpu: &Gpu, bytes: u64) -> Result<(Arc<SharedMemory>, AddressRange), GpuError> {
    let memory = SharedMemory::create(gpu, bytes)?;
    let range = AddressRange::of(&memory)?;
    wipe(range.span(0..bytes)?)?;
    Ok((memory, range))
}

fn zeroed(gpu: &Gpu, bytes: u64) -> Result<DeviceBuffer, GpuError> {
    let buffer = DeviceBuffer::new(gpu, bytes)?;
    wipe(buffer.span())?;
    Ok(buffer)
}

fn wipe(span: Span<'_>) -> Result<(), GpuError> {
    let stream = Stream::new(span.gpu())?;
    span.fill(0, &stream)?;
    stream.synchronize()
}

fn no_descriptor() -> HeapError {
    HeapError::Gpu(GpuError::Invalid("a rank shared no memory".into()))
}
