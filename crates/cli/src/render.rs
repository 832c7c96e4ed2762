//! All that is printed: one calm sentence, then a table; or one JSON document. The only file that
//! writes to stdout, except for the raw value of a `get` and the live screen of `top`.

use crate::cmd::bench::{COLUMNS, Row};
use crate::cmd::doctor::Finding;
use crate::cmd::look::Look;
use crate::cmd::replay::Report;
use crate::cmd::top::View;
use crate::config::Layers;
use crate::failure::Failure;
use anstream::stream::IsTerminal;
use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table, presets};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Locator, Looked};
use mooncrate_core::shown::{prints, shown};
use mooncrate_master::admin::key_json;
use mooncrate_wire::message::{Listed, Removed, SegmentRow, TenantRow};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Columns of a snapshot that nobody watches.
const SNAPSHOT_WIDTH: usize = 110;

/// Where output goes and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
}

/// What listens where, once a server has started.
#[derive(Debug)]
pub(crate) struct Started {
    /// The master of this process.
    pub(crate) master: Option<String>,
    /// The master that a node alone has joined.
    pub(crate) joined: Option<String>,
    /// The node's TCP address.
    pub(crate) data: Option<String>,
    /// The node's socket for shared memory.
    pub(crate) unix: Option<PathBuf>,
    /// The admin HTTP.
    pub(crate) admin: Option<String>,
    /// The metrics, for other machines.
    pub(crate) metrics: Option<String>,
    /// The gRPC door.
    pub(crate) grpc: Option<String>,
    /// The metadata server for Mooncake's programs.
    pub(crate) metadata: Option<String>,
    /// Where Mooncake's dummy stores ask.
    pub(crate) door: Option<String>,
    /// The node's name.
    pub(crate) node_name: Option<String>,
    /// The node's memory.
    pub(crate) segment_bytes: Option<u64>,
    /// What example commands must say to find the master; empty when it is where they look.
    pub(crate) find_master: String,
    /// How this program was called, so that the examples can be pasted.
    pub(crate) program: String,
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// A table without lines; `right` names the columns that hold numbers.
pub(crate) fn table(header: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
    for index in 0..header.len() {
        let column = table.column_mut(index).expect("the header made it");
        column.set_padding((u16::from(index != 0), 1));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `1 key`, `2 keys`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {one}{s}")
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).map_err(|e| unwritten(&e))
}

fn print_json(value: &Value) -> Result<(), Failure> {
    print(&one_line(value))
}

/// JSON that may reach a terminal: what does not print is escaped as JSON escapes it, so that programs read
/// exactly what was there. Outside of its texts JSON has nothing to escape.
fn one_line(value: &Value) -> String {
    let text = value.to_string();
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c == ' ' || c == '\\' || prints(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(line, "\\u{unit:04x}").expect("a String takes it");
            }
        }
    }
    line
}

impl Output {
    /// A token, alone on its line.
    pub(crate) fn token(self, token: &mooncrate::Token) -> Result<(), Failure> {
        let text = token.to_text();
        if self.json { print_json(&json!({ "token": text })) } else { print(&text) }
    }
}

/// Whether a person would see what is written to stdout.
pub(crate) fn to_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The raw value on stdout, with nothing added.
pub(crate) fn print_raw(value: &[u8]) -> Result<(), Failure> {
    crate::progress::write_all(&mut io::stdout().lock(), value).map_err(|e| unwritten(&e))
}

impl Output {
    /// A server is ready.
    pub(crate) fn started(self, started: &Started) -> Result<(), Failure> {
        if self.json {
            return print_json(&json!({
                "event": "started",
                "pid": std::process::id(),
                "master": started.master,
                "joined": started.joined,
                "data": started.data,
                "unix": started.unix,
                "admin": started.admin,
                "metrics": started.metrics,
                "grpc": started.grpc,
                "metadata": started.metadata,
                "door": started.door,
                "node_name": started.node_name,
                "segment_bytes": started.segment_bytes,
            }));
        }
        print(&started_screen(started))
    }

    /// A put is done.
    pub(crate) fn put(self, key: &[u8], len: u64, new: bool) -> Result<(), Failure> {
        if self.json {
            let state = if new { "stored" } else { "already there" };
            return print_json(&with(key_json(key), json!({ "state": state, "bytes": len })));
        }
        let shown = key::show(key);
        print(&if new {
            format!("stored {shown}, {}", bytes(len))
        } else {
            format!("{shown} is already there and keeps its value")
        })
    }

    /// A value is in a file.
    pub(crate) fn got(self, key: &[u8], len: u64, file: &Path) -> Result<(), Failure> {
        let file = file.display();
        if self.json {
            let more = json!({ "bytes": len, "file": file.to_string() });
            return print_json(&with(key_json(key), more));
        }
        print(&format!("wrote {} of {} to {file}", bytes(len), key::show(key)))
    }

    /// Keys were removed, or were not there.
    pub(crate) fn removed(self, results: &[(Vec<u8>, bool)]) -> Result<(), Failure> {
        if self.json {
            let state = |there: bool| if there { "removed" } else { "no such key" };
            let rows = results
                .iter()
                .map(|(key, there)| with(key_json(key), json!({ "state": state(*there) })));
            return print_json(&json!({ "keys": rows.collect::<Vec<_>>() }));
        }
        let gone: Vec<_> = results.iter().filter(|(_, there)| *there).collect();
        match gone.as_slice() {
            [] => Ok(()),
            [(key, _)] => print(&format!("removed {}", key::show(key))),
            many => print(&format!("removed {}", counted(many.len() as u64, "key"))),
        }
    }

    /// Keys were removed by a pattern.
    pub(crate) fn removed_matching(self, removed: &Removed) -> Result<(), Failure> {
        let Removed { removed, deferred, leased, .. } = *removed;
        if self.json {
            return print_json(&json!({
                "removed": removed, "deferred": deferred, "leased": leased,
            }));
        }
        let mut line = format!("removed {}", counted(removed, "key"));
        if leased > 0 {
            let _ = write!(line, "; {leased} stay, because somebody holds a lease");
        }
        if deferred > 0 {
            let _ = write!(line, "; {deferred} are hidden, their owners have not answered yet");
        }
        print(&line)
    }

    /// What tenants use.
    pub(crate) fn tenants(self, name: Option<&str>, rows: &[TenantRow]) -> Result<(), Failure> {
        let tenant = |row: &TenantRow| name.map_or_else(|| row.tenant.to_string(), str::to_owned);
        if self.json {
            let rows = rows.iter().map(|row| {
                json!({
                    "tenant": tenant(row), "used_bytes": row.used_bytes,
                    "hard_bytes": row.hard_bytes, "quota": row.quota,
                })
            });
            return print_json(&json!({ "tenants": rows.collect::<Vec<_>>() }));
        }
        if rows.is_empty() {
            return print("no tenant has anything, or a quota");
        }
        for row in rows {
            let quota = row.quota.map_or_else(|| "no quota".to_owned(), bytes);
            let (used, hard) = (bytes(row.used_bytes), bytes(row.hard_bytes));
            print(&format!("{}: {used} of {quota}, {hard} pinned hard", shown(&tenant(row))))?;
        }
        Ok(())
    }

    /// How far a drain is. `took` is the time that was waited for it.
    pub(crate) fn drained(
        self,
        node: &str,
        stat: &DrainStat,
        took: Duration,
    ) -> Result<(), Failure> {
        let gone = stat.start_bytes.saturating_sub(stat.left_bytes);
        // Bytes per microsecond are megabytes per second.
        let rate = u128::from(gone) / took.as_micros().max(1);
        if self.json {
            let took = json!({ "seconds": took.as_secs_f64() });
            return print_json(&with(mooncrate_master::admin::drain_json(node, stat), took));
        }
        let node = shown(node);
        if stat.draining == 0 {
            return print(&format!("{node} takes values"));
        }
        if !stat.drained() {
            return print(&format!(
                "{node} is being drained: {} and {} left, {} stuck",
                counted(stat.left_replicas, "replica"),
                bytes(stat.left_bytes),
                stat.stuck,
            ));
        }
        print(&format!(
            "{node} is empty: {} moved, {} dropped, {} in {:.1} s, {rate} MB/s; it may stop",
            counted(stat.moved, "replica"),
            counted(stat.dropped, "object"),
            bytes(gone),
            took.as_secs_f64(),
        ))
    }

    /// Keys that were found; `more`: the limit cut the list.
    pub(crate) fn listing(self, entries: &[Listed], more: bool) -> Result<(), Failure> {
        if self.json {
            let rows = entries.iter().map(mooncrate_master::admin::listed_json);
            return print_json(&json!({ "keys": rows.collect::<Vec<_>>(), "more": more }));
        }
        if entries.is_empty() {
            return print("no keys");
        }
        let total = entries.iter().map(|entry| entry.len).sum();
        let rows = entries
            .iter()
            .map(|entry| vec![entry.key.to_string(), bytes(entry.len), entry.replicas.to_string()]);
        let table = table(&["KEY", "SIZE", "REPLICAS"], &[1, 2], rows.collect());
        let rest = if more { "; more follow, --limit COUNT lists them" } else { "" };
        let keys = counted(entries.len() as u64, "key");
        print(&format!("{keys}, {}{rest}\n\n{}", bytes(total), table.trim_fmt()))
    }

    /// The cluster in numbers.
    pub(crate) fn stat(self, look: &Look) -> Result<(), Failure> {
        if self.json {
            return print_json(&mooncrate_master::admin::stat_json(&look.stat));
        }
        print(&stat_screen(look))
    }

    /// One value: how long it is, and where its copies are.
    pub(crate) fn value(self, key: &[u8], looked: &Looked, look: &Look) -> Result<(), Failure> {
        if self.json {
            return print_json(&with(key_json(key), value_json(looked, look)));
        }
        print(&value_screen(key, looked, look))
    }

    /// The cluster at one moment, with its rates.
    pub(crate) fn top(self, view: &View) -> Result<(), Failure> {
        if self.json {
            return print_json(&view.json());
        }
        print(&view.lines(SNAPSHOT_WIDTH, usize::MAX).join("\n"))
    }

    /// What the machine offers.
    pub(crate) fn doctor(self, findings: &[Finding]) -> Result<(), Failure> {
        if self.json {
            return print_json(&crate::cmd::doctor::json(findings));
        }
        print(&crate::cmd::doctor::screen(findings))
    }

    /// All settings.
    pub(crate) fn config(self, layers: &Layers) -> Result<(), Failure> {
        if self.json {
            let rows = layers.rows().map(|(name, value, origin)| {
                (name.to_owned(), json!({ "value": value, "from": origin.to_string() }))
            });
            return print_json(&Value::Object(rows.collect()));
        }
        let rows = layers
            .rows()
            .map(|(name, value, from)| vec![name.to_owned(), value.to_owned(), from.to_string()]);
        print(&table(&["SETTING", "VALUE", "FROM"], &[], rows.collect()).trim_fmt())
    }

    /// What a bench measured.
    pub(crate) fn bench(self, sentence: &str, rows: &[Row]) -> Result<(), Failure> {
        if self.json {
            let rows = rows.iter().map(Row::json);
            return print_json(&json!({ "rows": rows.collect::<Vec<_>>() }));
        }
        let right: Vec<usize> = (1..COLUMNS.len()).collect();
        let rows = rows.iter().map(Row::cells).collect();
        print(&format!("{sentence}\n\n{}", table(&COLUMNS, &right, rows).trim_fmt()))
    }

    /// What policies found of one trace: a line of JSON, or a screen. `first`: nothing was shown before it.
    pub(crate) fn replay(self, report: &Report, first: bool) -> Result<(), Failure> {
        if self.json {
            return print_json(&report.json());
        }
        let gap = if first { "" } else { "\n\n" };
        print(&format!("{gap}{}", report.screen()))
    }

    /// Something that stops nothing, in one line on stderr.
    pub(crate) fn warning(self, words: &str) {
        let mut err = anstream::stderr().lock();
        // Nobody is left to tell when stderr is closed.
        let _ = if self.json {
            writeln!(err, "{}", one_line(&json!({ "warning": words })))
        } else {
            writeln!(err, "mooncrate: warning: {words}")
        };
    }

    /// A failure, on stderr.
    pub(crate) fn failure(self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        let mut err = anstream::stderr().lock();
        // Nobody is left to tell when stderr is closed.
        let _ = if self.json {
            let (error, hint) = (&failure.message, &failure.hint);
            let exit = failure.exit as u8;
            let told = json!({ "error": error, "hint": hint, "exit": exit });
            writeln!(err, "{}", one_line(&told))
        } else {
            let hint = failure.hint.as_ref().map(|hint| format!("\n  {hint}")).unwrap_or_default();
            writeln!(err, "mooncrate: {}{hint}", failure.message)
        };
    }
}

/// A reader that has gone is no failure worth a word; everything else is.
fn unwritten(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::silent();
    }
    Failure::failed(format!("cannot write the output: {error}"))
}

fn started_screen(started: &Started) -> String {
    let what = match (&started.master, &started.data, &started.unix) {
        (Some(_), None, None) => "The master is ready.",
        (None, ..) => "The node is ready.",
        (Some(_), ..) => "Mooncrate is ready.",
    };
    let mut lines = vec![what.to_owned(), String::new()];
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("  {name:<9}{value}"));
        }
    };
    line("master", started.master.clone());
    line("joined", started.joined.clone());
    line("data", started.data.clone());
    line("memory", started.unix.as_ref().map(|path| format!("unix:{}", path.display())));
    line("admin", started.admin.clone());
    line("metrics", started.metrics.clone());
    line("grpc", started.grpc.clone());
    line("metadata", started.metadata.clone());
    line("door", started.door.clone());
    line("segment", started.segment_bytes.map(bytes));
    line("name", started.node_name.clone());
    if started.master.is_some() {
        let (program, at) = (&started.program, &started.find_master);
        lines.push(String::new());
        lines.push("Try, in another terminal:".to_owned());
        lines.push(String::new());
        lines.push(format!("  {program} put hello --value world{at}"));
        lines.push(format!("  {program} get hello{at}"));
        lines.push(format!("  {program} stat{at}"));
    }
    lines.push(String::new());
    lines.push("Ctrl-C stops it.".to_owned());
    lines.join("\n")
}

fn stat_screen(look: &Look) -> String {
    let stat = &look.stat;
    let state = if stat.rebuilding { "; the index is being rebuilt" } else { "" };
    let sentence = format!(
        "{}, {}; {} of {} used{state}",
        counted(u64::from(stat.nodes), "node"),
        counted(stat.objects, "value"),
        bytes(stat.used_bytes),
        bytes(stat.capacity_bytes),
    );
    let leader = match stat.leader.as_str() {
        "" => String::new(),
        leader => format!(", {leader} leads"),
    };
    let facts = [
        ("epoch", format!("{}{leader}", stat.epoch.0)),
        ("open puts", stat.open_puts.to_string()),
        ("quarantined", bytes(stat.quarantined_bytes)),
        ("largest free run", bytes(stat.largest_free_run)),
        ("evicted", format!("{}, {}", stat.counters.evicted, bytes(stat.counters.evicted_bytes))),
        ("index", bytes(stat.index_bytes)),
    ];
    let facts: Vec<String> = facts.map(|(name, value)| format!("  {name:<18}{value}")).to_vec();
    if stat.segments.is_empty() {
        return format!("{sentence}\n\n{}\n\nno segments are mounted", facts.join("\n"));
    }
    let rows = stat.segments.iter().map(|row| {
        let state = if row.open { "open" } else { "closed" };
        vec![
            row.offer.segment.to_string(),
            shown(&look.node(row)).to_string(),
            medium(row),
            state.to_owned(),
            row.objects.to_string(),
            bytes(row.used_bytes),
            bytes(row.quarantined_bytes),
            bytes(row.offer.bytes),
        ]
    });
    let header =
        ["SEGMENT", "NODE", "MEDIUM", "STATE", "REPLICAS", "USED", "QUARANTINED", "CAPACITY"];
    let table = table(&header, &[4, 5, 6, 7], rows.collect());
    format!("{sentence}\n\n{}\n\n{}", facts.join("\n"), table.trim_fmt())
}

/// Where each copy is: segment, name of its node, medium, stripe. The node and the medium are `-` if the
/// segment left between the two questions.
fn places(located: &Located, look: &Look) -> Vec<(String, String, String, u8)> {
    let place = |copy: &Locator| {
        let row = look.stat.segments.iter().find(|row| row.offer.segment == copy.segment);
        let node = row.map_or_else(|| "-".to_owned(), |row| look.node(row));
        let medium = row.map_or_else(|| "-".to_owned(), medium);
        (copy.segment.to_string(), node, medium, copy.stripe)
    };
    located.replicas.iter().map(place).collect()
}

fn medium(row: &SegmentRow) -> String {
    format!("{:?}", row.offer.medium).to_ascii_lowercase()
}

fn value_json(looked: &Looked, look: &Look) -> Value {
    let state = |state: &str| json!({ "state": state });
    match looked {
        Looked::Missing => state("no such key"),
        Looked::Writing => state("being written"),
        Looked::Here { len, .. } => with(state("stored"), json!({ "bytes": len })),
        Looked::At(located) => {
            let copies = places(located, look).into_iter().map(|(segment, node, medium, stripe)| {
                json!({ "segment": segment, "node_name": node, "medium": medium, "stripe": stripe })
            });
            let more = json!({
                "bytes": located.len(),
                "object": located.object.to_string(),
                "replicas": copies.collect::<Vec<_>>(),
            });
            with(state("stored"), more)
        }
    }
}

fn value_screen(key: &[u8], looked: &Looked, look: &Look) -> String {
    let key = key::show(key);
    match looked {
        Looked::Missing => format!("{key} has no value"),
        Looked::Writing => format!("{key} is being written; nobody can read it yet"),
        Looked::Here { len, .. } => format!("{key}, {}", bytes(*len)),
        Looked::At(located) => {
            let rows = places(located, look)
                .into_iter()
                .map(|(segment, node, medium, stripe)| {
                    vec![segment, shown(&node).to_string(), medium, stripe.to_string()]
                })
                .collect();
            let table = table(&["SEGMENT", "NODE", "MEDIUM", "STRIPE"], &[3], rows);
            format!(
                "{key}, {}, object {}\n\n{}",
                bytes(located.len()),
                located.object,
                table.trim_fmt()
            )
        }
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
