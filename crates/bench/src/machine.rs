//! Where a figure comes from: machine, commit, command. A figure without them is a rumour.

use mooncrate_mem::clock::boottime;
use mooncrate_mem::crc;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Clock readings that are timed.
const CLOCK_READINGS: u32 = 10_000;

/// What the head of every table says.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) huge_pages: String,
    /// Load average when the run began: a busy machine measures its neighbours.
    pub(crate) load: String,
    pub(crate) checksum: &'static str,
    /// What reading the clock adds to each timed call.
    pub(crate) clock_ns: f64,
    pub(crate) commit: String,
    pub(crate) command: String,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let memory = text("/proc/meminfo");
        let kib: u64 = value_of(&memory, "MemTotal")
            .and_then(|value| value.split_whitespace().next()?.parse().ok())
            .unwrap_or(0);
        let load = text("/proc/loadavg");
        Self {
            cpu: value_of(&text("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib >> 20,
            kernel: text("/proc/sys/kernel/osrelease"),
            huge_pages: chosen(&text("/sys/kernel/mm/transparent_hugepage/enabled")),
            load: load.split_whitespace().next().unwrap_or("unknown").to_owned(),
            checksum: crc::kernel_name(),
            clock_ns: clock_ns(),
            commit: commit(),
            command: command_line(std::env::args()),
        }
    }

    /// One line, for the head of a table.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}, {} cores, {} GiB, Linux {}, transparent huge pages {}, checksum kernel {}, load {} \
             at the start, clock {:.0} ns · commit {} · `{}`",
            self.cpu,
            self.cores,
            self.memory_gib,
            self.kernel,
            self.huge_pages,
            self.checksum,
            self.load,
            self.clock_ns,
            self.commit,
            self.command,
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_gib": self.memory_gib,
            "kernel": self.kernel,
            "huge_pages": self.huge_pages,
            "load_at_start": self.load,
            "checksum_kernel": self.checksum,
            "clock_ns": self.clock_ns,
            "commit": self.commit,
            "command": self.command,
        })
    }
}

/// The value of the first `name : value` line.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The word in brackets, as the kernel shows a choice.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("unknown", |(word, _)| word).to_owned()
}

/// The commit of the tree that this program was built from, and whether the tree differs from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let done = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(arguments)
            .output()
            .ok()
            .filter(|done| done.status.success())?;
        Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    match git(&["status", "--porcelain"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}-dirty"),
    }
}

/// What was typed, without the folder that the program happens to lie in.
fn command_line(mut arguments: impl Iterator<Item = String>) -> String {
    arguments.next();
    let mut line = "mooncrate-bench".to_owned();
    for argument in arguments {
        line.push(' ');
        line.push_str(&argument);
    }
    line
}

fn clock_ns() -> f64 {
    let before = boottime();
    for _ in 0..CLOCK_READINGS {
        std::hint::black_box(boottime());
    }
    boottime().since(before).as_secs_f64() * 1e9 / f64::from(CLOCK_READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(value_of(text, "model name"), Some("A: B"));
        assert_eq!(value_of(text, "model"), None);
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen(""), "unknown");
    }

    #[test]
    fn the_command_names_no_folder() {
        let typed = ["/somewhere/mooncrate-bench", "paths", "--quick"].map(str::to_owned);
        assert_eq!(command_line(typed.into_iter()), "mooncrate-bench paths --quick");
    }

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.clock_ns > 0.0);
        assert!(machine.line().contains(&machine.commit));
    }
}
