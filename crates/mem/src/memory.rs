//! How much memory this process may take, and how much its segments have promised so far.
//!
//! A segment is reserved when it is made, and its pages are taken from the system when values fill them. The
//! kernel does not refuse a reservation that is larger than the machine: it kills the process hours later. So
//! whoever makes a segment for a user asks here first ([`Claim::checked`]). What counts:
//!
//! * the memory of the machine (`MemTotal`), without swap: a cache that swaps is slower than none;
//! * the limits of the memory cgroups that this process is in, of version 2 (`memory.max`) and 1
//!   (`memory.limit_in_bytes`), its own and those above it: beyond them the kernel kills as well;
//! * the payload of all segments of this process in host memory, because they fill up one beside the other.
//!
//! What does not count: huge pages of the operator's pool, which are set aside when a segment is made and which no cgroup
//! counts as memory (unless it was told to); VRAM, which its driver refuses when it is asked for too much; headers, whose pages are
//! taken as slots are used; the size of `/dev/shm`, because segments are memfds and lie in no mounted file
//! system; and what other processes take, which changes all the time.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload of all segments of this process. A plain count: nothing else is read by it, so Relaxed is enough.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// Bytes that a segment of this process has promised, for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    bytes: u64,
}

impl Claim {
    /// Promises bytes, whether or not there are so many.
    pub fn new(bytes: u64) -> Self {
        CLAIMED.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes }
    }

    /// Promises bytes if the system can keep that beside what was promised before; with `huge` out of the operator's
    /// pool of huge pages where that has enough.
    pub fn checked(bytes: u64, huge: bool) -> Result<Self, TooMuchMemory> {
        let root = Path::new("/");
        if huge && bytes <= pool_bytes(root) {
            return Ok(Self::new(0));
        }
        match Limit::of(root) {
            Some(limit) => Self::within(&CLAIMED, bytes, limit),
            // Where nobody tells how much there is, nothing can be refused.
            None => Ok(Self::new(bytes)),
        }
    }

    /// Looks and counts in one step, so that of two at a time neither overlooks the other; what is refused was
    /// never counted, and is in nobody's way.
    fn within(claimed: &AtomicU64, bytes: u64, limit: Limit) -> Result<Self, TooMuchMemory> {
        let fits = |others: u64| others.checked_add(bytes).filter(|sum| *sum <= limit.bytes);
        match claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Self { bytes }),
            Err(others) => Err(TooMuchMemory { bytes, others, limit }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Segments that would be larger than the memory there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a segment of {} with {} in other segments of this process is more than {limit}; the kernel would kill \
     the process when its pages run out",
    Bytes(*bytes),
    Bytes(*others)
)]
pub struct TooMuchMemory {
    /// What was asked for.
    pub bytes: u64,
    /// What other segments of this process have.
    pub others: u64,
    /// What there is.
    pub limit: Limit,
}

/// The most memory that this process may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// So much.
    pub bytes: u64,
    /// The memory of the machine.
    pub machine: u64,
    /// The file of the cgroup that leaves less than that.
    pub cgroup: Option<PathBuf>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, machine) = (Bytes(self.bytes), Bytes(self.machine));
        match &self.cgroup {
            Some(file) => {
                write!(f, "the {left} that the cgroup limit {} leaves of {machine}", file.display())
            }
            None => write!(f, "the {left} of this machine"),
        }
    }
}

/// Bytes as people read them.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, name)) = units.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}

impl Limit {
    /// What the files under this root tell; `None`: nothing.
    fn of(root: &Path) -> Option<Self> {
        let machine = mem_total(&read(root, Path::new("/proc/meminfo"))?)?;
        let lowest = cgroups(root).into_iter().flat_map(|group| group.limits(root)).min();
        Some(match lowest.filter(|(bytes, _)| *bytes < machine) {
            Some((bytes, file)) => Self { bytes, machine, cgroup: Some(file) },
            None => Self { bytes: machine, machine, cgroup: None },
        })
    }
}

fn read(root: &Path, path: &Path) -> Option<String> {
    fs::read_to_string(root.join(path.strip_prefix("/").unwrap_or(path))).ok()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    number(meminfo, "MemTotal:")?.checked_mul(1024)
}

/// The first number in the row of this name.
fn number(meminfo: &str, name: &str) -> Option<u64> {
    let row = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    row.split_whitespace().next()?.parse().ok()
}

/// Bytes of huge pages that nobody has reserved, and that no limit of a cgroup covers.
fn pool_bytes(root: &Path) -> u64 {
    let mounts = read(root, Path::new("/proc/self/mountinfo")).unwrap_or_default();
    if mounts.contains("memory_hugetlb_accounting") {
        return 0;
    }
    let free = read(root, Path::new("/proc/meminfo")).and_then(|meminfo| {
        let free = number(&meminfo, "HugePages_Free:")?;
        let free = free.saturating_sub(number(&meminfo, "HugePages_Rsvd:")?);
        number(&meminfo, "Hugepagesize:")?.checked_mul(1024)?.checked_mul(free)
    });
    free.unwrap_or(0)
}

/// A cgroup that limits memory.
struct Group {
    /// Where its hierarchy is mounted.
    mount: PathBuf,
    /// Where it is below that.
    below: PathBuf,
    /// The file that holds the limit.
    file: &'static str,
}

impl Group {
    /// The limits of the cgroup and of those above it: the lowest of them counts.
    fn limits(&self, root: &Path) -> Vec<(u64, PathBuf)> {
        let levels = self.below.ancestors().map(|level| self.mount.join(level).join(self.file));
        // No limit is `max` in version 2, and a number beyond all memory in version 1.
        levels.filter_map(|file| Some((read(root, &file)?.trim().parse().ok()?, file))).collect()
    }
}

/// The cgroups of this process that may limit its memory: of version 2, of version 1, or of both.
fn cgroups(root: &Path) -> Vec<Group> {
    let own = read(root, Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(root, Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let rows = own.lines().filter_map(|row| {
        // hierarchy:controllers:path
        let (_, rest) = row.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (kind, file) = if controllers.is_empty() {
            ("cgroup2", "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            ("cgroup", "memory.limit_in_bytes")
        } else {
            return None;
        };
        let (top, mount) = mounts.lines().find_map(|row| mounted(row, kind))?;
        // A container may see a part of the hierarchy only, and its own path from the top of all.
        let below = Path::new(path).strip_prefix(&top).unwrap_or(Path::new("")).to_owned();
        Some(Group { mount, below, file })
    });
    rows.collect()
}

/// The part of a hierarchy that a row of `mountinfo` tells of, and where it is mounted, if it is one that limits
/// memory.
fn mounted(row: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = row.split_once(" - ")?;
    let mut right = right.split(' ');
    let (found, _source, options) = (right.next()?, right.next()?, right.next()?);
    if found != kind || kind == "cgroup" && !options.split(',').any(|one| one == "memory") {
        return None;
    }
    let mut left = left.split(' ').skip(3);
    Some((left.next()?.into(), left.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree: 1 kB\n");

    /// A system of such files.
    struct System(PathBuf);

    impl System {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("mooncrate-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn limit(&self) -> Option<Limit> {
            Limit::of(&self.0)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_machine_without_cgroups_has_its_memory() {
        let system = System::new("plain", &[MEMINFO]);
        let limit = Limit { bytes: 24 * GIB, machine: 24 * GIB, cgroup: None };
        assert_eq!(system.limit(), Some(limit.clone()));
        assert_eq!(limit.to_string(), "the 24.0 GiB of this machine");
        assert_eq!(System::new("nothing", &[]).limit(), None, "and nobody is refused");
    }

    /// Was: pages of the pool were compared with the limit of the cgroup, which does not count them.
    #[test]
    fn the_pool_of_huge_pages_is_a_limit_of_its_own() {
        let pool = "MemTotal: 25165824 kB\nHugePages_Total: 4096\nHugePages_Free: 3000\n\
             HugePages_Rsvd: 952\nHugepagesize: 2048 kB\n";
        let system = System::new("pool", &[("proc/meminfo", pool)]);
        assert_eq!(pool_bytes(&system.0), 4 * GIB);
        let mounts =
            "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw,memory_hugetlb_accounting\n";
        let files = [("proc/meminfo", pool), ("proc/self/mountinfo", mounts)];
        assert_eq!(pool_bytes(&System::new("counted", &files).0), 0, "counted as memory");
        assert_eq!(pool_bytes(&System::new("no-pool", &[MEMINFO]).0), 0);
    }

    /// Version 2: the cgroup itself has no limit, and the one above it has.
    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let system = System::new(
            "two",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/pod/worker\n"),
                (
                    "proc/self/mountinfo",
                    "35 24 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup rw\n",
                ),
                ("sys/fs/cgroup/pod/worker/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/memory.max", "8589934592\n"),
            ],
        );
        let limit = system.limit().unwrap();
        assert_eq!(limit.bytes, 8 * GIB);
        assert_eq!(
            limit.to_string(),
            "the 8.0 GiB that the cgroup limit /sys/fs/cgroup/pod/memory.max leaves of 24.0 GiB"
        );
    }

    /// Version 1 in a container, which sees its own part of the hierarchy; beside it version 2 without limits.
    #[test]
    fn limits_of_version_1_count() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 /docker/ab /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let system = System::new(
            "one",
            &[
                MEMINFO,
                ("proc/self/cgroup", "5:cpu:/docker/ab\n4:memory:/docker/ab/sub\n0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "2147483648\n"),
            ],
        );
        let limit = system.limit().unwrap();
        assert_eq!(limit.bytes, 2 * GIB);
        let file = "/sys/fs/cgroup/memory/sub/memory.limit_in_bytes";
        assert_eq!(limit.cgroup.as_deref(), Some(Path::new(file)));
    }

    /// Was: 64 GiB on a machine of 24 were accepted without a word. Segments count together.
    #[test]
    fn a_promise_that_cannot_be_kept_is_refused() {
        let limit = || Limit { bytes: 24 * GIB, machine: 24 * GIB, cgroup: None };
        let claimed = AtomicU64::new(0);
        // Not counted for the process: its end would be.
        let claim = |bytes| Claim::within(&claimed, bytes, limit()).map(std::mem::forget);
        let refused = claim(64 * GIB).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a segment of 64.0 GiB with 0 bytes in other segments of this process is more than the \
             24.0 GiB of this machine; the kernel would kill the process when its pages run out"
        );
        claim(20 * GIB).unwrap();
        assert_eq!(claim(4 * GIB + 1).unwrap_err().others, 20 * GIB, "all of them together");
        claim(4 * GIB).unwrap();
        assert!(claim(u64::MAX).is_err(), "no overflow");
        assert_eq!(claimed.into_inner(), 24 * GIB, "what was refused was never counted");
    }

    /// What a segment promised is free again when it is gone.
    #[test]
    fn a_claim_ends_with_its_segment() {
        const HUGE: u64 = 1 << 50;
        let claim = Claim::new(HUGE);
        assert!(CLAIMED.load(Ordering::Relaxed) >= HUGE);
        drop(claim);
        assert!(CLAIMED.load(Ordering::Relaxed) < HUGE);
    }
}
