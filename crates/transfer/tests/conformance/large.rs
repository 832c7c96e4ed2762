//! Large values over several links.

use crate::rig::{lanes, soon};
use mooncrate_core::plan::Action;
use mooncrate_transfer::Read;

const LARGE: u64 = (5 << 20) + 4321;

#[test]
fn a_large_value_comes_over_several_links() {
    let rig = lanes();
    let value = rig.stored(LARGE);
    assert_eq!(rig.connections(), 1, "one link wrote it");
    // A lane that starts late may find nothing left to do, so one read need not open all links.
    for _ in 0..200 {
        rig.read_value(&value).unwrap();
        if rig.connections() == 3 {
            break;
        }
    }
    assert_eq!(rig.connections(), 3);
    let small = rig.stored(1000);
    rig.read_value(&small).unwrap();
    assert_eq!(rig.connections(), 3, "links are used again");
    rig.no_pins();
}

/// Small and large, good and gone, in one batch: each has its own result (G11).
#[test]
fn a_batch_may_mix_lanes_and_single_links() {
    let rig = lanes();
    let values = [100, LARGE, 2000, 2 << 20].map(|len| rig.stored(len));
    rig.order(&values[1].locator, Action::Retire { free_after_ms: 0 });
    let mut buffers: Vec<Vec<u8>> = values.iter().map(|v| vec![0; v.bytes.len()]).collect();
    let mut reads: Vec<Read<'_>> = values
        .iter()
        .zip(&mut buffers)
        .map(|(value, into)| Read::new(value.locator, value.bytes.len() as u64, value.seal, into))
        .collect();
    rig.transport.read(&mut reads, soon());
    let good: Vec<bool> = reads.iter().map(|read| read.result.is_ok()).collect();
    assert_eq!(good, [true, false, true, true]);
    drop(reads);
    for at in [0, 2, 3] {
        values[at].judge(&buffers[at]).unwrap();
    }
}
