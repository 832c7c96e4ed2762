//! A disk of its own for a test: a file as a loop device, and how many bytes per second processes may move
//! on it. Everything is undone when it is dropped.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system on a loop device, with a group of processes whose speed there can be set.
#[derive(Debug)]
pub(super) struct Throttle {
    device: String,
    /// Major and minor number.
    number: String,
    mounted: PathBuf,
    group: PathBuf,
    /// Whether the group is of the second version of control groups.
    second: bool,
    _folder: tempfile::TempDir,
}

impl Throttle {
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let image = folder.path().join("image");
        fs::File::create(&image)?.set_len(bytes)?;
        let device = run("losetup", &["--find", "--show", path(&image)?])?;
        let groups = Path::new("/sys/fs/cgroup");
        let second = groups.join("cgroup.controllers").exists();
        let parent = if second { groups.to_owned() } else { groups.join("blkio") };
        let group = parent.join(format!("tier-{}", std::process::id()));
        let mounted = folder.path().join("mounted");
        // From here on its drop cleans up.
        let mut this =
            Self { number: String::new(), device, mounted, group, second, _folder: folder };
        run("mkfs.ext4", &["-q", "-F", &this.device])?;
        fs::create_dir(&this.mounted)?;
        run("mount", &[&this.device, path(&this.mounted)?])?;
        if second {
            let switch = parent.join("cgroup.subtree_control");
            fs::write(switch, "+io").context("the io controller of cgroup v2 is needed")?;
        }
        fs::create_dir(&this.group).context("a control group for block devices is needed")?;
        this.number = run("lsblk", &["--noheadings", "--output", "MAJ:MIN", &this.device])?;
        Ok(this)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.mounted
    }

    /// The process and its threads, and all that it starts, are throttled from now on.
    pub(super) fn add(&self, pid: u32) -> Result<()> {
        Ok(fs::write(self.group.join("cgroup.procs"), pid.to_string())?)
    }

    /// Bytes per second for reads and for writes; 0: as fast as it can.
    pub(super) fn limit(&self, bytes: u64) -> Result<()> {
        if self.second {
            let speed = if bytes == 0 { "max".to_owned() } else { bytes.to_string() };
            let line = format!("{} rbps={speed} wbps={speed}", self.number);
            return fs::write(self.group.join("io.max"), line).context("writing io.max");
        }
        for file in ["blkio.throttle.write_bps_device", "blkio.throttle.read_bps_device"] {
            fs::write(self.group.join(file), format!("{} {bytes}", self.number))
                .with_context(|| format!("writing {file}"))?;
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Each step may find nothing to do.
        let _ = self.limit(0);
        let _ = run("umount", &[&self.mounted.to_string_lossy()]);
        let _ = run("losetup", &["--detach", &self.device]);
        let _ = fs::remove_dir(&self.group);
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a folder with a plain name is needed")
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("{program} is needed, and root"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
