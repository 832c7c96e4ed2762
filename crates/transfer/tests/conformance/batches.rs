//! Values that are sent together: one exchange, one result each, whatever becomes of the others (G11).

use crate::rig::{Rig, Value, soon};
use mooncrate_core::Generation;
use mooncrate_core::plan::Locator;
use mooncrate_transfer::{TransferError, Write};
use mooncrate_wire::DataError;

/// More values than go ahead of their answers, small and large ones, in one piece and in several.
pub(crate) fn values_sent_together_have_one_result_each(rig: &mut Rig) {
    let lens = [0, 1, 5000, 40_000, 200, 100_000, 70, (1 << 20) + 1, 32 << 10, 3000];
    let values: Vec<Value> = (0..200).map(|n| rig.value(lens[n % lens.len()])).collect();
    let pieces: Vec<Vec<&[u8]>> = values
        .iter()
        .enumerate()
        .map(|(n, value)| {
            let (head, tail) = value.bytes.split_at(value.bytes.len() / 3);
            if n % 7 == 3 { vec![head, tail] } else { vec![&value.bytes[..]] }
        })
        .collect();
    // Some go to a life that is over.
    let bad = |n: usize| n % 31 == 5;
    let writes: Vec<Write<'_>> = values
        .iter()
        .zip(&pieces)
        .enumerate()
        .map(|(n, (value, pieces))| {
            let write = value.write(pieces);
            let stale = Locator { generation: Generation(1), ..write.locator };
            if bad(n) { Write { locator: stale, ..write } } else { write }
        })
        .collect();
    let results = rig.transport.send(&writes, soon()).finish(soon());
    assert_eq!(results.len(), values.len());
    for (n, (value, result)) in values.iter().zip(results).enumerate() {
        match result {
            Ok(seal) => {
                assert!(!bad(n) && seal == value.seal, "{n}");
                rig.read_value(value).unwrap();
            }
            Err(error) => {
                let stale = matches!(error, TransferError::Data(DataError::Stale));
                assert!(bad(n) && stale, "{n}: {error:?}");
            }
        }
    }
    assert!(rig.transport.send(&[], soon()).finish(soon()).is_empty());
    rig.no_pins();
}

/// What is dropped before its end is published, or nothing of it is left.
pub(crate) fn values_that_are_not_waited_for_leave_nothing_half(rig: &mut Rig) {
    let values: Vec<Value> = (0..100).map(|_| rig.value(5000)).collect();
    let pieces: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value.bytes[..]]).collect();
    let writes: Vec<Write<'_>> =
        values.iter().zip(&pieces).map(|(value, pieces)| value.write(pieces)).collect();
    drop(rig.transport.send(&writes, soon()));
    for value in &values {
        if let Err(error) = rig.read_value(value) {
            assert!(matches!(error, TransferError::Data(DataError::Stale)), "{error:?}");
        }
    }
}
