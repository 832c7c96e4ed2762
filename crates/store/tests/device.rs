//! Values of a GPU in a store whose pinned rooms are small: longer values travel in pieces, and rooms are waited
//! for.
//!
//! `./dev test kernels` runs these on the emulator of the driver. Without a driver each says `SKIPPED`.

#![expect(clippy::unwrap_used, reason = "the helpers of tests may fail as the tests do")]

use mooncrate::{EmbeddedOptions, Error, StagingConfig, Store, Stored};
use mooncrate_gpu::{DeviceBuffer, ForeignStream, Gpu, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIB: usize = 1 << 20;

/// A GPU for one test at a time, or the word that the test was skipped.
fn gpu(test: &str) -> Option<(Gpu, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Gpu::open(0) {
        Ok(gpu) => Some((gpu, turn)),
        Err(error) if error.is_absent() => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn store(room: usize, total: usize) -> Store {
    let staging = StagingConfig { room_bytes_max: room, total_bytes_max: total };
    let options = EmbeddedOptions { segment_bytes: 128 << 20, staging, ..Default::default() };
    Store::embedded(options).unwrap()
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + (at >> 9)) as u8).collect()
}

/// Device memory with these bytes.
fn on_gpu(gpu: &Gpu, bytes: &[u8]) -> DeviceBuffer {
    let buffer = DeviceBuffer::new(gpu, bytes.len() as u64).unwrap();
    buffer.span().write(bytes, &Stream::new(gpu).unwrap()).unwrap();
    buffer
}

#[test]
fn values_that_have_no_room_travel_in_pieces() {
    let Some((gpu, _turn)) = gpu("values_that_have_no_room_travel_in_pieces") else { return };
    let (stream, own) = (ForeignStream::legacy(&gpu), Stream::new(&gpu).unwrap());
    // With one room alone nothing can be fetched ahead.
    for total in [MIB, 4 * MIB] {
        let store = store(MIB, total);
        let config = store.put_config();
        for (seed, len) in [MIB + 1, 5 * MIB + 3, 16 * MIB].into_iter().enumerate() {
            let (key, value) = (format!("long {len}"), pattern(seed, len));
            let source = on_gpu(&gpu, &value);
            let put = || store.put_device(key.as_bytes(), source.span(), &stream, &config);
            assert_eq!(put().unwrap(), Stored::New);
            assert_eq!(put().unwrap(), Stored::AlreadyThere);
            assert!(store.get(key.as_bytes()).unwrap().unwrap() == value, "{len}");
            let target = on_gpu(&gpu, &vec![0xee; len + 5]);
            let got = store.get_into_device(key.as_bytes(), target.span(), &stream).unwrap();
            assert_eq!(got, Some(len as u64));
            gpu.synchronize().unwrap();
            let found = target.span().to_vec(&own).unwrap();
            assert!(found[..len] == value && found[len..] == [0xee; 5], "{len}");
            let small = target.span().part(0..len as u64 - 1).unwrap();
            let error = store.get_into_device(key.as_bytes(), small, &stream).unwrap_err();
            let words = error.to_string();
            assert!(words.contains(&format!("the value has {len} bytes")), "{words}");
        }
        assert_eq!(
            store.get_into_device(b"none", on_gpu(&gpu, &[0]).span(), &stream).unwrap(),
            None
        );
    }
}

#[test]
fn few_rooms_serve_many_callers() {
    let Some((gpu, _turn)) = gpu("few_rooms_serve_many_callers") else { return };
    let store = store(MIB, 2 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, gpu) = (&store, &gpu);
            scope.spawn(move || {
                let (stream, own) = (ForeignStream::legacy(gpu), Stream::new(gpu).unwrap());
                let config = store.put_config();
                for round in 0..20 {
                    let len = 1 + (thread * 97 + round * 53_777) % (3 * MIB / 2);
                    let (key, value) = (format!("{thread}/{round}"), pattern(thread, len));
                    let memory = on_gpu(gpu, &value);
                    let stored = store.put_device(key.as_bytes(), memory.span(), &stream, &config);
                    assert_eq!(stored.unwrap(), Stored::New);
                    memory.span().fill(0, &own).unwrap();
                    own.synchronize().unwrap();
                    let got = store.get_into_device(key.as_bytes(), memory.span(), &stream);
                    assert_eq!(got.unwrap(), Some(len as u64));
                    gpu.synchronize().unwrap();
                    assert!(memory.span().to_vec(&own).unwrap() == value, "{key}");
                    assert!(store.remove(key.as_bytes(), true).unwrap());
                }
            });
        }
    });
}

#[test]
fn a_value_for_a_medium_that_nobody_lends_is_refused() {
    let Some((gpu, _turn)) = gpu("a_value_for_a_medium_that_nobody_lends_is_refused") else {
        return;
    };
    let store = store(MIB, 2 * MIB);
    let config = store.put_config().on(mooncrate_core::Medium::Vram);
    let memory = on_gpu(&gpu, b"value");
    let put = store.put_device(b"key", memory.span(), &ForeignStream::legacy(&gpu), &config);
    let error = put.unwrap_err();
    assert!(matches!(error, Error::Client(_)), "{error}");
    assert!(error.to_string().contains("--vram"), "{error}");
    assert!(!store.exists(b"key").unwrap());
}
