//! What a run found: a table for people, a file for programs, and whether it passed.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// One fault that happened.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) kind: &'static str,
    /// From its end to the last trouble that any client met.
    pub(crate) recovery: Duration,
}

/// What must be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) operations: u64,
    pub(crate) faults: usize,
    pub(crate) kinds: usize,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) private: bool,
    pub(crate) marks: Marks,
    pub(crate) happened: Vec<Happened>,
    /// The last line of every client, the killed ones included.
    pub(crate) clients: Vec<Value>,
    pub(crate) drain: Value,
    pub(crate) audit: Value,
    /// Nodes that were started again because they found no master when they started.
    pub(crate) restarts: u64,
    pub(crate) findings: Vec<String>,
}

impl Report {
    fn sum(&self, name: &str) -> u64 {
        self.clients.iter().filter_map(|line| line[name].as_u64()).sum()
    }

    /// Calls that were answered and judged; an error or a refusal leaves nothing to verify.
    fn verified(&self) -> u64 {
        self.sum("operations") - self.sum("errors") - self.sum("refusals")
    }

    fn most(&self, name: &str) -> u64 {
        self.clients.iter().filter_map(|line| line[name].as_u64()).max().unwrap_or(0)
    }

    fn by_kind(&self) -> BTreeMap<&'static str, Vec<Duration>> {
        let mut kinds: BTreeMap<&'static str, Vec<Duration>> = BTreeMap::new();
        for one in &self.happened {
            kinds.entry(one.kind).or_default().push(one.recovery);
        }
        kinds
    }

    /// Errors of all clients by kind; killed ones took theirs along.
    fn errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for line in &self.clients {
            for (kind, count) in line["kinds"].as_object().into_iter().flatten() {
                *errors.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
        errors
    }

    fn leaked(&self) -> Option<u64> {
        Some(self.drain["used_bytes"].as_u64()? + self.drain["quarantined_bytes"].as_u64()?)
    }

    /// Everything that makes the run fail, in words.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = self.findings.clone();
        let mut fail = |bad: bool, what: String| {
            if bad {
                failures.push(what);
            }
        };
        for line in &self.clients {
            let told = ["violations", "late"].into_iter().filter_map(|name| line[name].as_array());
            for what in told.flatten() {
                fail(true, format!("client {}: {}", line["client"], what.as_str().unwrap_or("?")));
            }
        }
        let (wrong, hangs) = (self.sum("wrong"), self.sum("hangs"));
        fail(wrong > 0, format!("{wrong} answers were wrong"));
        fail(hangs > 0, format!("{hangs} calls hung past their deadline"));
        match self.leaked() {
            Some(0) => {}
            Some(bytes) => fail(true, format!("{bytes} bytes leaked: {}", self.drain)),
            None => fail(true, format!("the cluster could not be drained: {}", self.drain)),
        }
        fail(self.audit["adds_up"] != true, format!("the books do not balance: {}", self.audit));
        let Marks { operations, faults, kinds } = self.marks;
        let (did, met, of) = (self.verified(), self.happened.len(), self.by_kind().len());
        fail(did < operations, format!("{did} verified operations, {operations} wanted"));
        fail(met < faults, format!("{met} faults, {faults} wanted"));
        fail(of < kinds, format!("{of} kinds of faults, {kinds} wanted"));
        failures
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| writeln!(text, "{words}").expect("a String takes it");
        line(format!("{:<22}{:>6}{:>12}{:>12}", "fault", "count", "recovery", "longest"));
        for (kind, mut times) in self.by_kind() {
            times.sort();
            let (mid, last) = (times[times.len() / 2], times[times.len() - 1]);
            let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
            line(format!("{kind:<22}{:>6}{:>12}{:>12}", times.len(), seconds(mid), seconds(last)));
        }
        let (met, of) = (self.happened.len(), self.by_kind().len());
        let network = if self.private { "network namespaces" } else { "loopback, no namespaces" };
        line(format!("\n{met} faults of {of} kinds in {} s, {network}", self.seconds));
        if self.restarts > 0 {
            line(format!("{} starts of nodes found no master and were repeated", self.restarts));
        }
        line(format!(
            "{} verified operations ({} clients): {} values of {} MB read, {} misses, the rest puts, \
             removes and questions",
            self.verified(),
            self.clients.len(),
            self.sum("values"),
            self.sum("bytes") / 1_000_000,
            self.sum("misses"),
        ));
        line(format!(
            "{} errors, {} refusals, {} values refused as corrupt; slowest call {} ms, longest wait of \
             a call for a core {} ms",
            self.sum("errors"),
            self.sum("refusals"),
            self.sum("corrupt_refused"),
            self.most("slowest_ms"),
            self.most("coreless_ms"),
        ));
        line(format!("by kind: {}", json!(self.errors())));
        line(format!(
            "{} wrong, {} hangs past the deadline, {} bytes leaked (drained in {} ms), audit {}",
            self.sum("wrong"),
            self.sum("hangs"),
            self.leaked().map_or("unknown".to_owned(), |bytes| bytes.to_string()),
            self.drain["took_ms"],
            if self.audit["adds_up"] == true { "clean" } else { "NOT clean" },
        ));
        for failure in self.failures() {
            line(format!("FAILED: {failure}"));
        }
        line(format!("repeat the schedule with: {}", self.command));
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let kinds = self.by_kind().into_iter().map(|(kind, times)| {
            let times: Vec<u64> = times.iter().map(|time| time.as_millis() as u64).collect();
            (kind.to_owned(), json!({ "count": times.len(), "recovery_ms": times }))
        });
        json!({
            "command": self.command,
            "seed": self.seed,
            "seconds": self.seconds,
            "namespaces": self.private,
            "passed": self.failures().is_empty(),
            "failures": self.failures(),
            "operations": self.sum("operations"),
            "verified": self.verified(),
            "faults": self.happened.len(),
            "kinds": kinds.collect::<serde_json::Map<String, Value>>(),
            "wrong": self.sum("wrong"),
            "hangs": self.sum("hangs"),
            "leaked_bytes": self.leaked(),
            "errors": self.errors(),
            "restarts": self.restarts,
            "drain": self.drain,
            "audit": self.audit,
            "clients": self.clients,
        })
    }
}
