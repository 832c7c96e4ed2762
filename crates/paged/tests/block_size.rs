//! What a block size costs, over 300 requests of a published trace: the figures of `docs/paged.md`.

use mooncrate_paged::{Policy, Pool, Sequence, Start};

/// What the sequences of the trace take with one block size.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    block_tokens: u32,
    /// Token slots without a token, per sequence, in tenths.
    unused_mean_tenths: u64,
    unused_max: u64,
    /// Unused slots of all slots, in thousandths of a percent.
    unused_part: u64,
    /// Entries of a block table.
    table_mean: u64,
    table_max: u64,
    /// Tokens of a prompt after the last block that can be found, in tenths: the last one never is.
    computed_mean_tenths: u64,
}

/// Tokens of a request.
struct Request {
    prompt: u64,
    answer: u64,
}

fn requests() -> Vec<Request> {
    let lines = include_str!("data/conversation_300.jsonl").lines();
    let request = |line: &str| {
        let request: serde_json::Value = serde_json::from_str(line).expect("a line of the trace");
        let part = |name: &str| request[name].as_u64().expect("a number of tokens");
        Request { prompt: part("input_length"), answer: part("output_length") }
    };
    lines.map(request).collect()
}

fn cost(requests: &[Request], block_tokens: u32) -> Cost {
    let pool = Pool::new(1 << 14, 1 << 14, Policy::Lru).expect("a pool");
    let start = Start { block_tokens, tenant: 0, rank: 0, contiguous: false };
    let (mut unused, mut unused_max, mut blocks, mut table_max, mut computed) = (0, 0, 0, 0, 0);
    for request in requests {
        let tokens = request.prompt + request.answer;
        computed += (request.prompt - 1) % u64::from(block_tokens) + 1;
        let sequence = Sequence::of_count(&pool, &start, tokens, |_| Ok(())).expect("room for one");
        let (table, slots) = (sequence.table().len() as u64, sequence.capacity());
        unused += slots - tokens;
        unused_max = unused_max.max(slots - tokens);
        blocks += table;
        table_max = table_max.max(table);
        sequence.free(&pool);
    }
    let count = requests.len() as u64;
    Cost {
        block_tokens,
        unused_mean_tenths: rounded(unused * 10, count),
        unused_max,
        unused_part: rounded(unused * 100_000, blocks * u64::from(block_tokens)),
        table_mean: rounded(blocks, count),
        table_max,
        computed_mean_tenths: rounded(computed * 10, count),
    }
}

fn rounded(number: u64, by: u64) -> u64 {
    (number + by / 2) / by
}

#[test]
fn larger_blocks_waste_more_slots_and_need_shorter_tables() {
    let requests = requests();
    let tokens: u64 = requests.iter().map(|request| request.prompt + request.answer).sum();
    assert_eq!((requests.len(), tokens), (300, 4_383_050));
    let small = Cost {
        block_tokens: 16,
        unused_mean_tenths: 72,
        unused_max: 15,
        unused_part: 49,
        table_mean: 914,
        table_max: 7_576,
        computed_mean_tenths: 83,
    };
    let middle = Cost {
        block_tokens: 64,
        unused_mean_tenths: 309,
        unused_max: 63,
        unused_part: 211,
        table_mean: 229,
        table_max: 1_894,
        computed_mean_tenths: 314,
    };
    let large = Cost {
        block_tokens: 256,
        unused_mean_tenths: 1_320,
        unused_max: 255,
        unused_part: 896,
        table_mean: 58,
        table_max: 474,
        computed_mean_tenths: 1_234,
    };
    for row in [small, middle, large] {
        assert_eq!(cost(&requests, row.block_tokens), row);
    }
}
