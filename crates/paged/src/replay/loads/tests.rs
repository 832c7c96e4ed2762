//! Each load is what the table of the module promises, and stays what it is.

use super::*;
use crate::replay::{Request, TraceBlock};
use std::collections::{BTreeMap, BTreeSet};

fn trace_of(load: Load, seed: u64) -> Trace {
    load.trace(seed, 512)
}

/// The length of each request and all blocks, in their order.
fn checksum(trace: &Trace) -> u64 {
    trace.requests().fold(0, |sum, request| {
        let sum = mix(sum ^ request.blocks.len() as u64);
        request.blocks.iter().fold(sum, |sum, block| mix(sum ^ u64::from(block.0)))
    })
}

/// The first `blocks` blocks of each request.
fn beginnings<'a>(
    requests: impl Iterator<Item = Request<'a>>,
    blocks: usize,
) -> BTreeSet<&'a [TraceBlock]> {
    requests.map(|request| &request.blocks[..blocks]).collect()
}

/// Published figures name a load and a seed: these traces never change.
#[test]
fn a_load_and_a_seed_are_the_same_trace_for_ever() {
    let known = [
        (Load::Scans, 9_000, 201_920, 139_129, 0x8dd7_ebdf_c4db_2941),
        (Load::Loop, 12_000, 144_000, 5_040, 0x8d6e_cc62_84be_ed0d),
        (Load::Shift, 12_000, 241_286, 49_116, 0xb5c4_2e5f_a186_fa19),
        (Load::Flood, 11_686, 326_091, 209_818, 0x0592_6681_5808_f66f),
        (Load::Zipf, 10_000, 259_867, 69_821, 0xb812_bbff_bf11_5f7a),
        (Load::Turns, 10_000, 218_704, 73_287, 0xf4c7_2417_7cd6_1c67),
        (Load::Agents, 9_000, 459_699, 22_549, 0x4120_2a41_c5f3_272f),
        (Load::Rag, 9_000, 176_283, 93_349, 0x7c1c_e91a_16f5_9084),
        (Load::Mixed, 41_266, 1_041_795, 436_583, 0x53a4_8c80_3b50_1cbc),
    ];
    assert_eq!(known.map(|row| row.0), Load::ALL);
    for (load, requests, blocks, distinct, sum) in known {
        let trace = trace_of(load, 1);
        assert_eq!(
            (trace.len(), trace.blocks().len(), trace.distinct(), checksum(&trace)),
            (requests, blocks, distinct, sum),
            "{load}"
        );
        assert_eq!(trace.input_tokens(), 512 * blocks as u64, "{load}: all blocks are full");
        let other = checksum(&trace_of(load, 2));
        // The seed of the loop decides when its requests arrive, not which.
        assert_eq!(other == sum, load == Load::Loop, "{load}");
    }
}

#[test]
fn a_name_is_read_as_it_is_written_and_an_unknown_one_lists_all() {
    for load in Load::ALL {
        assert_eq!(load.to_string().parse(), Ok(load));
        let words = "burst".parse::<Load>().unwrap_err().to_string();
        assert!(words.contains(load.name()), "{words}");
    }
}

#[test]
fn every_second_request_of_scans_is_used_once() {
    let trace = trace_of(Load::Scans, 3);
    let mut uses = vec![0; trace.distinct() as usize];
    trace.blocks().iter().for_each(|block| uses[block.0 as usize] += 1);
    for request in trace.requests().skip(1).step_by(2) {
        assert!(request.blocks.iter().all(|block| uses[block.0 as usize] == 1));
    }
    assert!(beginnings(trace.requests().step_by(2), 1).len() <= 400);
}

#[test]
fn a_loop_repeats_and_a_shift_returns() {
    let trace = trace_of(Load::Loop, 3);
    let requests: Vec<Request<'_>> = trace.requests().collect();
    assert!((420..requests.len()).all(|at| requests[at].blocks == requests[at - 420].blocks));

    let trace = trace_of(Load::Shift, 3);
    let third = |number: usize| beginnings(trace.requests().skip(4_000 * number).take(4_000), 10);
    let (first, second, last) = (third(0), third(1), third(2));
    assert!(first.is_disjoint(&second), "the second third has prompts of its own");
    let known = last.intersection(&first).count();
    assert!(10 * known > 9 * last.len(), "{known} of {} prompts returned", last.len());
}

/// The tenant's requests share their first three blocks, which no conversation begins with.
#[test]
fn half_of_a_flood_is_one_tenant() {
    let mut uses = BTreeMap::<_, usize>::new();
    let trace = trace_of(Load::Flood, 3);
    for request in trace.requests() {
        *uses.entry(&request.blocks[..2]).or_default() += 1;
    }
    assert_eq!(uses.len(), 4, "three system prompts and the tenant");
    let tenant = uses.values().max().copied().unwrap_or_default();
    assert_eq!(trace.len() - tenant, 6_000, "the others are the conversations");
    assert!((4_500..7_500).contains(&tenant), "{tenant} requests");
}

/// Most requests hold what an earlier one ended with, behind the system prompt or prefix that many sessions share.
#[test]
fn sessions_append_to_what_was_said() {
    for (load, kinds, partial_blocks, percent) in
        [(Load::Turns, 3, 1, 60), (Load::Agents, 12, 0, 90)]
    {
        let trace = trace_of(load, 3);
        assert_eq!(beginnings(trace.requests(), 2).len(), kinds, "{load}");
        let mut ends: BTreeSet<TraceBlock> = BTreeSet::new();
        let mut continued = 0;
        for Request { blocks, .. } in trace.requests() {
            continued += usize::from(blocks[2..].iter().any(|block| ends.contains(block)));
            ends.insert(blocks[blocks.len() - 1 - partial_blocks]);
        }
        assert!(100 * continued > percent * trace.len(), "{load}: {continued} requests");
    }
}

#[test]
fn prompts_share_the_beginnings_that_their_loads_name() {
    let zipf = trace_of(Load::Zipf, 3);
    assert_eq!(beginnings(zipf.requests(), 4).len(), 7, "companies");
    assert!((8..=300).contains(&beginnings(zipf.requests(), 10).len()), "departments");
    let rag = trace_of(Load::Rag, 3);
    assert_eq!(beginnings(rag.requests(), 3).len(), 1, "one system prompt");

    // The first blocks: some of the 400 popular prompts and single ones of scans, 420 documents, and the fixed
    // numbers of system prompts, prefixes and tenants of the others.
    let mixed = trace_of(Load::Mixed, 3);
    let others = 3 + 1 + 7 + 3 + 12 + 1;
    let scans = Load::Scans.requests(3 ^ 1).into_iter().filter(|one| one.at_ms < MIXED_MS);
    let scans: BTreeSet<u64> = scans.map(|one| one.prompt.0[0]).collect();
    assert_eq!(beginnings(mixed.requests(), 1).len(), scans.len() + 420 + others);
}
