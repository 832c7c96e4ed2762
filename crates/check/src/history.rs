//! What happened, in order: the events that the oracle judges and that a failed run leaves behind.
//!
//! Each operation has a begin and an end. A begin is recorded *before* the call is made and an end
//! *after* it has answered; then "a ended before b began" is true whenever the history says so.
//! Events are told in order; the times are what the rig's clock said (virtual or real) and serve
//! the reader of a report.

use crate::payload::{self, BadLine, PutId};
use mooncrate_core::{KeyHash, Now};
use std::fmt;
use std::io::{self, Write};

/// Names one get or one remove of a run, so that its end finds its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One thing that happened to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Now,
    /// To which key. Rigs choose keys whose hashes differ.
    pub key: KeyHash,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A put is about to be called.
    PutBegan {
        /// Which: stamped into its bytes.
        put: PutId,
        /// Bytes of its value.
        len: u64,
    },
    /// The put answered OK.
    PutEnded {
        /// Which.
        put: PutId,
    },
    /// The put was refused and surely stored nothing, not even for a moment.
    PutRefused {
        /// Which.
        put: PutId,
    },
    /// The put failed, timed out, or its client died: it may have stored its value or may still
    /// do so, but nobody tries it again. A refusal after a retry belongs here too, because the
    /// first try may be what the second was refused for.
    PutUnknown {
        /// Which.
        put: PutId,
    },
    /// The put that has just begun replaces a value that is there (an upsert). Until it answers OK
    /// both values may be seen, in any order.
    PutReplaces {
        /// Which.
        put: PutId,
    },
    /// The rig lets the value of this key go: its only copy was evicted, or died with its node.
    MayVanish,
    /// A remove is about to be called.
    RemoveBegan {
        /// Which.
        remove: OpId,
    },
    /// The remove answered OK.
    RemoveEnded {
        /// Which.
        remove: OpId,
    },
    /// The remove failed or timed out: it may have removed, or may still.
    RemoveUnknown {
        /// Which.
        remove: OpId,
    },
    /// A get is about to be called.
    GetBegan {
        /// Which.
        get: OpId,
    },
    /// The get answered.
    GetEnded {
        /// Which.
        get: OpId,
        /// With what.
        got: Got,
    },
}

/// What a get came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A value.
    Value {
        /// The put that its lines name; `None` when it is too short to name one.
        put: Option<PutId>,
        /// Its bytes.
        len: u64,
    },
    /// A value with a line that must not stand there: always a violation.
    Bad(BadLine),
    /// Not found.
    Miss,
    /// An error: it says nothing about the key.
    Failed,
}

impl Got {
    /// Reads the stamps of a value.
    pub fn of(value: &[u8], key: KeyHash) -> Self {
        match payload::examine(value, key) {
            Ok(put) => Self::Value { put, len: value.len() as u64 },
            Err(bad) => Self::Bad(bad),
        }
    }
}

/// Writes one JSON object per line. Ids are strings: JSON readers round large numbers.
#[derive(Debug)]
pub struct History<W> {
    out: W,
    events: u64,
}

impl<W: Write> History<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        Self { out, events: 0 }
    }

    /// Adds one event.
    pub fn record(&mut self, event: &Event) -> io::Result<()> {
        self.events += 1;
        writeln!(self.out, "{event}")
    }

    /// How many were recorded.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Flushes and hands the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The JSON line of the event: one form for files, reports and eyes.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at: Now(at), key: KeyHash(key), what } = self;
        write!(f, r#"{{"at_ns":{at},"key":"{key:016x}","what":"#)?;
        match what {
            What::PutBegan { put, len } => {
                write!(f, r#""put_began","put":"{put}","len":{len}"#)
            }
            What::PutEnded { put } => write!(f, r#""put_ended","put":"{put}""#),
            What::PutRefused { put } => write!(f, r#""put_refused","put":"{put}""#),
            What::PutUnknown { put } => write!(f, r#""put_unknown","put":"{put}""#),
            What::PutReplaces { put } => write!(f, r#""put_replaces","put":"{put}""#),
            What::MayVanish => f.write_str(r#""may_vanish""#),
            What::RemoveBegan { remove: OpId(op) } => {
                write!(f, r#""remove_began","op":"{op}""#)
            }
            What::RemoveEnded { remove: OpId(op) } => {
                write!(f, r#""remove_ended","op":"{op}""#)
            }
            What::RemoveUnknown { remove: OpId(op) } => {
                write!(f, r#""remove_unknown","op":"{op}""#)
            }
            What::GetBegan { get: OpId(op) } => write!(f, r#""get_began","op":"{op}""#),
            What::GetEnded { get: OpId(op), got } => {
                write!(f, r#""get_ended","op":"{op}","got":"#)?;
                match got {
                    Got::Value { put: Some(put), len } => {
                        write!(f, r#""value","put":"{put}","len":{len}"#)
                    }
                    Got::Value { put: None, len } => write!(f, r#""value","len":{len}"#),
                    Got::Bad(bad) => write!(f, r#""bad","why":"{bad}""#),
                    Got::Miss => f.write_str(r#""miss""#),
                    Got::Failed => f.write_str(r#""failed""#),
                }
            }
        }?;
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const PUT: PutId = PutId::new(7, 1, 9);

    fn line_of(what: What) -> Value {
        let mut history = History::new(Vec::new());
        history.record(&Event { at: Now(5), key: KeyHash(0xab), what }).unwrap();
        assert_eq!(history.events(), 1);
        let text = String::from_utf8(history.finish().unwrap()).unwrap();
        assert!(text.ends_with('\n'));
        serde_json::from_str(&text).expect("each event is one JSON object")
    }

    #[test]
    fn every_event_is_a_json_line() {
        let (key, op, get) = ("00000000000000ab", OpId(u64::MAX), OpId(3));
        let last = "18446744073709551615";
        let expected = [
            (What::PutBegan { put: PUT, len: 10 }, json!({"what": "put_began", "len": 10})),
            (What::PutEnded { put: PUT }, json!({"what": "put_ended"})),
            (What::PutRefused { put: PUT }, json!({"what": "put_refused"})),
            (What::PutUnknown { put: PUT }, json!({"what": "put_unknown"})),
            (What::PutReplaces { put: PUT }, json!({"what": "put_replaces"})),
            (What::MayVanish, json!({"what": "may_vanish"})),
            (What::RemoveBegan { remove: op }, json!({"what": "remove_began", "op": last})),
            (What::RemoveEnded { remove: op }, json!({"what": "remove_ended", "op": last})),
            (What::RemoveUnknown { remove: op }, json!({"what": "remove_unknown", "op": last})),
            (What::GetBegan { get }, json!({"what": "get_began", "op": "3"})),
            (What::GetEnded { get, got: Got::Miss }, json!({"what": "get_ended", "got": "miss"})),
            (What::GetEnded { get, got: Got::Failed }, json!({"got": "failed"})),
            (
                What::GetEnded { get, got: Got::Value { put: Some(PUT), len: 9 } },
                json!({"got": "value", "put": "7.1.9", "len": 9}),
            ),
            (
                What::GetEnded { get, got: Got::Value { put: None, len: 0 } },
                json!({"got": "value", "put": null, "len": 0}),
            ),
            (
                What::GetEnded { get, got: Got::of(&[0; 64], KeyHash(0xab)) },
                json!({"got": "bad", "why": "line 0 is Rotten: expected any put of this key, \
                       found put 0.0.0 key 0000000000000000 line 0"}),
            ),
        ];
        for (what, fields) in expected {
            let line = line_of(what);
            assert_eq!(line["at_ns"], 5, "{line}");
            assert_eq!(line["key"], key, "{line}");
            for (name, value) in fields.as_object().unwrap() {
                assert_eq!(&line[name], value, "{name} of {line}");
            }
        }
        assert_eq!(line_of(What::PutEnded { put: PUT })["put"], "7.1.9");
    }

    #[test]
    fn a_value_is_examined_before_it_is_recorded() {
        let key = KeyHash(4);
        let mut bytes = vec![0; 100];
        payload::fill(&mut bytes, PUT, key);
        assert_eq!(Got::of(&bytes, key), Got::Value { put: Some(PUT), len: 100 });
        assert_eq!(Got::of(&[], key), Got::Value { put: None, len: 0 });
        assert!(matches!(Got::of(&bytes, KeyHash(5)), Got::Bad(_)));
    }
}
