//! What the emulator of the driver does for a test: it lets a stream stand still, and lets a signal arrive at the
//! worst moment. A GPU cannot be asked for either, so those tests run on the emulator only.

use mooncrate_gpu::{Gpu, Stream};
use std::ffi::{CStr, c_char, c_int, c_void};

const LAZY: c_int = 1;
/// Only a library that this process has loaded.
const NO_LOAD: c_int = 4;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Whether this GPU is one.
pub(crate) fn is(gpu: &Gpu) -> bool {
    gpu.name() == "emulator"
}

fn function(name: &CStr) -> *mut c_void {
    for library in [c"libcuda.so", c"libcuda.so.1"] {
        // SAFETY: both names are C strings; the library is there already, so nothing is loaded or run.
        let library = unsafe { dlopen(library.as_ptr(), LAZY | NO_LOAD) };
        if !library.is_null() {
            // SAFETY: the library was just found, and is never closed.
            let found = unsafe { dlsym(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?} is a function of the emulator");
            return found;
        }
    }
    panic!("the emulator is loaded under a name of the driver")
}

/// Nothing of a held stream is done before it is let go. The number is [`Stream::raw`].
pub(crate) fn hold(stream: u64, held: bool) {
    type Hold = unsafe extern "C" fn(u64, c_int) -> c_int;
    // SAFETY: this is the signature of `emulatorHold` in driver.cpp: a pointer and a number.
    let call: Hold = unsafe { std::mem::transmute(function(c"emulatorHold")) };
    // SAFETY: the handle is that of a stream which the test keeps.
    assert_eq!(unsafe { call(stream, c_int::from(held)) }, 0);
}

/// The next time that a kernel looks at page-locked memory, `value` arrives at `address` first.
pub(crate) fn arrive(address: u64, value: u64) {
    type Arrive = unsafe extern "C" fn(u64, u64) -> c_int;
    // SAFETY: this is the signature of `emulatorArrive` in driver.cpp: a pointer and a number.
    let call: Arrive = unsafe { std::mem::transmute(function(c"emulatorArrive")) };
    // SAFETY: the address is that of a word of a heap, which the test keeps.
    assert_eq!(unsafe { call(address, value) }, 0);
}

/// Whether what a test needs is there; else it says why it does nothing.
pub(crate) fn needed(test: &str, stream: &Stream) -> bool {
    let there = is(stream.gpu());
    if !there {
        eprintln!("{test}: only the emulator can be told what happens when");
    }
    there
}
