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

/// One leg of a run.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) masters: usize,
    pub(crate) seconds: u64,
    pub(crate) happened: Vec<Happened>,
    /// The last line of every client, the killed ones included.
    pub(crate) clients: Vec<Value>,
    /// The last line of the watcher of leaders, where there are several masters.
    pub(crate) watcher: Option<Value>,
    pub(crate) drain: Value,
    pub(crate) audit: Value,
    /// Nodes that were started again because they found no master when they started.
    pub(crate) restarts: u64,
    pub(crate) findings: Vec<String>,
}

impl Leg {
    fn leaked(&self) -> Option<u64> {
        Some(self.drain["used_bytes"].as_u64()? + self.drain["quarantined_bytes"].as_u64()?)
    }

    fn audited(&self) -> bool {
        self.audit["adds_up"] == true
    }
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) private: bool,
    pub(crate) marks: Marks,
    pub(crate) legs: Vec<Leg>,
    /// Why the supervisor itself could not go on.
    pub(crate) failed: Option<String>,
}

impl Report {
    fn clients(&self) -> impl Iterator<Item = &Value> {
        self.legs.iter().flat_map(|leg| &leg.clients)
    }

    fn happened(&self) -> impl Iterator<Item = &Happened> {
        self.legs.iter().flat_map(|leg| &leg.happened)
    }

    fn sum(&self, name: &str) -> u64 {
        self.clients().filter_map(|line| line[name].as_u64()).sum()
    }

    /// What the watchers of leaders counted.
    fn watched(&self, name: &str) -> u64 {
        let watchers = self.legs.iter().filter_map(|leg| leg.watcher.as_ref());
        watchers.filter_map(|line| line[name].as_u64()).sum()
    }

    /// Calls that were answered and judged; an error or a refusal leaves nothing to verify.
    fn verified(&self) -> u64 {
        self.sum("operations") - self.sum("errors") - self.sum("refusals")
    }

    fn most(&self, name: &str) -> u64 {
        self.clients().filter_map(|line| line[name].as_u64()).max().unwrap_or(0)
    }

    fn by_kind(&self) -> BTreeMap<&'static str, Vec<Duration>> {
        let mut kinds: BTreeMap<&'static str, Vec<Duration>> = BTreeMap::new();
        for one in self.happened() {
            kinds.entry(one.kind).or_default().push(one.recovery);
        }
        kinds
    }

    /// Errors of all clients by kind; killed ones took theirs along.
    fn errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for line in self.clients() {
            for (kind, count) in line["kinds"].as_object().into_iter().flatten() {
                *errors.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
        errors
    }

    /// Bytes that were left anywhere.
    fn leaked(&self) -> Option<u64> {
        self.legs.iter().map(Leg::leaked).sum()
    }

    /// What the supervisor saw that must not be.
    pub(crate) fn findings(&self) -> Vec<String> {
        let found = self.legs.iter().flat_map(|leg| leg.findings.clone());
        found.chain(self.failed.clone()).collect()
    }

    /// What the clients saw, in words.
    fn told(&self) -> Vec<String> {
        let lines = self.clients().chain(self.legs.iter().filter_map(|leg| leg.watcher.as_ref()));
        let mut told = Vec::new();
        for line in lines {
            let words = ["violations", "late"].into_iter().filter_map(|name| line[name].as_array());
            told.extend(words.flatten().map(|what| {
                format!("client {}: {}", line["client"], what.as_str().unwrap_or("?"))
            }));
        }
        told
    }

    /// Everything that makes the run fail, in words.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = self.findings();
        failures.extend(self.told());
        let mut fail = |bad: bool, what: String| {
            if bad {
                failures.push(what);
            }
        };
        let (wrong, hangs) = (self.sum("wrong"), self.sum("hangs"));
        fail(wrong > 0, format!("{wrong} answers were wrong"));
        fail(hangs > 0, format!("{hangs} calls hung past their deadline"));
        let old = self.watched("accepted");
        fail(old > 0, format!("{old} requests were accepted by masters that led no longer"));
        for leg in &self.legs {
            match leg.leaked() {
                Some(0) => {}
                Some(bytes) => fail(true, format!("{bytes} bytes leaked: {}", leg.drain)),
                None => fail(true, format!("the cluster could not be drained: {}", leg.drain)),
            }
            fail(!leg.audited(), format!("the books do not balance: {}", leg.audit));
        }
        let Marks { operations, faults, kinds } = self.marks;
        let (did, met, of) = (self.verified(), self.happened().count(), self.by_kind().len());
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
        let network = if self.private { "network namespaces" } else { "loopback, no namespaces" };
        let (met, of) = (self.happened().count(), self.by_kind().len());
        line(format!("\n{met} faults of {of} kinds, {network}"));
        for leg in &self.legs {
            let Leg { masters, seconds, restarts, happened, drain, .. } = leg;
            line(format!(
                "  {masters} master{}: {} faults in {seconds} s, {restarts} starts of nodes found no \
                 master and were repeated, drained in {} ms",
                if *masters > 1 { "s on etcd" } else { "" },
                happened.len(),
                drain["took_ms"],
            ));
        }
        if self.legs.iter().any(|leg| leg.watcher.is_some()) {
            line(format!(
                "{} leaders were seen; masters that led no longer were asked {} times and accepted {}",
                self.watched("leaders"),
                self.watched("asked"),
                self.watched("accepted"),
            ));
        }
        line(format!(
            "{} verified operations ({} clients): {} values of {} MB read, {} misses, the rest puts, \
             removes and questions",
            self.verified(),
            self.clients().count(),
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
            "{} wrong, {} hangs past the deadline ({} if waits for a core are not counted), {} bytes \
             leaked, audit {}",
            self.sum("wrong"),
            self.sum("hangs"),
            self.sum("hangs_on_core"),
            self.leaked().map_or("unknown".to_owned(), |bytes| bytes.to_string()),
            if self.legs.iter().all(Leg::audited) { "clean" } else { "NOT clean" },
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
        let legs = self.legs.iter().map(|leg| {
            json!({
                "masters": leg.masters,
                "seconds": leg.seconds,
                "faults": leg.happened.len(),
                "restarts": leg.restarts,
                "drain": leg.drain,
                "audit": leg.audit,
                "watcher": leg.watcher,
                "clients": leg.clients,
            })
        });
        json!({
            "command": self.command,
            "seed": self.seed,
            "namespaces": self.private,
            "passed": self.failures().is_empty(),
            "failures": self.failures(),
            "operations": self.sum("operations"),
            "verified": self.verified(),
            "faults": self.happened().count(),
            "kinds": kinds.collect::<serde_json::Map<String, Value>>(),
            "wrong": self.sum("wrong"),
            "hangs": self.sum("hangs"),
            "hangs_on_core": self.sum("hangs_on_core"),
            "leaked_bytes": self.leaked(),
            "asked_of_old_leaders": self.watched("asked"),
            "accepted_by_old_leaders": self.watched("accepted"),
            "errors": self.errors(),
            "legs": legs.collect::<Vec<_>>(),
        })
    }
}
