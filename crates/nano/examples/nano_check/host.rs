//! The link to the host, both ways: the copy engine beside what the cache does.

use crate::figures::text;
use crate::report::{Figure, Report};
use crate::timer::{ROUNDS, Time, time};
use mooncrate_core::rng::Rng;
use mooncrate_gpu::{DeviceBuffer, Gpu, PinnedBuffer, Stream};
use mooncrate_nano::HeapLayout;
use mooncrate_nano::kernels::{KernelError, Kernels};
use std::cell::RefCell;

const SIZES: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20];

/// Measures everything, and goes on where something fails.
pub(crate) fn all(gpu: &Gpu, report: &mut Report) {
    for bytes in SIZES {
        for up in [true, false] {
            report.add("host link", figure(gpu, bytes, up));
        }
    }
}

fn figure(gpu: &Gpu, bytes: usize, up: bool) -> Result<Figure, String> {
    // The layout plays no part in copies.
    let layout = HeapLayout::new(1, 4_096).ok_or("no room")?;
    let kernels = Kernels::load(gpu, layout).map_err(text)?;
    let device = DeviceBuffer::new(gpu, bytes as u64).map_err(text)?;
    let host = RefCell::new(PinnedBuffer::new(gpu, bytes).map_err(text)?);
    let engine = |stream: &Stream, _: usize| -> Result<(), KernelError> {
        if up {
            // SAFETY: nobody looks at the buffer before the replays have ended, in `measured`.
            unsafe { device.span().enqueue_upload(&host.borrow(), stream) }?;
        } else {
            // SAFETY: as above.
            unsafe { device.span().enqueue_download(&mut host.borrow_mut(), stream) }?;
        }
        Ok(())
    };
    let ours = |stream: &Stream, _: usize| {
        if up {
            // SAFETY: as above.
            unsafe { kernels.upload(stream, device.span(), &host.borrow()) }
        } else {
            // SAFETY: as above.
            unsafe { kernels.download(stream, &mut host.borrow_mut(), device.span()) }
        }
    };
    let plain = measured(gpu, &device, &host, up, engine)?;
    let time = measured(gpu, &device, &host, up, ours)?;
    let name = if up { "pinned host to device" } else { "device to pinned host" };
    let (name, bytes) = (format!("{name}; plain copy: the copy engine"), bytes as u64);
    // Where the engine does the work, nothing may be lost.
    let goal = (bytes >= 1 << 20).then_some(plain.median / 0.95);
    Ok(Figure { name, mode: "one buffer", bytes, passes: 1, time, plain: Some(plain), goal })
}

/// The time of a copy whose bytes were compared.
fn measured(
    gpu: &Gpu,
    device: &DeviceBuffer,
    host: &RefCell<PinnedBuffer>,
    up: bool,
    work: impl Fn(&Stream, usize) -> Result<(), KernelError>,
) -> Result<Time, String> {
    let stream = Stream::new(gpu).map_err(text)?;
    let mut rng = Rng::new(device.span().len());
    let given: Vec<u8> =
        (0..host.borrow().len() / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
    if up {
        host.borrow_mut().copy_from_slice(&given);
        device.span().fill(0, &stream).map_err(text)?;
    } else {
        host.borrow_mut().fill(0);
        device.span().write(&given, &stream).map_err(text)?;
    }
    // SAFETY: buffers outlive the call, and nobody looks at the host's before it has returned.
    let time = unsafe { time(&stream, ROUNDS, |_| Ok(()), work) }.map_err(text)?;
    let seen =
        if up { device.span().to_vec(&stream).map_err(text)? } else { host.borrow().to_vec() };
    if seen != given {
        return Err("the copy has other bytes than its source".into());
    }
    Ok(time)
}
