//! Memory and streams of others, and bytes on their way, on a real GPU or on the emulator of the driver.
//!
//! Without a GPU each of these tests says `SKIPPED`, with its name and the reason.

#![expect(clippy::unwrap_used, reason = "the helpers of tests may fail as the tests do")]

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use mooncrate_gpu::{
    AddressRange, DeviceBuffer, Event, ForeignStream, Found, Gpu, GpuError, Graph, Module, Pinned,
    PinnedBuffer, SharedMemory, Stream, Transit, device_of, driver_is_loaded, look,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 2 << 20;

/// A GPU for one test at a time, or the word that the test was skipped.
fn gpu(test: &str) -> Option<(Gpu, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Gpu::shared(0) {
        Ok(gpu) => Some((gpu, turn)),
        Err(error) if error.is_absent() => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

#[test]
fn the_driver_tells_whose_memory_it_is() {
    let Some((gpu, _turn)) = gpu("the_driver_tells_whose_memory_it_is") else { return };
    assert!(driver_is_loaded());
    let buffer = DeviceBuffer::new(&gpu, 3 * PAGE).unwrap();
    let at = buffer.span().address();
    let Found::Device { ordinal: 0, start, bytes } = look(at + 100).unwrap() else {
        panic!("{:?}", look(at))
    };
    assert!(start <= at && start + bytes >= at + 3 * PAGE);
    assert_eq!(device_of(at, 3 * PAGE), Ok(0));
    assert_eq!(device_of(at + 7, 3 * PAGE - 7), Ok(0));
    let error = device_of(at, 1 << 40).unwrap_err();
    assert!(error.to_string().contains("bytes are allocated on GPU 0"), "{error}");
    assert!(device_of(at, u64::MAX).is_err());
    let pinned = PinnedBuffer::new(&gpu, 4096).unwrap();
    assert_eq!(look(pinned.device_address()), Ok(Found::Host));
    let host = [0_u8; 64];
    let error = device_of(host.as_ptr() as u64, 64).unwrap_err();
    assert!(error.to_string().contains("not memory of a GPU"), "{error}");
    drop(buffer);
    assert!(device_of(at, PAGE).is_err(), "freed memory");
}

/// Memory that was mapped piece by piece is one, however the driver tells it. A hole in a range that somebody has
/// reserved is not found: the driver names the whole range.
#[test]
fn memory_in_pieces_is_found_as_one() {
    let Some((gpu, _turn)) = gpu("memory_in_pieces_is_found_as_one") else { return };
    let mut range = AddressRange::reserve(&gpu, 4 * PAGE).unwrap();
    for piece in [0, 1, 3] {
        range.map(piece * PAGE, &SharedMemory::create(&gpu, PAGE).unwrap()).unwrap();
    }
    let base = range.span(0..PAGE).unwrap().address();
    assert_eq!(device_of(base, 2 * PAGE), Ok(0));
    assert_eq!(device_of(base + 3 * PAGE, PAGE), Ok(0));
}

#[test]
fn bytes_travel_in_the_order_of_a_stream_of_others() {
    let Some((gpu, _turn)) = gpu("bytes_travel_in_the_order_of_a_stream_of_others") else { return };
    let own = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 1 << 20).unwrap();
    let mut transit = Transit::new(&gpu, 1 << 20).unwrap();
    // SAFETY: the stream outlives its use below.
    let named = unsafe { ForeignStream::of_others(&gpu, own.raw()) };
    for stream in [&named, &ForeignStream::legacy(&gpu)] {
        buffer.span().fill(7, &own).unwrap();
        own.synchronize().unwrap();
        let mark = stream.mark().unwrap();
        transit.wait_for(&mark).unwrap();
        transit.download(buffer.span().part(0..1000).unwrap(), 24).unwrap();
        while !transit.poll().unwrap() {}
        assert!(transit.bytes()[24..1024].iter().all(|byte| *byte == 7));
        transit.bytes_mut()[..1000].fill(9);
        transit.upload(0..1000, buffer.span().part(500..1500).unwrap()).unwrap();
        stream.wait(transit.mark().unwrap()).unwrap();
        transit.synchronize().unwrap();
        let found = buffer.span().part(499..1501).unwrap().to_vec(&own).unwrap();
        assert!(found[0] == 7 && found[1001] == 7 && found[1..1001] == [9; 1000]);
    }
    assert!(named.is(&named.clone()) && !named.is(&ForeignStream::legacy(&gpu)));
    let outside = transit.download(buffer.span().part(0..8).unwrap(), (1 << 20) - 7);
    assert!(matches!(outside, Err(GpuError::OutOfBounds { .. })), "{outside:?}");
    assert!(transit.upload(0..8, buffer.span().part(0..9).unwrap()).is_err());
}

#[test]
fn bytes_on_their_way_are_shown_to_nobody() {
    let Some((gpu, _turn)) = gpu("bytes_on_their_way_are_shown_to_nobody") else { return };
    let buffer = DeviceBuffer::new(&gpu, 4096).unwrap();
    let mut transit = Transit::new(&gpu, 4096).unwrap();
    transit.download(buffer.span(), 0).unwrap();
    let looked = catch_unwind(AssertUnwindSafe(|| transit.bytes().len()));
    assert!(looked.is_err(), "a copy may be under way");
    transit.synchronize().unwrap();
    assert_eq!(transit.bytes().len(), 4096);
}

#[test]
fn a_stream_that_is_recorded_is_not_waited_for() {
    let Some((gpu, _turn)) = gpu("a_stream_that_is_recorded_is_not_waited_for") else { return };
    let own = Stream::new(&gpu).unwrap();
    // SAFETY: the stream outlives its use below.
    let named = unsafe { ForeignStream::of_others(&gpu, own.raw()) };
    let event = named.mark().unwrap();
    let buffer = DeviceBuffer::new(&gpu, 64).unwrap();
    let recorded = Graph::record(&own, |stream| {
        buffer.span().fill(1, stream)?;
        for refused in [named.mark().map(drop), named.wait(&event)] {
            assert!(matches!(refused, Err(GpuError::Recording { .. })), "{refused:?}");
        }
        Ok::<(), GpuError>(())
    });
    drop(recorded.unwrap());
    named.wait(&event).unwrap();
    own.synchronize().unwrap();
    assert!(event.is_passed().unwrap());
}

/// Which context a thread has is its own affair: torch allocates on the GPU that it finds there.
#[test]
fn the_context_of_a_thread_is_put_back() {
    let Some((gpu, _turn)) = gpu("the_context_of_a_thread_is_put_back") else { return };
    let current = || {
        let mut context = null_mut();
        // SAFETY: the driver was started, and there is a place for the answer.
        assert_eq!(unsafe { sys::cuCtxGetCurrent(&raw mut context) }, CUresult::CUDA_SUCCESS);
        context
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = Stream::new(&gpu).unwrap();
            let buffer = DeviceBuffer::new(&gpu, 64).unwrap();
            buffer.span().fill(1, &stream).unwrap();
            assert_eq!(buffer.span().to_vec(&stream).unwrap(), [1; 64]);
            gpu.synchronize().unwrap();
            drop(Gpu::open(0).unwrap());
            assert!(current().is_null(), "a thread without a context has one now");
            assert!(look(0x1000).is_ok(), "it finds a context of its own");
            assert!(current().is_null());
        });
    });
}

/// Makes, uses and drops one of everything. Another GPU object that is called while somebody records belongs here.
fn one_of_everything(gpu: &Gpu) {
    let (stream, event) = (Stream::new(gpu).unwrap(), Event::new(gpu).unwrap());
    let buffer = DeviceBuffer::new(gpu, PAGE).unwrap();
    buffer.span().write(&[7; 100], &stream).unwrap();
    buffer.ipc_handle().unwrap();
    event.record(&stream).unwrap();
    while !event.is_passed().unwrap() {}
    event.synchronize().unwrap();
    assert_eq!(buffer.span().part(0..100).unwrap().to_vec(&stream).unwrap(), [7; 100]);
    let upload = buffer.span().upload(PinnedBuffer::new(gpu, 64).unwrap(), &stream).unwrap();
    drop(upload.wait().unwrap());
    let mut transit = Transit::new(gpu, 4096).unwrap();
    transit.wait_for(&ForeignStream::legacy(gpu).mark().unwrap()).unwrap();
    transit.download(buffer.span().part(0..64).unwrap(), 0).unwrap();
    while !transit.poll().unwrap() {}
    let mut pages = vec![0_u8; 1 << 16];
    let base = NonNull::new(pages.as_mut_ptr()).unwrap();
    // SAFETY: the vector outlives the lock, which is dropped at once.
    drop(unsafe { Pinned::new(gpu, base, pages.len()) }.unwrap());
    assert!(gpu.is_pinned(&PinnedBuffer::new(gpu, 64).unwrap()));
    let memory = SharedMemory::create(gpu, PAGE).unwrap();
    let mut range = AddressRange::of(&memory).unwrap();
    drop(memory.export().unwrap());
    drop(range.unmap(0).unwrap());
    let module = Module::load(gpu, include_str!("add_number.ptx")).unwrap();
    drop(module.kernel("add_number").unwrap());
    let graph = Graph::record(&stream, |stream| buffer.span().fill(3, stream)).unwrap();
    // SAFETY: the graph fills a buffer that is there.
    unsafe { graph.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(device_of(buffer.span().address(), PAGE), Ok(0));
    assert!(gpu.free_bytes().unwrap() > 0);
    gpu.synchronize().unwrap();
    drop(Gpu::open(0).unwrap());
}

/// torch records in the strictest mode by default: a call of another thread that could disturb it is refused, and ends
/// the recording. The thread that records may put and get on other streams, too.
#[test]
fn a_recording_of_others_goes_on_beside_every_call() {
    let Some((gpu, _turn)) = gpu("a_recording_of_others_goes_on_beside_every_call") else { return };
    let buffer = DeviceBuffer::new(&gpu, 64).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let handle: sys::CUstream = std::ptr::with_exposed_provenance_mut(stream.raw() as usize);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive, and nothing is recorded.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(handle, mode) }, CUresult::CUDA_SUCCESS);
    buffer.span().fill(1, &stream).unwrap();
    let beside = catch_unwind(AssertUnwindSafe(|| {
        std::thread::scope(|scope| scope.spawn(|| one_of_everything(&gpu)).join().unwrap());
        one_of_everything(&gpu);
    }));
    let filled = buffer.span().part(0..32).unwrap().fill(2, &stream);
    let mut graph = null_mut();
    // SAFETY: the stream is recorded by this thread, and there is a place for the graph.
    let ended = unsafe { sys::cuStreamEndCapture(handle, &raw mut graph) };
    assert_eq!(ended, CUresult::CUDA_SUCCESS, "the recording was ended by others");
    filled.unwrap();
    beside.unwrap();
    let mut nodes = 0;
    // SAFETY: the graph was just given by the driver; a null list asks for the number only.
    let counted = unsafe { sys::cuGraphGetNodes(graph, null_mut(), &raw mut nodes) };
    assert_eq!(counted, CUresult::CUDA_SUCCESS);
    assert_eq!(nodes, 2, "what others did is part of the recording");
    // SAFETY: nobody else has the graph.
    assert_eq!(unsafe { sys::cuGraphDestroy(graph) }, CUresult::CUDA_SUCCESS);
}

/// Memory of others is unmapped after this: their work has ended, on whatever stream.
#[test]
fn waiting_for_the_gpu_waits_for_all_streams() {
    let Some((gpu, _turn)) = gpu("waiting_for_the_gpu_waits_for_all_streams") else { return };
    let buffer = DeviceBuffer::new(&gpu, 32 * PAGE).unwrap();
    let marks: Vec<Event> = (0..3)
        .map(|byte| {
            let (stream, mark) = (Stream::new(&gpu).unwrap(), Event::untimed(&gpu).unwrap());
            (0..40).for_each(|_| buffer.span().fill(byte, &stream).unwrap());
            mark.record(&stream).unwrap();
            mark
        })
        .collect();
    gpu.synchronize().unwrap();
    assert!(marks.iter().all(|mark| mark.is_passed().unwrap()), "work goes on after the wait");
}

/// Work is queued on a stream that somebody else made as its maker would queue it, also into its recording; and
/// the stream stays.
#[test]
fn work_is_queued_on_a_stream_of_others() {
    let Some((gpu, _turn)) = gpu("work_is_queued_on_a_stream_of_others") else { return };
    let own = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 64).unwrap();
    for handle in [0, 1, own.raw()] {
        // SAFETY: the stream outlives its use below.
        let borrowed = unsafe { Stream::of_others(&gpu, handle) };
        buffer.span().fill(handle as u8 | 1, &borrowed).unwrap();
        borrowed.synchronize().unwrap();
        assert_eq!(buffer.span().to_vec(&own).unwrap(), [handle as u8 | 1; 64]);
    }
    let graph = Graph::record(&own, |stream| {
        // SAFETY: as above.
        let borrowed = unsafe { Stream::of_others(&gpu, stream.raw()) };
        assert!(matches!(borrowed.synchronize(), Err(GpuError::Recording { .. })));
        buffer.span().fill(42, &borrowed)
    });
    let graph = graph.unwrap();
    assert_eq!(graph.nodes(), 1);
    assert_ne!(buffer.span().to_vec(&own).unwrap(), [42; 64], "it was recorded, not done");
    // SAFETY: the graph fills a buffer that is there.
    unsafe { graph.launch(&own) }.unwrap();
    assert_eq!(buffer.span().to_vec(&own).unwrap(), [42; 64]);
}

/// The driver has no answer for the default stream while a stream is recorded that waits for it, as most do that are not
/// torch's.
#[test]
fn the_default_stream_beside_a_recording_is_refused_in_words() {
    let Some((gpu, _turn)) = gpu("the_default_stream_beside_a_recording") else { return };
    let (mut context, mut raw) = (null_mut(), null_mut());
    let done = |answer| assert_eq!(answer, CUresult::CUDA_SUCCESS);
    // SAFETY: there is a place for one pointer; it is given back below.
    done(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) });
    // SAFETY: it was just given by the driver.
    done(unsafe { sys::cuCtxSetCurrent(context) });
    // SAFETY: a context is current, and there is a place for one pointer.
    done(unsafe { sys::cuStreamCreate(&raw mut raw, 0) });
    // SAFETY: the stream lives until the end of this test.
    let theirs = unsafe { Stream::of_others(&gpu, raw as u64) };
    let recorded = Graph::record(&theirs, |_| {
        for handle in [0, 1] {
            // SAFETY: the default stream is always there.
            let default = unsafe { Stream::of_others(&gpu, handle) };
            for refused in [default.not_recording("look"), default.recording().map(drop)] {
                assert!(matches!(refused, Err(GpuError::Recording { .. })), "{refused:?}");
            }
        }
        Ok::<(), GpuError>(())
    });
    drop(recorded.unwrap());
    // SAFETY: nobody else has it, and nothing is queued on it.
    done(unsafe { sys::cuStreamDestroy_v2(raw) });
    // SAFETY: no context is current afterwards.
    done(unsafe { sys::cuCtxSetCurrent(null_mut()) });
    // SAFETY: it was retained once above.
    done(unsafe { sys::cuDevicePrimaryCtxRelease_v2(0) });
}
