//! The machine as files: what the kernel tells under `/proc` and `/sys`, and what lies on the search
//! paths. Under a root of its own, so that tests can show it another machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A machine to look at.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// Where its files are.
    pub(super) root: PathBuf,
    /// Where its programs are, as `PATH` says it.
    pub(super) programs: OsString,
    /// Where more of its libraries are, as `LD_LIBRARY_PATH` says it.
    pub(super) libraries: OsString,
}

impl Machine {
    /// A file of one short text; `None`: not there, or not for us.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    /// A file of one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// A row of `/proc/meminfo`: bytes where it says kB, else the plain number.
    pub(super) fn meminfo(&self, name: &str) -> Option<u64> {
        let table = self.text("/proc/meminfo")?;
        let row = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut words = row.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        Some(if words.next() == Some("kB") { number << 10 } else { number })
    }

    /// Flags of the first processor.
    pub(super) fn processor_flags(&self) -> Vec<String> {
        let table = self.text("/proc/cpuinfo").unwrap_or_default();
        let row = table.lines().find(|line| line.starts_with("flags"));
        let flags = row.and_then(|row| row.split_once(':')).map_or("", |(_, flags)| flags);
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// The choice in brackets, as in `always [madvise] never`.
    pub(super) fn choice(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// A limit that this process's control group sets, in the second or the first version of the
    /// interface; `None`: no limit is known. Limits of outer groups count too: the lowest wins.
    pub(super) fn group_limit(&self, second: &str, first: &str) -> Option<u64> {
        let groups = self.text("/proc/self/cgroup").unwrap_or_default();
        let mut limits = Vec::new();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let (base, file) = match kinds {
                "" => ("/sys/fs/cgroup".to_owned(), second),
                kinds if kinds.split(',').any(|kind| first.starts_with(kind)) => {
                    (format!("/sys/fs/cgroup/{}", first.split('.').next().unwrap_or("")), first)
                }
                _ => continue,
            };
            // From the group outwards. Inside a container its own group is the root.
            for above in Path::new(group).ancestors() {
                let above = above.display().to_string();
                limits.extend(self.number(&format!("{base}/{}/{file}", above.trim_matches('/'))));
            }
        }
        limits.into_iter().filter(|limit| *limit < 1 << 60).min()
    }

    /// Where a program is.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        let mut more = std::env::split_paths(&self.programs).collect::<Vec<_>>();
        // Tools of the administrator, which a user's path often leaves out.
        more.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        more.into_iter().map(|folder| folder.join(name)).find(|path| self.is_file(path))
    }

    /// Where a library is: on the search path, or where distributions put it.
    pub(super) fn library(&self, name: &str) -> Option<PathBuf> {
        const FOLDERS: &[&str] = &[
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/nvidia/lib64",
            "/usr/local/cuda/compat",
            "/usr/lib/wsl/lib",
        ];
        let mut folders = std::env::split_paths(&self.libraries).collect::<Vec<_>>();
        folders.extend(FOLDERS.iter().map(PathBuf::from));
        folders.into_iter().map(|folder| folder.join(name)).find(|path| self.is_file(path))
    }

    fn is_file(&self, path: &Path) -> bool {
        path.strip_prefix("/").is_ok_and(|inner| self.root.join(inner).is_file())
    }
}
