//! Device memory that other processes can map, and address ranges that pages are mapped into.
//!
//! Physical memory ([`SharedMemory`]) and addresses ([`AddressRange`]) are two things here. A process
//! makes memory and exports it as a file descriptor; another one imports it and maps it into a range
//! of its own. The driver maps an allocation as a whole, so memory that shall be remapped page by page
//! is made as one `SharedMemory` per page; the same one may be mapped at several places.
//!
//! ```text
//! SharedMemory  A  B  C      AddressRange  | C | A |   | B |     contiguous addresses, any order
//! ```
//!
//! A range holds what is mapped into it, so physical memory is released after the last mapping.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::span::Span;
use cudarc::driver::sys::{self, CUmemGenericAllocationHandle};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Physical device memory without an address.
#[derive(Debug)]
pub struct SharedMemory {
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
    /// Held so that the context outlives the memory.
    gpu: Gpu,
}

impl SharedMemory {
    /// What sizes and places are multiples of: 2 MiB on the GPUs we know.
    pub fn granularity(gpu: &Gpu) -> Result<u64, GpuError> {
        let _bound = gpu.bind()?;
        let (mut bytes, wish) = (0, properties(gpu));
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: `wish` is a whole description, and `bytes` is a place for one number.
        let asked =
            unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const wish, least) };
        check("ask for the granularity of shared memory", asked)?;
        Ok(bytes as u64)
    }

    /// Makes physical memory of at least `bytes` bytes, rounded up to the granularity.
    pub fn create(gpu: &Gpu, bytes: u64) -> Result<Arc<Self>, GpuError> {
        let _bound = gpu.bind()?;
        let page = Self::granularity(gpu)?;
        let rounded = bytes.checked_next_multiple_of(page).filter(|bytes| *bytes > 0);
        let bytes =
            rounded.ok_or_else(|| GpuError::Invalid(format!("shared memory of {bytes} bytes")))?;
        let (mut raw, wish) = (0, properties(gpu));
        // SAFETY: `wish` is a whole description, and `raw` is a place for one handle.
        let made = unsafe { sys::cuMemCreate(&raw mut raw, bytes as usize, &raw const wish, 0) };
        check("make shared device memory", made)?;
        Ok(Arc::new(Self { raw, bytes, gpu: gpu.clone() }))
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor of the memory, to be sent to another process over a Unix socket. The memory lives
    /// until every process has let go of it.
    pub fn export(&self) -> Result<OwnedFd, GpuError> {
        let _bound = self.gpu.bind()?;
        let mut fd: c_int = -1;
        // SAFETY: the handle is ours, and a descriptor is one C integer.
        let exported =
            unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.raw, FD, 0) };
        check("export shared device memory", exported)?;
        // SAFETY: the driver opened this descriptor for us, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Memory that another process exported. A descriptor does not tell its length: `bytes` is what the
    /// exporter's [`bytes`](Self::bytes) said, and mapping fails if it was not so.
    pub fn import(gpu: &Gpu, fd: BorrowedFd<'_>, bytes: u64) -> Result<Arc<Self>, GpuError> {
        let _bound = gpu.bind()?;
        let page = Self::granularity(gpu)?;
        if bytes == 0 || !bytes.is_multiple_of(page) {
            let text = format!("imported memory of {bytes} bytes; it comes in multiples of {page}");
            return Err(GpuError::Invalid(text));
        }
        // The driver takes the number of the descriptor in the place of a pointer, so that number 0 would
        // be a null pointer: a duplicate has a number of at least 3.
        let own = fd.try_clone_to_owned().map_err(|error| {
            GpuError::Invalid(format!(
                "the descriptor of shared memory cannot be duplicated: {error}"
            ))
        })?;
        let number = own.as_raw_fd().cast_unsigned() as usize as *mut c_void;
        let mut raw = 0;
        // SAFETY: the descriptor is open during the call, and `raw` is a place for one handle.
        let imported = unsafe { sys::cuMemImportFromShareableHandle(&raw mut raw, number, FD) };
        check("import shared device memory", imported)?;
        Ok(Arc::new(Self { raw, bytes, gpu: gpu.clone() }))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Ok(_bound) = self.gpu.bind() {
            // SAFETY: nobody else has the handle, and no range of ours maps it any more.
            let _ = unsafe { sys::cuMemRelease(self.raw) };
        }
    }
}

/// A run of device addresses, into which shared memory is mapped at chosen places.
#[derive(Debug)]
pub struct AddressRange {
    base: u64,
    bytes: u64,
    /// What is mapped, by its offset: each piece is one whole `SharedMemory`.
    mapped: BTreeMap<u64, Arc<SharedMemory>>,
    /// The sum of their lengths: when it is that of the range, every byte has memory.
    mapped_bytes: u64,
    page: u64,
    /// Held so that the context outlives the range.
    gpu: Gpu,
}

impl AddressRange {
    /// Reserves addresses, without memory behind them; `bytes` is rounded up to the granularity.
    pub fn reserve(gpu: &Gpu, bytes: u64) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let page = SharedMemory::granularity(gpu)?;
        let rounded = bytes.checked_next_multiple_of(page).filter(|bytes| *bytes > 0);
        let bytes = rounded
            .ok_or_else(|| GpuError::Invalid(format!("an address range of {bytes} bytes")))?;
        let mut base = 0;
        // SAFETY: `base` is a place for one address, and the driver chooses it.
        let reserved =
            unsafe { sys::cuMemAddressReserve(&raw mut base, bytes as usize, page as usize, 0, 0) };
        check("reserve device addresses", reserved)?;
        let mapped = BTreeMap::new();
        Ok(Self { base, bytes, mapped, mapped_bytes: 0, page, gpu: gpu.clone() })
    }

    /// Reserves a range that fits `memory` and maps it.
    pub fn of(memory: &Arc<SharedMemory>) -> Result<Self, GpuError> {
        let mut range = Self::reserve(&memory.gpu, memory.bytes)?;
        range.map(0, memory)?;
        Ok(range)
    }

    /// The first address. It stays the same whatever is mapped.
    pub fn address(&self) -> u64 {
        self.base
    }

    /// How long the range is, mapped or not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps the whole of `memory` at `offset`, for reading and writing by this GPU.
    pub fn map(&mut self, offset: u64, memory: &Arc<SharedMemory>) -> Result<(), GpuError> {
        let end = offset.saturating_add(memory.bytes);
        if end > self.bytes {
            let (len, size) = (memory.bytes, self.bytes);
            return Err(GpuError::OutOfBounds { what: "an address range", offset, len, size });
        }
        if !offset.is_multiple_of(self.page) {
            let text = format!("offset {offset} is no multiple of {} bytes", self.page);
            return Err(GpuError::Invalid(text));
        }
        if self.covered(offset..end).next().is_some() {
            let text = format!("something is mapped between {offset} and {end}; unmap it first");
            return Err(GpuError::Invalid(text));
        }
        let _bound = self.gpu.bind()?;
        let (at, len) = (self.base + offset, memory.bytes as usize);
        // SAFETY: the addresses are ours and free; offset 0 and the whole length are what is allowed.
        let mapped = unsafe { sys::cuMemMap(at, len, 0, memory.raw, 0) };
        check("map shared device memory", mapped)?;
        let access = access(&self.gpu);
        // SAFETY: the range was just mapped, and there is one description.
        let allowed = unsafe { sys::cuMemSetAccess(at, len, &raw const access, 1) };
        if let Err(error) = check("allow access to shared device memory", allowed) {
            // SAFETY: it was mapped above, exactly so, and nothing has used it.
            let _ = unsafe { sys::cuMemUnmap(at, len) };
            return Err(error);
        }
        self.mapped.insert(offset, Arc::clone(memory));
        self.mapped_bytes += memory.bytes;
        Ok(())
    }

    /// Takes back the mapping at `offset`, after all work of the GPU has ended. Gives the memory.
    pub fn unmap(&mut self, offset: u64) -> Result<Arc<SharedMemory>, GpuError> {
        let Some(memory) = self.mapped.get(&offset) else {
            return Err(GpuError::Invalid(format!("no mapping begins at offset {offset}")));
        };
        let _bound = self.gpu.bind()?;
        self.gpu.synchronize()?;
        let (at, len) = (self.base + offset, memory.bytes as usize);
        // SAFETY: it was mapped by `map`, exactly so, and no work that used it is left. A span borrows
        // the range, so none is left either.
        check("unmap shared device memory", unsafe { sys::cuMemUnmap(at, len) })?;
        self.mapped_bytes -= memory.bytes;
        Ok(self.mapped.remove(&offset).expect("it was found above"))
    }

    /// A part of the range that has memory behind every byte.
    pub fn span(&self, part: Range<u64>) -> Result<Span<'_>, GpuError> {
        if part.start > part.end || part.end > self.bytes {
            let (offset, size) = (part.start, self.bytes);
            let len = part.end.saturating_sub(offset);
            return Err(GpuError::OutOfBounds { what: "an address range", offset, len, size });
        }
        let span = Span::new(&self.gpu, self.base + part.start, part.end - part.start);
        if self.mapped_bytes == self.bytes {
            // Mappings do not overlap, so there is no gap. Arenas of thousands of pieces ask at each copy.
            return Ok(span);
        }
        let mut reached = part.start;
        for (offset, bytes) in self.covered(part.clone()) {
            if offset > reached {
                break;
            }
            reached = offset + bytes;
        }
        if reached < part.end {
            return Err(GpuError::Invalid(format!("nothing is mapped at offset {reached}")));
        }
        Ok(span)
    }

    /// The mappings that have a byte in `part`, in order: offset and length.
    fn covered(&self, part: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let before = self.mapped.range(..part.start).next_back();
        let inside = self.mapped.range(part.start..part.end.max(part.start));
        before
            .into_iter()
            .chain(inside)
            .map(|(offset, memory)| (*offset, memory.bytes))
            .filter(move |(offset, bytes)| offset + bytes > part.start)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // Work that was queued with these addresses must have ended. If the wait fails, the context is
        // broken and gives everything back when it is released.
        let Ok(_bound) = self.gpu.bind() else { return };
        if self.gpu.synchronize().is_err() {
            return;
        }
        for (offset, memory) in &self.mapped {
            // SAFETY: it was mapped by `map`, exactly so, and no work that used it is left.
            let _ = unsafe { sys::cuMemUnmap(self.base + offset, memory.bytes as usize) };
        }
        // SAFETY: the addresses came from `reserve`, and nothing is mapped there.
        let _ = unsafe { sys::cuMemAddressFree(self.base, self.bytes as usize) };
    }
}

fn place(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device(),
    }
}

fn access(gpu: &Gpu) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: place(gpu),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FD,
        location: place(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
