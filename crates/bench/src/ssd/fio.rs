//! The floor of disks: `fio`, with direct I/O, on the same file system.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Write,
    Read,
}

impl Way {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// Where its bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// In one file; each job has a range of its own.
    One,
    /// Each block in a file of its own.
    Each,
}

/// How it asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Psync,
    Uring,
    /// The same, with memory that the kernel knows.
    Registered,
}

/// One run of `fio`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) way: Way,
    pub(crate) files: Files,
    pub(crate) engine: Engine,
    /// Bytes of one operation.
    pub(crate) block: u64,
    /// Operations at once, of one job.
    pub(crate) depth: u64,
    /// Threads that share the bytes.
    pub(crate) jobs: u64,
    /// Bytes in all.
    pub(crate) bytes: u64,
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// The program, and where its files go.
#[derive(Debug)]
pub(crate) struct Fio {
    folder: PathBuf,
    version: String,
}

impl Fio {
    /// The program, if it is installed.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let said = Command::new("fio").arg("--version").output().ok()?;
        let version = String::from_utf8(said.stdout).ok()?.trim().to_owned();
        said.status.success().then(|| Self { folder: folder.join("floor"), version })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Files for it to read and to write over.
    pub(crate) fn prepare(&self, files: Files, block: u64, bytes: u64) -> Result<()> {
        let (way, engine, depth, jobs) = (Way::Write, Engine::Psync, 1, 1);
        self.run(Task { way, files, engine, block, depth, jobs, bytes })?;
        Ok(())
    }

    /// Takes them away.
    pub(crate) fn clear(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(&self.folder)?)
    }

    /// Runs it.
    pub(crate) fn run(&self, task: Task) -> Result<Took> {
        let folder = self.folder.join(format!("{:?}", task.files));
        std::fs::create_dir_all(&folder)?;
        let bytes = task.bytes / task.jobs;
        let mut command = Command::new("fio");
        command
            .args(["--name=floor", "--direct=1", "--output-format=json", "--thread"])
            .arg(format!("--rw={}", task.way.name()))
            .args(match task.engine {
                Engine::Psync => &["--ioengine=psync"][..],
                Engine::Uring => &["--ioengine=io_uring"],
                Engine::Registered => &["--ioengine=io_uring", "--fixedbufs"],
            })
            .arg(format!("--bs={}", task.block))
            .arg(format!("--iodepth={}", task.depth))
            .arg(format!("--numjobs={}", task.jobs))
            .arg("--group_reporting")
            .arg(format!("--size={bytes}"))
            .current_dir(&folder);
        match task.files {
            Files::One => command.arg("--filename=all").arg(format!("--offset_increment={bytes}")),
            // The names are of its own making: of the job, and of the file.
            Files::Each => command
                .args(["--filename_format=$filenum.$jobnum", "--file_service_type=sequential"])
                .arg(format!("--nrfiles={}", bytes / task.block))
                .arg(format!("--filesize={}", task.block)),
        };
        let done = command.output().context("fio does not start")?;
        if !done.status.success() {
            bail!("fio failed: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        took(&done.stdout, task)
    }
}

/// Reads what it says. Some versions say a sentence before the JSON.
fn took(said: &[u8], task: Task) -> Result<Took> {
    let start = said.iter().position(|&byte| byte == b'{').context("fio said nothing")?;
    let document: Value = serde_json::from_slice(&said[start..])?;
    let job = &document["jobs"][0];
    let figure = |value: &Value| value.as_f64().context("fio left a figure out");
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    let part = &job[task.way.name()];
    let millis = figure(&part["runtime"])?;
    ensure!(part["io_bytes"].as_u64() >= Some(task.bytes), "fio moved too little");
    ensure!(millis > 0.0, "fio was done in no time; move more bytes");
    let cpu = figure(&job["usr_cpu"])? + figure(&job["sys_cpu"])?;
    Ok(Took {
        seconds: millis / 1e3,
        cpu_seconds: cpu / 100.0 * figure(&job["job_runtime"])? / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read_and_too_little_is_refused() {
        let task = Task {
            way: Way::Read,
            files: Files::One,
            engine: Engine::Psync,
            block: 1,
            depth: 1,
            jobs: 2,
            bytes: 1000,
        };
        let said = |bytes: u64, error: u32| {
            format!(
                "note: something first\n{{\"jobs\": [{{\"error\": {error}, \"job_runtime\": 400, \
                 \"usr_cpu\": 10.0, \"sys_cpu\": 15.0, \"read\": {{\"io_bytes\": {bytes}, \
                 \"runtime\": 500}}}}]}}"
            )
        };
        let read = took(said(1000, 0).as_bytes(), task).unwrap();
        assert!((read.seconds - 0.5).abs() < 1e-9 && (read.cpu_seconds - 0.1).abs() < 1e-9);
        assert!(took(said(999, 0).as_bytes(), task).is_err());
        assert!(took(said(1000, 5).as_bytes(), task).is_err());
        assert!(took(b"nothing", task).is_err());
    }
}
