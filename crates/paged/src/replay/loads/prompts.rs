//! Loads whose requests do not depend on each other: each is put together anew, and arrives when it does.

use super::chance::{Chance, Zipf, whole};
use super::{Arrival, GAP_MS, Prompt, Text};

/// Requests that arrive one after the other. `prompt` makes one, from its number.
fn arriving(
    requests: u64,
    mut chance: Chance,
    mut prompt: impl FnMut(&mut Chance, u64) -> Prompt,
) -> Vec<Arrival> {
    let mut now = 0.0;
    let arrivals = (0..requests).map(|number| {
        now += chance.exponential(GAP_MS);
        Arrival { at_ms: whole(now), prompt: prompt(&mut chance, number) }
    });
    arrivals.collect()
}

/// Every second request is one of 400 popular prompts of 6 to 30 blocks. Those between them have 20 to 39 blocks that
/// are not used again.
pub(super) fn scans(chance: Chance) -> Vec<Arrival> {
    let popular = Zipf::new(400, 0.8);
    arriving(9_000, chance, |chance, number| {
        if number.is_multiple_of(2) {
            let rank = popular.draw(chance);
            Prompt::default().then(Text(rank), 6 + rank % 25)
        } else {
            Prompt::default().then(chance.new_text(), 20 + chance.below(20))
        }
    })
}

/// The load `loop`: 420 documents of 12 blocks in a fixed order. The seed changes the times only.
pub(super) fn documents_in_turn(chance: Chance) -> Vec<Arrival> {
    arriving(12_000, chance, |_, number| Prompt::default().then(Text(number % 420), 12))
}

/// One of 500 prompts of 10 to 30 blocks, and one to four blocks that are not used again. From request 4,000 to 8,000
/// it is one of 500 others.
pub(super) fn shift(chance: Chance) -> Vec<Arrival> {
    let popular = Zipf::new(500, 0.9);
    arriving(12_000, chance, |chance, number| {
        let rank = popular.draw(chance);
        let first = if (4_000..8_000).contains(&number) { 1_000 } else { 0 };
        let prompt = Prompt::default().then(Text(first + rank), 10 + rank % 21);
        prompt.then(chance.new_text(), 1 + chance.below(4))
    })
}

/// One of 300 system prompts: 4 blocks of its company, 6 of its department and 4 to 20 of its own; then 1 to 12 that
/// are not used again.
pub(super) fn zipf(chance: Chance) -> Vec<Arrival> {
    let popular = Zipf::new(300, 1.0);
    arriving(10_000, chance, |chance, _| {
        let rank = popular.draw(chance);
        let company = Prompt::default().then(Text(rank % 7), 4);
        let department = company.then(Text(100 + rank % 41), 6);
        let system = department.then(Text(1_000 + rank), 4 + rank % 17);
        system.then(chance.new_text(), 1 + chance.below(12))
    })
}

/// A system prompt of 3 blocks, one to three of 3,000 documents of 4 to 12 blocks, and a question of one or two. The
/// blocks of a document are found again only if the documents before it are the same.
pub(super) fn rag(chance: Chance) -> Vec<Arrival> {
    let documents = Zipf::new(3_000, 0.9);
    arriving(9_000, chance, |chance, _| {
        let mut prompt = Prompt::default().then(Text(5), 3);
        for _ in 0..=chance.below(3) {
            let rank = documents.draw(chance);
            prompt.append(Text(10_000 + rank), 4 + rank % 9);
        }
        prompt.then(chance.new_text(), 1 + chance.below(2))
    })
}
