//! Which faults come in which rounds. It follows from the seed and the kinds, never from the clock.

use crate::chaos::dice::Dice;
use crate::chaos::fault::Planned;
use crate::chaos::kinds::{Kind, On};

/// The rounds of a seed, without end: every kind once in each pass through the deck, long ones in every
/// fourth, in groups that hit different processes.
#[derive(Debug)]
pub(crate) struct Schedule {
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
    dice: Dice,
    passes: u64,
}

impl Schedule {
    pub(crate) fn new(kinds: &[Kind], seed: u64) -> Self {
        let dice = Dice::new(seed).stream("schedule");
        Self { kinds: kinds.to_vec(), deck: Vec::new(), dice, passes: 0 }
    }

    pub(crate) fn next(&mut self) -> Vec<Planned> {
        if self.deck.is_empty() {
            let only_long = self.kinds.iter().all(|kind| kind.needs.long);
            let turn = self.passes % 4 == 1 || only_long;
            self.deck =
                self.kinds.iter().filter(|kind| turn || !kind.needs.long).copied().collect();
            self.dice.shuffle(&mut self.deck);
            if self.passes == 0 {
                // Dealt from the end: what only several masters can suffer comes first, so that a short
                // run with several has it at all.
                self.deck.sort_by_key(|kind| kind.needs.several);
            }
            self.passes += 1;
        }
        let mut round: Vec<Planned> = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let Some(kind) = self.deck.last() else { break };
            let planned = Planned::draw(*kind, &mut self.dice);
            if round.iter().any(|other| other.collides(&planned)) {
                break;
            }
            self.deck.pop();
            round.push(planned);
        }
        round
    }
}

/// A fault in a few words.
pub(crate) fn shown(planned: &Planned) -> String {
    let Planned { kind, target, lasts, .. } = planned;
    let numbered = matches!(kind.on, On::Node | On::Client | On::EtcdMember);
    let target = if numbered { format!(" {}", target + 1) } else { String::new() };
    format!("{}{target} {:.1} s", kind.name, lasts.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::kinds::{self, Means};

    const ALL: Means = Means { private: true, clock: true, several: true, alone: true, long: true };

    fn names(seed: u64, rounds: usize) -> Vec<String> {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let mut schedule = Schedule::new(&kinds, seed);
        let rounds = (0..rounds).map(|_| schedule.next().iter().map(shown).collect::<Vec<_>>());
        rounds.map(|round| round.join(" + ")).collect()
    }

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(names(5, 200), names(5, 200));
        assert_ne!(names(5, 200), names(6, 200));
    }

    #[test]
    fn every_kind_has_its_turn_and_no_process_is_hit_twice_at_once() {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let mut schedule = Schedule::new(&kinds, 3);
        let mut met = std::collections::BTreeMap::<&str, u32>::new();
        for _ in 0..300 {
            let round = schedule.next();
            for (index, one) in round.iter().enumerate() {
                *met.entry(one.kind.name).or_default() += 1;
                assert!(!round[..index].iter().any(|other| other.collides(one)));
            }
        }
        assert_eq!(met.len(), kinds.len());
        assert!(met["stop-node-long"] < met["stop-node"] / 2, "{met:?}");
    }

    #[test]
    fn kinds_can_be_chosen_and_some_need_no_namespaces() {
        assert!(kinds::choose(&["kill-nod".into()], ALL).is_err());
        let one = kinds::choose(&["stop-node-long".into()], Means::NONE).unwrap();
        assert_eq!(one.len(), 1, "what is asked for by name is taken, however long");
        assert!(kinds::choose(&[], Means::NONE).unwrap().len() >= 8);
    }

    #[test]
    fn what_needs_several_masters_comes_first_where_there_are_some_and_not_at_all_elsewhere() {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let special = kinds.iter().filter(|kind| kind.needs.several).count();
        let mut schedule = Schedule::new(&kinds, 8);
        let mut dealt = Vec::new();
        while dealt.len() < special {
            dealt.extend(schedule.next().into_iter().map(|planned| planned.kind));
        }
        assert!(
            special >= 10 && dealt[..special].iter().all(|kind| kind.needs.several),
            "{dealt:?}"
        );
        let alone = Means { several: false, ..ALL };
        assert!(!kinds::choose(&[], alone).unwrap().iter().any(|kind| kind.needs.several));
    }

    /// Of those that decide who leads, one at a time is in trouble.
    #[test]
    fn masters_and_etcd_have_their_troubles_one_by_one() {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let mut schedule = Schedule::new(&kinds, 4);
        for _ in 0..300 {
            let round = schedule.next();
            let count = round.iter().filter(|planned| planned.kind.on.governs()).count();
            assert!(count <= 1, "{round:?}");
        }
    }
}
