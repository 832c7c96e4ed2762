//! What a verified workload counts, and the clock that calls are timed by.
//!
//! A call must end by its deadline; one that ends more than [`LATE`] after it is a hang. Time in which the
//! whole process stood still (SIGSTOP) does not count, so calls are timed by a clock that a thread of this
//! process pushes on and that stops when the process does; how long it stood still is told. Time in which
//! the calling thread was ready to go on and the machine had no core for it does count. The kernel counts
//! that per thread, so beside the hangs it is told how many are left without it: those that are the
//! fault of the program and not of a machine with too much to do.

use mooncrate::Error;
use mooncrate_wire::clock::boottime;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a call may take beyond its deadline.
pub(crate) const LATE: Duration = Duration::from_millis(500);
/// Time between two pushes of the clock.
const PUSH: Duration = Duration::from_millis(10);
/// A push that took longer than this and [`PUSH`] was a stop of the process: no machine that others can
/// use as well lets a thread wait for so long, and no stop of a test is shorter.
const STOPPED: Duration = Duration::from_secs(1);

/// Refusals that the contract allows at any time, and that say when to ask again. They are counted,
/// but they are no trouble that a cluster recovers from.
const LEGAL: &[&str] = &[
    "Put.Held",
    "Put.Busy",
    "Put.Reclaiming",
    "Put.InProgress",
    "Remove.Leased",
    "Remove.InProgress",
    "Remove.Deferred",
];

/// Counters of one process.
#[derive(Debug)]
pub(crate) struct Tally {
    call_time: Duration,
    awake_ms: AtomicU64,
    operations: AtomicU64,
    bytes: AtomicU64,
    views: AtomicU64,
    misses: AtomicU64,
    refusals: AtomicU64,
    errors: AtomicU64,
    hangs: AtomicU64,
    /// Those of them that waiting for a core does not explain.
    hangs_on_core: AtomicU64,
    /// How long the process stood still.
    still_ms: AtomicU64,
    slowest_ms: AtomicU64,
    /// The longest that a call waited for a core.
    coreless_ms: AtomicU64,
    /// When the last trouble was met and when the last call went well, by the clock of the machine.
    trouble_at: AtomicU64,
    well_at: AtomicU64,
    kinds: Mutex<BTreeMap<String, u64>>,
    slow: Mutex<Vec<String>>,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    began_ms: u64,
    coreless_ms: u64,
}

impl Tally {
    pub(crate) fn new(call_time: Duration) -> Self {
        Self {
            call_time,
            awake_ms: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            views: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            hangs: AtomicU64::new(0),
            hangs_on_core: AtomicU64::new(0),
            still_ms: AtomicU64::new(0),
            slowest_ms: AtomicU64::new(0),
            coreless_ms: AtomicU64::new(0),
            trouble_at: AtomicU64::new(0),
            well_at: AtomicU64::new(0),
            kinds: Mutex::default(),
            slow: Mutex::default(),
        }
    }

    /// Pushes the clock once; called in a loop by one thread.
    pub(crate) fn push(&self) {
        let before = boottime();
        std::thread::sleep(PUSH);
        let gone = boottime().since(before);
        let gone_ms = gone.as_millis() as u64;
        let clock = if gone > STOPPED + PUSH { &self.still_ms } else { &self.awake_ms };
        clock.fetch_add(gone_ms, Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.awake_ms.load(Ordering::Relaxed)
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Call {
        Call { began_ms: self.now_ms(), coreless_ms: coreless_ms() }
    }

    /// A call has ended. `what` names it in a report.
    pub(crate) fn end(&self, call: Call, what: &str) {
        let took_ms = self.now_ms().saturating_sub(call.began_ms);
        let coreless_ms = coreless_ms().saturating_sub(call.coreless_ms);
        self.slowest_ms.fetch_max(took_ms, Ordering::Relaxed);
        self.coreless_ms.fetch_max(coreless_ms, Ordering::Relaxed);
        if self.is_late(took_ms) {
            self.hangs.fetch_add(1, Ordering::Relaxed);
            let on_core = self.is_late(took_ms.saturating_sub(coreless_ms));
            self.hangs_on_core.fetch_add(u64::from(on_core), Ordering::Relaxed);
            self.tell(format!("{what} took {took_ms} ms, {coreless_ms} ms of it without a core"));
        }
    }

    fn is_late(&self, took_ms: u64) -> bool {
        u128::from(took_ms) > (self.call_time + LATE).as_millis()
    }

    /// A call that is not known to have ended.
    pub(crate) fn hang(&self, what: String) {
        self.hangs.fetch_add(1, Ordering::Relaxed);
        self.hangs_on_core.fetch_add(1, Ordering::Relaxed);
        self.tell(what);
    }

    fn tell(&self, what: String) {
        self.slow.lock().expect("no counter panics").push(what);
    }

    /// One answer for one key.
    pub(crate) fn answer<T>(&self, result: &Result<T, Error>) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let now = boottime().0;
        let Err(error) = result else {
            self.well_at.fetch_max(now, Ordering::Relaxed);
            return;
        };
        let kind = kind(error);
        if LEGAL.contains(&&*kind) {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        } else {
            self.errors.fetch_add(1, Ordering::Relaxed);
            self.trouble_at.fetch_max(now, Ordering::Relaxed);
        }
        *self.kinds.lock().expect("no counter panics").entry(kind).or_default() += 1;
    }

    /// What a get or view found.
    pub(crate) fn found(&self, found: Option<&[u8]>) {
        match found {
            Some(value) => self.bytes.fetch_add(value.len() as u64, Ordering::Relaxed),
            None => self.misses.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// A view that was looked at once more before it went.
    pub(crate) fn view_released(&self) {
        self.views.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn hangs(&self) -> u64 {
        self.hangs.load(Ordering::Relaxed)
    }

    /// The counters as JSON.
    pub(crate) fn json(&self) -> Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let now = boottime().0;
        let ago = |at: &AtomicU64| match read(at) {
            0 => Value::Null,
            at => json!(now.saturating_sub(at) / 1_000_000),
        };
        json!({
            "operations": read(&self.operations),
            "bytes": read(&self.bytes),
            "views": read(&self.views),
            "misses": read(&self.misses),
            "refusals": read(&self.refusals),
            "errors": read(&self.errors),
            "hangs": read(&self.hangs),
            "hangs_on_core": read(&self.hangs_on_core),
            "still_ms": read(&self.still_ms),
            "slowest_ms": read(&self.slowest_ms),
            "coreless_ms": read(&self.coreless_ms),
            "trouble_ago_ms": ago(&self.trouble_at),
            "well_ago_ms": ago(&self.well_at),
        })
    }

    /// Errors and refusals by kind.
    pub(crate) fn kinds(&self) -> BTreeMap<String, u64> {
        self.kinds.lock().expect("no counter panics").clone()
    }

    /// The late calls, in words.
    pub(crate) fn late(&self) -> Vec<String> {
        self.slow.lock().expect("no counter panics").clone()
    }
}

/// How long this thread has waited for a core since it began, as the kernel counts it; 0 if it does not.
fn coreless_ms() -> u64 {
    thread_local! {
        static COUNTS: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    // Time on a core, time waiting for one, number of turns.
    let mut text = [0; 96];
    let read = COUNTS.with(|file| file.as_ref()?.read_at(&mut text, 0).ok()).unwrap_or(0);
    let waited = text[..read].split(|byte| *byte == b' ').nth(1);
    let waited = waited.and_then(|digits| str::from_utf8(digits).ok()?.parse::<u64>().ok());
    waited.unwrap_or(0) / 1_000_000
}

/// The variants of an error, outermost first, without the facade: `Put.Held`, `Transfer.Call.Io`.
fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    let mut names = Vec::new();
    let mut rest = text.as_str();
    loop {
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        names.push(&rest[..end]);
        let inner = rest[end..].strip_prefix('(');
        // What a restless object's last place said is more than the fact.
        let inner = inner.or_else(|| Some(rest[end..].split_once("last: ")?.1));
        match inner {
            Some(inner) if inner.starts_with(char::is_uppercase) => rest = inner,
            _ => break,
        }
    }
    names.retain(|name| *name != "Client");
    names.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_client::Error as ClientError;
    use mooncrate_core::error::PutError;
    use mooncrate_transfer::TransferError;

    #[test]
    fn kinds_name_the_variants() {
        let held = Error::Client(ClientError::Put(PutError::Held { after_ms: 3 }));
        assert_eq!(kind(&held), "Put.Held");
        let restless = ClientError::Restless { tries: 4, last: TransferError::Fenced };
        assert_eq!(kind(&Error::Client(restless)), "Restless.Fenced");
        let read = mooncrate_wire::DataError::Corrupt;
        let corrupt = Error::Client(ClientError::Transfer(read.into()));
        assert_eq!(kind(&corrupt), "Transfer.Data.Corrupt");
    }

    #[test]
    fn late_calls_are_hangs_and_legal_refusals_are_no_trouble() {
        let tally = Tally::new(Duration::from_millis(100));
        let call = tally.begin();
        tally.awake_ms.fetch_add(600, Ordering::Relaxed);
        tally.end(call, "get");
        assert_eq!(tally.hangs(), 0, "on the edge");
        tally.awake_ms.fetch_add(1, Ordering::Relaxed);
        tally.end(call, "get");
        assert_eq!(tally.hangs(), 1);
        assert!(tally.late()[0].starts_with("get took 601 ms, 0 ms of it"), "{:?}", tally.late());
        tally.answer::<()>(&Err(Error::Client(ClientError::Put(PutError::Busy { after_ms: 1 }))));
        assert_eq!(tally.json()["trouble_ago_ms"], Value::Null);
        let restless = ClientError::Restless { tries: 4, last: TransferError::Fenced };
        tally.answer::<()>(&Err(Error::Client(restless)));
        assert_ne!(tally.json()["trouble_ago_ms"], Value::Null);
        assert_eq!(
            (&tally.json()["refusals"], &tally.json()["operations"]),
            (&json!(1), &json!(2))
        );
    }
}
