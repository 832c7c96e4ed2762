//! Rings whose operations end when a test wants it.

use super::*;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

fn read<'a>(fd: &'a OwnedFd, into: &'a mut [u8], result: &'a mut io::Result<()>) -> Job<'a> {
    let spans = ReadSpans { fd: fd.as_fd(), lie: None, offset: 0, into };
    Job { work: Work::Read(spans), result }
}

/// proves S10: a read that is under way when the ring fails, or when our code panics, is waited for. A
/// pipe stands for a slow disk: nothing comes out of it before this test wants it.
#[test]
fn nothing_returns_before_the_kernel_lets_go() {
    let Ok(mut ring) = Ring::new() else {
        eprintln!("skipped: the kernel refuses rings here");
        return;
    };
    for panics in [false, true] {
        let (quick, quick_in) = rustix::pipe::pipe().unwrap();
        let (slow, slow_in) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&quick_in, b"quick").unwrap();
        let (mut first, mut second) = ([0; 5], [0; 4]);
        let (mut one, mut two) = (Ok(()), Ok(()));
        let mut jobs = [read(&quick, &mut first, &mut one), read(&slow, &mut second, &mut two)];
        let tamper = Tamper::default();
        *(if panics { &tamper.panic_in } else { &tamper.fail_in }).lock() = Some(1);
        let written = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let writer = std::thread::Builder::new().spawn_scoped(scope, || {
                std::thread::sleep(Duration::from_millis(300));
                written.store(true, Ordering::Release);
                rustix::io::write(&slow_in, b"slow").unwrap();
            });
            writer.unwrap();
            let cutter = Cutter::new(1 << 20, 1);
            let outcome = catch_unwind(AssertUnwindSafe(|| ring.run(&mut jobs, &cutter, &tamper)));
            assert!(written.load(Ordering::Acquire), "the memory was given back too early");
            outcome
        });
        assert_eq!((&first, &second), (b"quick", b"slow"));
        assert!(one.is_ok());
        match outcome {
            Err(_) => assert!(panics),
            Ok(ran) => {
                assert_eq!(ran.unwrap_err().to_string(), "as asked");
                assert_eq!(two.unwrap_err().to_string(), "as asked");
            }
        }
        ring = Ring::new().unwrap();
    }
}

#[test]
fn completions_are_matched_by_number_whatever_their_order() {
    let Ok(mut ring) = Ring::new() else {
        eprintln!("skipped: the kernel refuses rings here");
        return;
    };
    let pipes: Vec<_> = (0..DEPTH).map(|_| rustix::pipe::pipe().unwrap()).collect();
    let mut memory = vec![[0; 4]; DEPTH];
    let mut results: Vec<io::Result<()>> = (0..DEPTH).map(|_| Ok(())).collect();
    let mut jobs: Vec<_> = pipes
        .iter()
        .zip(&mut memory)
        .zip(&mut results)
        .map(|(((out, _), into), result)| read(out, into, result))
        .collect();
    std::thread::scope(|scope| {
        let writer = std::thread::Builder::new().spawn_scoped(scope, || {
            // The last one first, each in two parts.
            for (i, (_, into)) in pipes.iter().enumerate().rev() {
                let bytes = (i as u32).to_le_bytes();
                rustix::io::write(into, &bytes[..3]).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                rustix::io::write(into, &bytes[3..]).unwrap();
            }
        });
        writer.unwrap();
        ring.run(&mut jobs, &Cutter::new(1 << 20, 1), &Tamper::default()).unwrap();
    });
    drop(jobs);
    assert!(results.iter().all(Result::is_ok));
    for (i, bytes) in memory.iter().enumerate() {
        assert_eq!(u32::from_le_bytes(*bytes), i as u32);
    }
}

#[test]
fn a_buffer_is_found_only_if_it_holds_all() {
    let Ok(mut ring) = Ring::new() else { return };
    ring.fixed = vec![1000..2000, 2000..2500, 3000..4000];
    assert_eq!(ring.fixed(1000, 1000), Some(0));
    assert_eq!(ring.fixed(1999, 1), Some(0));
    assert_eq!(ring.fixed(1999, 2), None, "it lies in two of them");
    assert_eq!(ring.fixed(2000, 500), Some(1));
    assert_eq!(ring.fixed(2500, 1), None);
    assert_eq!(ring.fixed(3500, 500), Some(2));
    assert_eq!(ring.fixed(4000, 1), None);
    assert_eq!(ring.fixed(0, 10), None);
    ring.fixed.clear();
}
