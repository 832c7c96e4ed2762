//! The book of a door against a naive twin: a list that is searched from its start.

use mooncrate_core::door::{Book, Guest, Limits, Origin, Verdict};
use proptest::prelude::*;

/// One guest of the twin; strangers stand in the order in which they were heard of.
#[derive(Clone, Debug)]
struct Row {
    guest: Guest,
    origin: Origin,
    proved: bool,
}

struct Twin {
    limits: Limits,
    rows: Vec<Row>,
}

impl Twin {
    fn strangers(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.proved)
    }

    fn of(&self, origin: Origin) -> usize {
        self.strangers().filter(|row| row.origin == origin).count()
    }

    /// Who leaves for a newcomer: `Err`: nobody can; `Ok(None)`: nobody need.
    fn loser(&self, origin: Origin) -> Result<Option<Guest>, ()> {
        let oldest =
            |of: Origin| self.strangers().find(|row| row.origin == of).map(|row| row.guest);
        if self.of(origin) >= self.limits.per_origin {
            return Ok(oldest(origin));
        }
        let full = self.rows.len() >= self.limits.all;
        if !full && self.strangers().count() < self.limits.strangers {
            return Ok(None);
        }
        let crowded = self.strangers().map(|row| (self.of(row.origin), row.origin)).max();
        crowded.map(|(_, origin)| oldest(origin)).ok_or(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Come(u8),
    Prove(usize),
    Hear(usize),
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..4_u8).prop_map(Step::Come),
        1 => (0..16_usize).prop_map(Step::Prove),
        2 => (0..16_usize).prop_map(Step::Hear),
        2 => (0..16_usize).prop_map(Step::Leave),
    ]
}

fn origin(n: u8) -> Origin {
    if n == 3 { Origin::User(0) } else { Origin::of([10, 0, 0, n].into()) }
}

fn pick(twin: &Twin, n: usize) -> Option<usize> {
    (!twin.rows.is_empty()).then(|| n % twin.rows.len())
}

proptest! {
    #[test]
    fn security_the_book_decides_as_its_twin_does(
        all in 1..12_usize,
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let limits = Limits { all, strangers: all.div_ceil(2), per_origin: all.div_ceil(3) };
        let (mut book, mut twin) = (Book::new(limits), Twin { limits, rows: Vec::new() });
        for step in steps {
            match step {
                Step::Come(n) => {
                    let expected = twin.loser(origin(n));
                    match book.admit(origin(n)) {
                        Verdict::Refuse => prop_assert_eq!(expected, Err(())),
                        Verdict::Admit { guest, displaced } => {
                            prop_assert_eq!(expected, Ok(displaced));
                            twin.rows.retain(|row| Some(row.guest) != displaced);
                            twin.rows.push(Row { guest, origin: origin(n), proved: false });
                        }
                    }
                }
                Step::Prove(n) => if let Some(at) = pick(&twin, n) {
                    twin.rows[at].proved = true;
                    prop_assert!(book.prove(twin.rows[at].guest));
                },
                Step::Hear(n) => if let Some(at) = pick(&twin, n) {
                    let row = twin.rows.remove(at);
                    book.hear(row.guest);
                    twin.rows.push(row);
                },
                Step::Leave(n) => if let Some(at) = pick(&twin, n) {
                    book.leave(twin.rows.remove(at).guest);
                },
            }
            prop_assert_eq!(book.len(), twin.rows.len());
            prop_assert_eq!(book.strangers(), twin.strangers().count());
            prop_assert!(book.len() <= limits.all && book.strangers() <= limits.strangers);
            for n in 0..4 {
                prop_assert!(twin.of(origin(n)) <= limits.per_origin);
            }
        }
    }
}

/// A flood from one address displaces itself, whatever others do.
#[test]
fn security_a_flood_displaces_its_own() {
    let mut book = Book::new(Limits { all: 100, strangers: 50, per_origin: 25 });
    let come = |book: &mut Book, n: u8| match book.admit(origin(n)) {
        Verdict::Admit { guest, displaced } => (guest, displaced),
        Verdict::Refuse => panic!("strangers can make room"),
    };
    let (honest, _) = come(&mut book, 0);
    let flood: Vec<_> = (0..1000).map(|_| come(&mut book, 1)).collect();
    assert!(flood.iter().all(|(_, displaced)| *displaced != Some(honest)));
    assert!(book.prove(honest), "it is still there");
    assert_eq!(book.strangers(), 25);
    assert!(!book.prove(flood[0].0), "who was displaced cannot come back by a proof");
    assert_eq!(flood[25].1.unwrap(), flood[0].0, "the one that came first");
}
