//! What a hot `get_into` of 4 KiB and an `exists_batch` of 128 keys cost a Rust program, beside which
//! `tests/python/bench.py` shows the same calls from Python: `hot_get MASTER`.
//!
//! What must stay true: both programs do the same calls, in rows of the same length, against the same
//! server, and print the median row.
#![expect(clippy::print_stdout, reason = "it prints its result")]

use mooncrate::{ConnectOptions, Store};
use mooncrate_wire::clock::boottime;

const ROWS: u32 = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let master = std::env::args().nth(1).ok_or("usage: hot_get MASTER")?.parse()?;
    let store = Store::connect(ConnectOptions { master, ..ConnectOptions::default() })?;
    store.put(b"hot", &[7; 4096])?;
    let mut target = [0; 4096];
    let get = median_ns(5000, || store.get_into(b"hot", &mut target).map(drop))?;
    assert_eq!(target, [7; 4096], "the bytes that were put");
    let keys: Vec<String> = (0..128).map(|number| format!("exists/{number}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let exists = median_ns(50, || store.exists_batch(&keys).map(drop))?;
    println!("{get} {exists}");
    Ok(())
}

/// Nanoseconds of one call: the median of many rows of `calls`.
fn median_ns<E>(calls: u32, mut call: impl FnMut() -> Result<(), E>) -> Result<u128, E> {
    let mut rows = Vec::new();
    for _ in 0..ROWS {
        let start = boottime();
        for _ in 0..calls {
            call()?;
        }
        rows.push(boottime().since(start).as_nanos() / u128::from(calls));
    }
    rows.sort_unstable();
    Ok(rows[rows.len() / 2])
}
