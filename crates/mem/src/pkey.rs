//! Memory protection keys: pages that a thread can touch only while it has opened them. To open and to close takes
//! no system call.
//!
//! What must stay true: rights are a register of each thread, and a thread that never opened the key has none. So a
//! store that lost its way faults, whichever thread makes it, also while others store.

use std::io;
use std::marker::PhantomData;
use std::sync::LazyLock;

/// Neither loads nor stores, in the register and in the kernel's call.
const NO_ACCESS: u32 = 0b01;
/// The two bits of a key.
const RIGHTS: u32 = 0b11;

/// The protection key of this process. There are fifteen at most, so all mappings share one.
#[derive(Debug)]
pub(crate) struct Key(u32);

impl Key {
    /// `None`: the processor, the kernel or a sandbox has none to give.
    pub(crate) fn of_process() -> Option<&'static Self> {
        static KEY: LazyLock<Option<Key>> = LazyLock::new(allocate);
        KEY.as_ref()
    }

    /// Makes pages readable and writable for threads that open this key, and untouchable for all others.
    ///
    /// # Safety
    /// The pages are a mapping of the caller's, which nobody touches without opening the key.
    pub(crate) unsafe fn guard(&self, first: *mut u8, len: usize) -> io::Result<()> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is the caller's, and the kernel checks the rest.
        let done = unsafe { libc::syscall(libc::SYS_pkey_mprotect, first, len, prot, self.0) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Lets this thread touch the pages until the end of what it returns.
    pub(crate) fn open(&self) -> Open {
        let before = rights();
        set_rights(before & !(RIGHTS << (2 * self.0)));
        Open { before, _of_this_thread: PhantomData }
    }
}

/// The pages can be touched by the thread that holds this.
pub(crate) struct Open {
    before: u32,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        set_rights(self.before);
    }
}

fn allocate() -> Option<Key> {
    // In a world all threads share one register.
    if cfg!(not(target_arch = "x86_64")) || mooncrate_rt::world().is_some() {
        return None;
    }
    // SAFETY: it changes the rights of this thread to a key that nobody had.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, NO_ACCESS) };
    // A key comes only where the instructions below exist.
    u32::try_from(key).ok().map(Key)
}

/// The rights of this thread: two bits per key.
#[cfg(target_arch = "x86_64")]
fn rights() -> u32 {
    let rights: u32;
    // SAFETY: the kernel gave a key, so the instruction exists; it reads a register. No memory access moves over it,
    // because the compiler must take it for one.
    unsafe {
        std::arch::asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nostack));
    }
    rights
}

#[cfg(target_arch = "x86_64")]
fn set_rights(rights: u32) {
    // SAFETY: as in `rights`. Rights that are taken away are those of pages that only code between `open` and its
    // end touches.
    unsafe {
        std::arch::asm!("wrpkru", in("ecx") 0, in("eax") rights, in("edx") 0, options(nostack));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn rights() -> u32 {
    unreachable!("no key was given")
}

#[cfg(not(target_arch = "x86_64"))]
fn set_rights(_rights: u32) {
    unreachable!("no key was given")
}
