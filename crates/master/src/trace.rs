//! A trace that a master led at an address of this machine. A master that finds no state cannot tell a new cluster
//! from one whose state was deleted: nodes of the second one may be stopped and still serve by the leases of its last
//! master. The trace lies apart from the state, in memory of this boot, so whoever deletes the state leaves it.
//!
//! ```text
//! 4f1c…-boot-id 123456789      the boot, and when its master last ticked on the boot's clock, in nanoseconds
//! ```
//!
//! What must stay true: it is there before the first lease is granted, and an older time is never written later. The
//! format is in `docs/formats/state.md`.

use mooncrate_core::Now;
use mooncrate_wire::Address;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::files::read_small;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it says that its master lives.
const RENEW: Duration = Duration::from_secs(1);
/// After this long without its master no node serves by that master's leases: nodes of this machine extend them for
/// half a registration (10 s) while nobody listens at the address, and two seconds are for a tick that came late.
const OVER: Duration = Duration::from_secs(15);
/// A boot id and a number.
const BYTES_MAX: u64 = 256;

/// The file, while its master leads.
#[derive(Debug)]
pub(crate) struct Trace {
    file: File,
    path: PathBuf,
    boot: String,
    renewed: Now,
    /// When it was left, if another master had led until then: that one's nodes may serve.
    followed: Option<Now>,
}

/// Where the master at this address leaves its trace: in memory where the system has some, named by user, network and
/// address. Containers may share the memory, and have a port of the same number each.
pub fn path(address: &Address) -> PathBuf {
    let shared = Path::new("/dev/shm");
    let runtime = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = if shared.is_dir() { Some(shared.into()) } else { runtime() };
    let network = match address {
        Address::Tcp(_) => std::fs::metadata("/proc/self/ns/net").map_or(0, |about| about.ino()),
        Address::Unix(_) => 0,
    };
    let name = address.to_string().replace('/', "_");
    folder.unwrap_or_else(std::env::temp_dir).join(format!("{}{network}-{name}", prefix()))
}

/// What the names of all traces of this user begin with.
fn prefix() -> String {
    format!("mooncrate-{}-master-", geteuid().as_raw())
}

impl Trace {
    /// Leaves a trace; and whether a master led there whose nodes may still serve. A file that cannot be read or
    /// written proves nothing, so it counts as one.
    pub(crate) fn leave(path: &Path) -> (Option<Self>, bool) {
        match Self::open(path) {
            Ok(trace) => {
                trace.sweep();
                let followed = trace.followed.is_some();
                (Some(trace), followed)
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%error, %path, "no trace for the next master can be left");
                (None, true)
            }
        }
    }

    fn open(path: &Path) -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let found = match read_small(path, BYTES_MAX) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let (file, now) = (create(path)?, boottime());
        let followed = found.is_some_and(|text| is_young(&text, &boot, now)).then_some(now);
        let mut trace = Self { file, path: path.into(), boot, renewed: Now(0), followed };
        trace.write(now)?;
        Ok(trace)
    }

    /// Deletes traces of this user that say nothing any more.
    fn sweep(&self) {
        let (prefix, now) = (prefix(), boottime());
        let Some(Ok(folder)) = self.path.parent().map(std::fs::read_dir) else { return };
        for entry in folder.flatten() {
            let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
                && entry.metadata().is_ok_and(|about| about.uid() == geteuid().as_raw());
            let path = entry.path();
            if !ours || path == self.path {
                continue;
            }
            let old = |text: String| !is_young(&text, &self.boot, now);
            if read_small(&path, BYTES_MAX).is_ok_and(old) {
                // A master that stood still that long leaves it again.
                let _gone = std::fs::remove_file(&path);
            }
        }
    }

    /// The master lives.
    pub(crate) fn renew(&mut self, now: Now) {
        if now.since(self.renewed) < RENEW {
            return;
        }
        if let Err(error) = self.write(now) {
            let path = self.path.display();
            tracing::warn!(%error, %path, "the trace for the next master cannot be renewed");
        }
    }

    fn write(&mut self, now: Now) -> io::Result<()> {
        self.renewed = now;
        if self.file.metadata()?.nlink() == 0 {
            self.file = create(&self.path)?;
        }
        // Of one length, so that it is replaced as a whole.
        self.file.write_all_at(format!("{} {:020}\n", self.boot, now.0).as_bytes(), 0)
    }

    /// Its master leaves no lease; it stays for the one before, if that had led.
    pub(crate) fn remove(self) {
        if self.followed.is_some_and(|at| boottime().since(at) < OVER) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the trace of this master stays");
        }
    }
}

/// Whether the master that wrote it may have left leases.
fn is_young(text: &str, boot: &str, now: Now) -> bool {
    match text.trim().split_once(' ') {
        // All processes of an earlier boot are gone, and other machines have waited for the reboot.
        Some((of, at)) => of == boot && at.parse().map_or(true, |at| now.since(Now(at)) < OVER),
        None => true,
    }
}

fn create(path: &Path) -> io::Result<File> {
    let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).custom_flags(no_link).open(path)?;
    if file.metadata()?.uid() != geteuid().as_raw() {
        let words = "it belongs to another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_followed_until_its_leases_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let (trace, followed) = Trace::leave(&path);
        assert!(!followed, "nobody led here");
        let (mut trace, boot) = (trace.unwrap(), std::fs::read_to_string(&path).unwrap());
        let boot = boot.split_once(' ').unwrap().0.to_owned();
        let follows = || Trace::leave(&path).1;
        assert!(follows());
        for (seconds, follows_then) in [(14, true), (16, false)] {
            let before = Now(boottime().0.saturating_sub(seconds * 1_000_000_000));
            trace.write(before).unwrap();
            assert_eq!(follows(), follows_then, "{seconds} s");
        }
        for (text, follows_then) in [
            (format!("{boot} x"), true),
            (format!("another {}", boottime().0), false),
            (String::new(), true),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(follows(), follows_then, "{text:?}");
        }
        trace.remove();
        assert!(!follows());
        // The one that followed another was stopped before it led anybody.
        let (after, followed) = Trace::leave(&path);
        assert!(followed);
        after.unwrap().remove();
        assert!(follows(), "the first one's nodes may serve");
        // What cannot be written proves nothing.
        assert!(Trace::leave(folder.path()).1);
        assert!(Trace::leave(Path::new("/nowhere/trace")).1);
    }

    /// Was: they stayed until the machine was started again.
    #[test]
    fn traces_that_say_nothing_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let long_ago = boottime().0.saturating_sub(16_000_000_000);
        let leave = |name: &str, text: String| std::fs::write(at(name), text).unwrap();
        let [old, other, young, odd] =
            ["old", "other", "young", "odd"].map(|name| format!("{}{name}", prefix()));
        leave(&old, format!("{} {long_ago:020}\n", boot.trim()));
        leave(&other, format!("another-boot {:020}\n", boottime().0));
        leave(&young, format!("{} {:020}\n", boot.trim(), boottime().0));
        leave(&odd, "?".into());
        leave("somebody's", format!("{} {long_ago:020}\n", boot.trim()));
        let (own, _) = Trace::leave(&at("own"));
        let left = [&old, &other, &young, &odd].map(|name| at(name).exists());
        assert_eq!(left, [false, false, true, true]);
        assert!(at("somebody's").exists() && at("own").exists());
        // A master that stood still while others swept leaves its trace again.
        let mut own = own.unwrap();
        std::fs::remove_file(at("own")).unwrap();
        own.renew(boottime().plus(RENEW));
        assert!(at("own").exists());
    }

    #[test]
    fn a_trace_names_the_network() {
        let network = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        let name = |address: &str| path(&address.parse().unwrap()).display().to_string();
        assert!(name("127.0.0.1:7411").ends_with(&format!("-master-{network}-127.0.0.1:7411")));
        assert!(name("unix:/run/a").ends_with("-master-0-unix:_run_a"), "files have no network");
    }
}
