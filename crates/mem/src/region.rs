//! A mapped run of bytes: anonymous, or a memfd that other processes can map too.
//!
//! What must stay true: the mapping lives as long as the `Region`; every access goes through
//! [`Region::check`], which hands out a pointer and never a slice, because other processes may
//! write to shared bytes; a shared file can neither shrink nor grow (sealed), so no access can
//! fault. Pages that nobody touches cost nothing.

use crate::atomic::{AtomicU64, Ordering};
use crate::crc::Crc;
use crate::pkey::Key;
use mooncrate_core::Extent;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Bytes of a huge page on the machines we know; others fall back to small pages.
const HUGE_BYTES: usize = 2 << 20;

/// Which pages a region would like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Small ones: for tables that are touched here and there.
    Small,
    /// Whatever the kernel joins by itself: no set-up needed.
    Transparent,
    /// Out of the operator's pool of huge pages if it has enough, else as `Transparent`.
    Huge,
}

/// Which pages a region got, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Pages of 4 KiB.
    Small,
    /// The kernel joins small pages to huge ones where it can.
    TransparentHuge,
    /// Huge pages, set aside when the region was made.
    HugeTlb,
}

/// What a mapping of somebody else's memory may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// An extent reaches outside of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{extent} reaches outside of a region of {len} bytes")]
pub struct OutOfBounds {
    /// What was asked for.
    pub extent: Extent,
    /// How long the region is.
    pub len: u64,
}

/// A mapped run of bytes.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    /// What was asked for; accesses are checked against it.
    len: usize,
    /// What is mapped: `len` rounded up to whole pages.
    mapped: usize,
    backing: Backing,
    access: Access,
    /// Held so that the memory can be handed to other processes; `None` for anonymous memory.
    fd: Option<OwnedFd>,
}

// SAFETY: the region owns its mapping, which is not bound to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives out raw pointers only; whoever follows one proves that access himself.
unsafe impl Sync for Region {}

impl Region {
    /// Memory of this process alone.
    pub fn anonymous(len: usize, pages: Pages) -> io::Result<Self> {
        if pages == Pages::Huge
            && let Ok(mut region) = Self::anonymous_with(len, HUGE_BYTES, MapFlags::HUGETLB)
        {
            region.backing = Backing::HugeTlb;
            return Ok(region);
        }
        let mut region = Self::anonymous_with(len, page_bytes(), MapFlags::NORESERVE)?;
        region.wish(pages, "/sys/kernel/mm/transparent_hugepage/enabled");
        Ok(region)
    }

    /// Memory that other processes can map. It can neither shrink nor grow.
    pub fn memfd(name: &str, len: usize, pages: Pages) -> io::Result<Self> {
        if pages == Pages::Huge
            && let Ok(mut region) = Self::memfd_with(name, len, HUGE_BYTES, MemfdFlags::HUGETLB)
        {
            region.backing = Backing::HugeTlb;
            return Ok(region);
        }
        let mut region = Self::memfd_with(name, len, page_bytes(), MemfdFlags::empty())?;
        region.wish(pages, "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        Ok(region)
    }

    /// Maps a memfd that another process made. Refuses one that is too short, or that its maker
    /// could still shrink: then any access might fault.
    pub fn map(fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Self> {
        let size = rustix::fs::fstat(fd)?.st_size;
        let mapped = usize::try_from(size).map_err(io::Error::other)?;
        if mapped < len || len == 0 {
            return Err(invalid(format!("the memfd has {mapped} bytes, {len} were promised")));
        }
        if !rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("the memfd is not sealed against shrinking".into()));
        }
        let fd = fd.try_clone_to_owned()?;
        let prot = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let base = map_shared(&fd, mapped, prot)?;
        Ok(Self { base, len, mapped, backing: Backing::Small, access, fd: Some(fd) })
    }

    /// Bytes that may be used.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether it has no bytes; it always has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which pages it got.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// What this process may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The memfd, to be handed to other processes.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The same memory, for processes that may only read it: no writable mapping can be made of this
    /// descriptor.
    pub fn read_only_fd(&self) -> io::Result<Option<OwnedFd>> {
        let Some(fd) = &self.fd else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Some(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The first byte of an extent that lies inside.
    pub fn check(&self, extent: Extent) -> Result<NonNull<u8>, OutOfBounds> {
        if !extent.fits(self.len()) {
            return Err(OutOfBounds { extent, len: self.len() });
        }
        // SAFETY: the offset is at most `len`, which is at most the mapping.
        Ok(unsafe { self.base.add(extent.offset() as usize) })
    }

    /// Leaves it to threads that open the key, which may store, and to nobody else.
    pub(crate) fn guard(&self, key: &Key) -> io::Result<()> {
        // SAFETY: the range is our mapping; who follows a pointer into it proves that he may.
        unsafe { key.guard(self.base.as_ptr(), self.mapped) }
    }

    /// Makes the pages of some bytes present for stores; `extent` begins with a page. `false`: kernels before 5.14 do not
    /// know how, and the pages fault one by one.
    pub(crate) fn populate(&self, extent: Extent) -> io::Result<bool> {
        let first = self.check(extent).map_err(io::Error::other)?.as_ptr().cast();
        // SAFETY: the range is our mapping, and its bytes stay what they are.
        let done = unsafe {
            rustix::mm::madvise(first, extent.len() as usize, Advice::LinuxPopulateWrite)
        };
        match done {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::INVAL) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the pages of some bytes from the system, as stores to them would; `extent` begins with a page. What lies
    /// there stays as it is.
    pub(crate) fn touch(&self, extent: Extent) -> io::Result<()> {
        assert_eq!(self.access, Access::ReadWrite, "nobody stores to memory that is only read");
        if !self.populate(extent)? {
            self.touch_each_page(extent);
        }
        Ok(())
    }

    /// The same where the kernel cannot do it in one call. A page that cannot be had ends the process there (SIGBUS).
    fn touch_each_page(&self, extent: Extent) {
        let end = extent.offset() + extent.len();
        for offset in (extent.offset()..end).step_by(page_bytes()) {
            // The compiler must not know that it adds nothing, or it leaves the store out. Relaxed: it orders nothing.
            let nothing = std::hint::black_box(0);
            self.atomic(offset).expect("inside of the extent").fetch_or(nothing, Ordering::Relaxed);
        }
    }

    /// The address of its first byte in this process, for kernels that take bases; nobody else follows it.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Copies bytes in. Others may load or store there meanwhile; then which bytes they get is unspecified.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        assert_eq!(self.access, Access::ReadWrite, "nobody stores to memory that is only read");
        let target = self.check(reaching(offset, bytes.len() as u64))?;
        // SAFETY: `check` proved the target; the source is a slice of the same length, and no part of this
        // mapping, into which Rust never holds a reference.
        let _ = unsafe { Crc::new().copy(target.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out. Others may store there meanwhile; then what arrives is a mixture.
    pub fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.check(reaching(offset, target.len() as u64))?;
        // SAFETY: as in `store`; the copy is opaque, so others may write to the source meanwhile.
        let _ = unsafe { Crc::new().copy(target.as_mut_ptr(), source.as_ptr(), target.len()) };
        Ok(())
    }

    /// Eight bytes as an atomic, which everybody touches as such; the offset must be a multiple of 8.
    pub fn atomic(&self, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        assert_eq!(self.access, Access::ReadWrite, "nobody stores to memory that is only read");
        let extent = reaching(offset, 8);
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds { extent, len: self.len() });
        }
        let place = self.check(extent)?.cast::<AtomicU64>();
        // SAFETY: the place is inside of a mapping that lives as long as `self`, aligned because mappings
        // begin at pages, and any eight bytes are a number. Rust never holds a plain reference to it.
        Ok(unsafe { place.as_ref() })
    }

    /// From now on nobody can get a new writable mapping or write through the fd; mappings that
    /// exist, such as the owner's, stay as they are. Nobody can add further seals either.
    pub fn seal_writes(&self) -> io::Result<()> {
        self.add_seals(SealFlags::FUTURE_WRITE | SealFlags::SEAL)
    }

    /// Nobody can add further seals, so that one client cannot lock out the others.
    pub fn seal_seals(&self) -> io::Result<()> {
        self.add_seals(SealFlags::SEAL)
    }

    fn add_seals(&self, seals: SealFlags) -> io::Result<()> {
        match &self.fd {
            Some(fd) => Ok(rustix::fs::fcntl_add_seals(fd, seals)?),
            None => Ok(()),
        }
    }

    fn anonymous_with(len: usize, page: usize, flags: MapFlags) -> io::Result<Self> {
        let mapped = round_up(len, page)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | flags;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, prot, flags) }?;
        let base = NonNull::new(base.cast()).expect("the kernel does not map address 0");
        let access = Access::ReadWrite;
        Ok(Self { base, len, mapped, backing: Backing::Small, access, fd: None })
    }

    fn memfd_with(name: &str, len: usize, page: usize, flags: MemfdFlags) -> io::Result<Self> {
        let mapped = round_up(len, page)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags;
        let fd = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&fd, mapped as u64)?;
        // A memfd is open to everybody who finds it below /proc; other users shall have what they are
        // handed, and no more.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let base = map_shared(&fd, mapped, ProtFlags::READ | ProtFlags::WRITE)?;
        let access = Access::ReadWrite;
        Ok(Self { base, len, mapped, backing: Backing::Small, access, fd: Some(fd) })
    }

    /// Asks for transparent huge pages, and notes whether the kernel gives them at all.
    fn wish(&mut self, pages: Pages, setting: &'static str) {
        if pages == Pages::Small || self.mapped < HUGE_BYTES {
            return;
        }
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is our mapping, and this advice never changes what the bytes are.
        let taken = unsafe { rustix::mm::madvise(base, self.mapped, Advice::LinuxHugepage) };
        if taken.is_ok() && allows_huge(setting) {
            self.backing = Backing::TransparentHuge;
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is our mapping, and whoever held a pointer borrowed the region.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "our own mapping can be unmapped: {unmapped:?}");
    }
}

fn map_shared(fd: &OwnedFd, len: usize, prot: ProtFlags) -> io::Result<NonNull<u8>> {
    let at = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let base = unsafe { rustix::mm::mmap(at, len, prot, MapFlags::SHARED, fd, 0) }?;
    Ok(NonNull::new(base.cast()).expect("the kernel does not map address 0"))
}

fn round_up(len: usize, page: usize) -> io::Result<usize> {
    if len == 0 {
        return Err(invalid("a region has at least one byte".into()));
    }
    len.checked_next_multiple_of(page).ok_or_else(|| invalid(format!("{len} bytes are too many")))
}

/// Bytes of a page of this memfd: parts of it are mapped by whole ones.
pub(crate) fn file_page_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    /// What the kernel calls a file system of huge pages.
    const HUGETLBFS: u64 = 0x9584_58f6;
    let about = rustix::fs::fstatfs(fd)?;
    #[expect(clippy::cast_sign_loss, reason = "both are positive, whatever their types")]
    let (kind, block) = (about.f_type as u64, about.f_bsize as u64);
    Ok(if kind & 0xffff_ffff == HUGETLBFS { block } else { page_bytes() as u64 })
}

/// So many bytes from there, or all up to the end of numbers, which fits nowhere.
fn reaching(offset: u64, len: u64) -> Extent {
    let extent = Extent::new(offset, len).or(Extent::new(offset, u64::MAX - offset));
    extent.expect("the second one never overflows")
}

fn page_bytes() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(rustix::param::page_size)
}

/// Whether the kernel's setting is anything but "never": `always [madvise] never`.
fn allows_huge(setting: &str) -> bool {
    std::fs::read_to_string(setting)
        .is_ok_and(|text| !text.contains("[never]") && !text.contains("[deny]"))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Ordering;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    #[test]
    fn access_is_checked_against_the_length_asked_for() {
        let region = Region::anonymous(100, Pages::Small).unwrap();
        assert!(region.check(extent(36, 64)).is_ok());
        let error = region.check(extent(37, 64)).unwrap_err();
        assert_eq!(error, OutOfBounds { extent: extent(37, 64), len: 100 });
        assert!(Region::anonymous(0, Pages::Small).is_err());
    }

    #[test]
    fn touched_pages_are_there_and_keep_their_bytes() {
        let present = |region: &Region| {
            let file = rustix::fs::fstat(region.fd().unwrap()).unwrap();
            file.st_blocks.cast_unsigned() * 512
        };
        let touches: [fn(&Region, Extent); 2] =
            [|region, all| region.touch(all).unwrap(), Region::touch_each_page];
        for touch in touches {
            let region = Region::memfd("test", 1 << 20, Pages::Small).unwrap();
            region.store(5000, b"kept").unwrap();
            assert!(present(&region) < 1 << 20);
            touch(&region, extent(0, 1 << 20));
            assert!(present(&region) >= 1 << 20, "{}", present(&region));
            let mut kept = [0; 4];
            region.load(5000, &mut kept).unwrap();
            assert_eq!(&kept, b"kept");
        }
    }

    #[test]
    fn a_memfd_is_seen_by_a_second_mapping() {
        let region = Region::memfd("test", 8192, Pages::Small).unwrap();
        let other = Region::map(region.fd().unwrap(), 8192, Access::ReadOnly).unwrap();
        let here = region.check(extent(5000, 1)).unwrap();
        let there = other.check(extent(5000, 1)).unwrap();
        // SAFETY: both pointers are inside of live mappings, and no other thread is here.
        unsafe { here.write_volatile(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { there.read_volatile() }, 42);
        assert_eq!(other.access(), Access::ReadOnly);
    }

    #[test]
    fn bytes_and_words_cross_between_mappings() {
        let region = Region::memfd("test", 4096, Pages::Small).unwrap();
        let other = Region::map(region.fd().unwrap(), 4096, Access::ReadWrite).unwrap();
        region.store(4000, b"here").unwrap();
        let mut came = [0; 4];
        other.load(4000, &mut came).unwrap();
        assert_eq!(&came, b"here");
        other.atomic(8).unwrap().fetch_add(7, Ordering::AcqRel);
        assert_eq!(region.atomic(8).unwrap().load(Ordering::Acquire), 7);
        for offset in [4093, 4096, u64::MAX - 1, u64::MAX] {
            assert!(region.store(offset, b"four").is_err(), "{offset}");
            assert!(region.load(offset, &mut came).is_err(), "{offset}");
        }
        assert!(region.atomic(4096).is_err() && region.atomic(4).is_err());
        region.store(4096, b"").unwrap();
    }

    #[test]
    #[should_panic(expected = "nobody stores")]
    fn what_is_only_read_is_not_stored_to() {
        let region = Region::memfd("test", 4096, Pages::Small).unwrap();
        let other = Region::map(region.fd().unwrap(), 4096, Access::ReadOnly).unwrap();
        let _ = other.store(0, b"x");
    }

    #[test]
    fn a_foreign_memfd_must_be_long_enough_and_sealed() {
        let region = Region::memfd("test", 4096, Pages::Small).unwrap();
        assert!(Region::map(region.fd().unwrap(), 4097, Access::ReadOnly).is_err());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(Region::map(loose.as_fd(), 4096, Access::ReadOnly).is_err());
    }

    #[test]
    fn sealed_writes_leave_only_readers() {
        let region = Region::memfd("test", 4096, Pages::Small).unwrap();
        region.seal_writes().unwrap();
        let fd = region.fd().unwrap();
        assert!(Region::map(fd, 4096, Access::ReadWrite).is_err());
        assert!(Region::map(fd, 4096, Access::ReadOnly).is_ok());
        assert!(rustix::io::write(fd, b"x").is_err());
    }

    /// Whether or not the machine has a pool of huge pages, the region comes, and says what it is.
    #[test]
    fn huge_pages_fall_back() {
        for region in [
            Region::anonymous(5 << 20, Pages::Huge).unwrap(),
            Region::memfd("huge", 5 << 20, Pages::Huge).unwrap(),
        ] {
            let last = region.check(extent((5 << 20) - 1, 1)).unwrap();
            // SAFETY: the byte is inside of the mapping, which only this thread knows.
            unsafe { last.write(7) };
            println!("asked for huge pages, got {:?}", region.backing());
        }
        assert_eq!(Region::anonymous(4096, Pages::Huge).unwrap().len(), 4096);
    }
}
