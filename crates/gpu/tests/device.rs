//! What the wrappers promise, on a real GPU.
//!
//! Without a GPU each of these tests says `SKIPPED`, with its name and the reason; the first one runs
//! everywhere. `./dev gpu` runs them on a machine with a GPU and fails if one was skipped.

#![expect(clippy::unwrap_used, reason = "the helpers of tests may fail as the tests do")]

use mooncrate_gpu::{
    AddressRange, DeviceBuffer, Event, Gpu, GpuError, Graph, IPC_HANDLE_BYTES, IpcBuffer,
    IpcHandle, Kernel, Launch, Module, Pinned, PinnedBuffer, SharedMemory, Stream,
};
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adds a number to each of `count` words, after its predecessor has ended.
const ADD_NUMBER: &str = include_str!("add_number.ptx");
/// The page of shared memory on the GPUs we know; the test compares it with the driver's answer.
const PAGE: u64 = 2 << 20;

/// A GPU for one test at a time: what one test frees must not meet what another one records.
struct Alone {
    gpu: Gpu,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Alone {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// GPU number 0, or the word that the test was skipped.
fn gpu(test: &str) -> Option<Alone> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Gpu::open(0) {
        Ok(gpu) => Some(Alone { gpu, _turn: turn }),
        Err(error) if error.is_absent() => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_missing_gpu_is_an_error_in_words_and_no_panic() {
    match Gpu::open(0) {
        Ok(_) => {
            let error = Gpu::open(9_999).unwrap_err();
            assert!(matches!(error, GpuError::NoDevice { ordinal: 9_999, count: 1.. }), "{error}");
        }
        Err(error) => {
            assert!(error.is_absent(), "{error}");
            // Asking again gives the same answer.
            assert_eq!(Gpu::open(0).unwrap_err(), error);
            if error == GpuError::NoDriver {
                assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
            }
        }
    }
}

#[test]
fn a_gpu_tells_about_itself() {
    let Some(gpu) = gpu("a_gpu_tells_about_itself") else { return };
    assert!(!gpu.name().is_empty());
    assert!(gpu.sm_count() > 0 && gpu.driver_version() >= 13_000);
    assert!(gpu.compute_capability() >= (7, 5), "{:?}", gpu.compute_capability());
    assert!(gpu.free_bytes().unwrap() <= gpu.memory_bytes());
    assert!(gpu.is(&Gpu::open(0).unwrap()));
    println!("{} with {} SMs, {} bytes", gpu.name(), gpu.sm_count(), gpu.memory_bytes());
}

#[test]
fn bytes_come_back_as_they_were() {
    let Some(gpu) = gpu("bytes_come_back_as_they_were") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let (one, two) =
        (DeviceBuffer::new(&gpu, 10_007).unwrap(), DeviceBuffer::new(&gpu, 10_007).unwrap());
    let bytes = pattern(1, 10_007);
    one.span().write(&bytes, &stream).unwrap();
    assert_eq!(one.span().to_vec(&stream).unwrap(), bytes);
    two.span().fill(0xa5, &stream).unwrap();
    let middle = one.span().part(100..9_100).unwrap();
    two.span().part(7..9_007).unwrap().copy_from(middle, &stream).unwrap();
    let seen = two.span().to_vec(&stream).unwrap();
    assert!(seen[..7].iter().chain(&seen[9_007..]).all(|byte| *byte == 0xa5));
    assert_eq!(seen[7..9_007], bytes[100..9_100]);
}

#[test]
fn ranges_are_checked_before_the_driver_sees_them() {
    let Some(gpu) = gpu("ranges_are_checked_before_the_driver_sees_them") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 256).unwrap();
    let all = buffer.span();
    let outside = |error| matches!(error, GpuError::OutOfBounds { size: 256, .. });
    assert!(outside(all.part(1..257).unwrap_err()));
    assert!(outside(all.write(&[0; 257], &stream).unwrap_err()));
    assert!(outside(all.read(&mut [0; 257], &stream).unwrap_err()));
    let (low, high) = (all.part(0..100).unwrap(), all.part(99..199).unwrap());
    assert!(matches!(low.copy_from(high, &stream), Err(GpuError::Invalid(_))));
    assert!(DeviceBuffer::new(&gpu, 0).is_err() && PinnedBuffer::new(&gpu, 0).is_err());
    let error = DeviceBuffer::new(&gpu, 1 << 50).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("allocate device memory: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{text}");
}

#[test]
fn pinned_memory_is_copied_in_the_background() {
    let Some(gpu) = gpu("pinned_memory_is_copied_in_the_background") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let device = DeviceBuffer::new(&gpu, 1 << 20).unwrap();
    let mut source = PinnedBuffer::new(&gpu, 1 << 20).unwrap();
    assert!(source.iter().all(|byte| *byte == 0));
    source.copy_from_slice(&pattern(2, 1 << 20));
    let target = PinnedBuffer::new(&gpu, 1 << 20).unwrap();
    let there = device.span().upload(source, &stream).unwrap();
    let back = device.span().download(target, &stream).unwrap();
    let target = back.wait().unwrap();
    assert_eq!(target[..], there.wait().unwrap()[..]);
    assert_eq!(target[..], pattern(2, 1 << 20)[..]);
    // A pending copy that nobody waits for ends before its memory is given back.
    drop(device.span().download(target, &stream).unwrap());
}

/// Memory of ours that the driver locks is copied in the background, and is known as pinned until it is
/// unlocked.
#[test]
fn memory_of_others_is_pinned_and_unpinned() {
    let Some(gpu) = gpu("memory_of_others_is_pinned_and_unpinned") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let device = DeviceBuffer::new(&gpu, 1 << 20).unwrap();
    let mut memory = pattern(4, 1 << 20);
    assert!(!gpu.is_pinned(&memory));
    let base = NonNull::from(&mut memory[0]);
    // SAFETY: the vector lives longer than the lock, and nobody gives its pages back.
    let pinned = unsafe { Pinned::new(&gpu, base, 1 << 20) }.unwrap();
    assert!(gpu.is_pinned(&memory) && gpu.is_pinned(&memory[77..78]) && pinned.gpu().is(&gpu));
    // SAFETY: as above, and this one is dropped at once.
    let twice = unsafe { Pinned::new(&gpu, base, 4096) }.unwrap_err();
    assert!(matches!(twice, GpuError::Cuda { code: 712, .. }), "{twice}");
    // SAFETY: nobody touches the vector until the stream has ended.
    unsafe { device.span().enqueue_upload(&memory, &stream) }.unwrap();
    stream.synchronize().unwrap();
    memory.fill(0);
    // SAFETY: as above.
    unsafe { device.span().enqueue_download(&mut memory[5..], &stream) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(memory[5..], pattern(4, 1 << 20)[..(1 << 20) - 5]);
    drop(pinned);
    assert!(!gpu.is_pinned(&memory));
    let buffer = PinnedBuffer::new(&gpu, 4096).unwrap();
    assert!(gpu.is_pinned(&buffer));
}

#[test]
fn events_order_streams_and_take_the_time() {
    let Some(gpu) = gpu("events_order_streams_and_take_the_time") else { return };
    let (first, second) = (Stream::new(&gpu).unwrap(), Stream::new(&gpu).unwrap());
    let (begun, done) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
    let (one, two) =
        (DeviceBuffer::new(&gpu, 64 << 20).unwrap(), DeviceBuffer::new(&gpu, 64 << 20).unwrap());
    begun.record(&first).unwrap();
    one.span().fill(7, &first).unwrap();
    done.record(&first).unwrap();
    second.wait(&done).unwrap();
    two.span().copy_from(one.span(), &second).unwrap();
    assert!(two.span().to_vec(&second).unwrap().iter().all(|byte| *byte == 7));
    done.synchronize().unwrap();
    assert!(begun.is_passed().unwrap() && done.is_passed().unwrap());
    assert!(done.micros_since(&begun).unwrap() > 0.0);
}

fn add_number(gpu: &Gpu) -> Kernel {
    Module::load(gpu, ADD_NUMBER).unwrap().kernel("add_number").unwrap()
}

/// Queues the addition of `number` to all words of `buffer`.
fn add(kernel: &Kernel, stream: &Stream, buffer: &DeviceBuffer, number: u32, dependent: bool) {
    let (at, count) = (buffer.span().address(), (buffer.span().len() / 4) as u32);
    let launch = Launch { dependent, ..Launch::linear(count.div_ceil(128), 128) };
    let params = [(&at).into(), (&count).into(), (&number).into()];
    // SAFETY: the kernel takes an address, a count and a number, and stays inside of the buffer, whose
    // owner waits for the device before it frees.
    unsafe { kernel.launch(stream, launch, &params) }.unwrap();
}

#[test]
fn a_kernel_gets_its_parameters() {
    let Some(gpu) = gpu("a_kernel_gets_its_parameters") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 4_000).unwrap();
    let kernel = add_number(&gpu);
    buffer.span().fill(0, &stream).unwrap();
    add(&kernel, &stream, &buffer, 5, false);
    // Each waits for the one before it, although it may start early.
    for _ in 0..50 {
        add(&kernel, &stream, &buffer, 3, true);
    }
    assert_eq!(words(&buffer.span().to_vec(&stream).unwrap()), vec![155; 1_000]);
}

#[test]
fn wrong_launches_and_wrong_ptx_are_refused() {
    let Some(gpu) = gpu("wrong_launches_and_wrong_ptx_are_refused") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let kernel = add_number(&gpu);
    let (at, count, number) = (0u64, 1u64, 1u32);
    let one = Launch::linear(1, 32);
    let params = [(&at).into(), (&count).into(), (&number).into()];
    // SAFETY: the second parameter has the wrong size, so nothing is launched.
    let error = unsafe { kernel.launch(&stream, one, &params) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "add_number takes parameters of [8, 4, 4] bytes, but got [8, 8, 4]"
    );
    // SAFETY: there are too few parameters, so nothing is launched.
    assert!(unsafe { kernel.launch(&stream, one, &params[..2]) }.is_err());
    // SAFETY: a launch without threads is refused.
    assert!(unsafe { kernel.launch(&stream, Launch::linear(0, 32), &params) }.is_err());
    let broken = ADD_NUMBER.replace("mad.lo.u32", "mad.oops.u32");
    let text = Module::load(&gpu, &broken).unwrap_err().to_string();
    assert!(text.starts_with("compile a kernel's PTX: CUDA_ERROR_INVALID_PTX"), "{text}");
    assert!(text.contains("oops"), "the compiler's log is part of the error: {text}");
    let module = Module::load(&gpu, ADD_NUMBER).unwrap();
    let text = module.kernel("no_such_kernel").unwrap_err().to_string();
    assert!(text.contains("CUDA_ERROR_NOT_FOUND (500)"), "{text}");
}

#[test]
fn a_graph_does_again_what_was_recorded() {
    let Some(gpu) = gpu("a_graph_does_again_what_was_recorded") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 4_096).unwrap();
    let kernel = add_number(&gpu);
    buffer.span().fill(0, &stream).unwrap();
    let graph = Graph::record::<GpuError>(&stream, |stream| {
        (0..60).for_each(|_| add(&kernel, stream, &buffer, 1, false));
        Ok(())
    })
    .unwrap();
    assert_eq!(graph.nodes(), 60);
    let untouched = buffer.span().to_vec(&stream).unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0), "recording does nothing");
    for _ in 0..3 {
        // SAFETY: buffer and kernel live until the end of this test.
        unsafe { graph.launch(&stream) }.unwrap();
    }
    assert_eq!(words(&buffer.span().to_vec(&stream).unwrap()), vec![180; 1_024]);
}

#[test]
fn a_recording_refuses_what_waits() {
    let Some(gpu) = gpu("a_recording_refuses_what_waits") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 64).unwrap();
    let error = Graph::record::<GpuError>(&stream, |stream| {
        buffer.span().fill(1, stream)?;
        assert!(matches!(stream.synchronize(), Err(GpuError::Recording { .. })));
        assert!(matches!(buffer.span().write(&[1], stream), Err(GpuError::Recording { .. })));
        Err(GpuError::Invalid("the caller gave up".into()))
    })
    .unwrap_err();
    assert_eq!(error, GpuError::Invalid("the caller gave up".into()));
    // The stream can be used again, for work and for another recording.
    buffer.span().write(&[9; 64], &stream).unwrap();
    let fill = |stream: &Stream| buffer.span().fill(3, stream);
    let graph = Graph::record(&stream, fill).unwrap();
    // SAFETY: the buffer lives until the end of this test.
    unsafe { graph.launch(&stream) }.unwrap();
    assert_eq!(buffer.span().to_vec(&stream).unwrap(), vec![3; 64]);
}

#[test]
fn exported_memory_is_the_same_memory() {
    let Some(gpu) = gpu("exported_memory_is_the_same_memory") else { return };
    let stream = Stream::new(&gpu).unwrap();
    assert_eq!(SharedMemory::granularity(&gpu).unwrap(), PAGE);
    let memory = SharedMemory::create(&gpu, 1).unwrap();
    assert_eq!(memory.bytes(), PAGE);
    let here = AddressRange::of(&memory).unwrap();
    let fd = memory.export().unwrap();
    let imported = SharedMemory::import(&gpu, fd.as_fd(), PAGE).unwrap();
    let there = AddressRange::of(&imported).unwrap();
    assert_ne!(here.address(), there.address());
    let bytes = pattern(3, PAGE as usize);
    here.span(0..PAGE).unwrap().write(&bytes, &stream).unwrap();
    // The exporter may let go first: the memory lives as long as somebody has it.
    drop((here, memory, fd));
    assert_eq!(there.span(0..PAGE).unwrap().to_vec(&stream).unwrap(), bytes);
    assert!(SharedMemory::import(&gpu, std::io::stdin().as_fd(), PAGE + 1).is_err());
}

#[test]
fn pages_are_remapped_to_contiguous_addresses() {
    let Some(gpu) = gpu("pages_are_remapped_to_contiguous_addresses") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let pages: Vec<_> = (0..3).map(|_| SharedMemory::create(&gpu, PAGE).unwrap()).collect();
    for (seed, page) in (10..).zip(&pages) {
        let range = AddressRange::of(page).unwrap();
        let all = range.span(0..PAGE).unwrap();
        all.write(&pattern(seed, PAGE as usize), &stream).unwrap();
    }
    let mut range = AddressRange::reserve(&gpu, 4 * PAGE).unwrap();
    assert!(range.span(0..1).is_err(), "nothing is mapped");
    for (place, page) in [(0, 2), (1, 0), (2, 1)] {
        range.map(place * PAGE, &pages[page]).unwrap();
    }
    let expected = [12, 10, 11].map(|seed| pattern(seed, PAGE as usize)).concat();
    assert_eq!(range.span(0..3 * PAGE).unwrap().to_vec(&stream).unwrap(), expected);
    assert!(range.span(0..3 * PAGE + 1).is_err(), "the last page is not mapped");
    assert!(range.map(PAGE, &pages[0]).is_err(), "taken");
    assert!(range.map(PAGE / 2, &pages[0]).is_err(), "not at a page");
    assert!(range.map(4 * PAGE, &pages[0]).is_err(), "outside");
    // The page in the middle moves to the end; the address of the range stays.
    let moved = range.unmap(PAGE).unwrap();
    assert!(range.unmap(PAGE).is_err(), "gone");
    assert!(range.span(0..3 * PAGE).is_err(), "a hole");
    range.map(3 * PAGE, &moved).unwrap();
    let tail = range.span(2 * PAGE..4 * PAGE).unwrap().to_vec(&stream).unwrap();
    assert_eq!(tail, [11, 10].map(|seed| pattern(seed, PAGE as usize)).concat());
}

/// Runs one test of this file in a process of its own, with `stdin` as its standard input.
fn child(name: &str, stdin: Stdio, write: &[u8]) -> Output {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--ignored", "--exact", "--nocapture", name];
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(write).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{name}: {said}{errors}");
    output
}

#[test]
fn another_process_maps_exported_memory() {
    let Some(gpu) = gpu("another_process_maps_exported_memory") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let memory = SharedMemory::create(&gpu, PAGE).unwrap();
    let range = AddressRange::of(&memory).unwrap();
    let all = range.span(0..PAGE).unwrap();
    all.write(&pattern(20, PAGE as usize), &stream).unwrap();
    child("child_of_another_process_maps_exported_memory", memory.export().unwrap().into(), &[]);
    assert_eq!(all.to_vec(&stream).unwrap(), pattern(21, PAGE as usize));
}

#[test]
#[ignore = "started by another_process_maps_exported_memory, with the memory as standard input"]
fn child_of_another_process_maps_exported_memory() {
    let gpu = Gpu::open(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let memory = SharedMemory::import(&gpu, std::io::stdin().as_fd(), PAGE).unwrap();
    let range = AddressRange::of(&memory).unwrap();
    let all = range.span(0..PAGE).unwrap();
    assert_eq!(all.to_vec(&stream).unwrap(), pattern(20, PAGE as usize));
    all.write(&pattern(21, PAGE as usize), &stream).unwrap();
}

#[test]
fn another_process_opens_an_ipc_handle() {
    let Some(gpu) = gpu("another_process_opens_an_ipc_handle") else { return };
    let stream = Stream::new(&gpu).unwrap();
    let small = DeviceBuffer::new(&gpu, 4_096).unwrap();
    assert!(small.ipc_handle().unwrap_err().to_string().contains("shares its page"));
    let buffer = DeviceBuffer::new(&gpu, PAGE).unwrap();
    buffer.span().write(&pattern(30, PAGE as usize), &stream).unwrap();
    let handle = buffer.ipc_handle().unwrap().to_bytes();
    child("child_of_another_process_opens_an_ipc_handle", Stdio::piped(), &handle);
    assert_eq!(buffer.span().to_vec(&stream).unwrap(), pattern(31, PAGE as usize));
}

#[test]
#[ignore = "started by another_process_opens_an_ipc_handle, with the handle on standard input"]
fn child_of_another_process_opens_an_ipc_handle() {
    let gpu = Gpu::open(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let mut handle = [0; IPC_HANDLE_BYTES];
    std::io::stdin().read_exact(&mut handle).unwrap();
    // SAFETY: the buffer has one page, and the parent frees it after this process has ended.
    let buffer = unsafe { IpcBuffer::open(&gpu, IpcHandle::from_bytes(handle), PAGE) }.unwrap();
    assert_eq!(buffer.span().to_vec(&stream).unwrap(), pattern(30, PAGE as usize));
    buffer.span().write(&pattern(31, PAGE as usize), &stream).unwrap();
}
