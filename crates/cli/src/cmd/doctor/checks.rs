//! Checks that read what the kernel tells. Each takes numbers and gives a finding.

use super::machine::Machine;
use super::{Finding, Grade};
use crate::render::bytes;
use rustix::process::{Resource, Rlimit, getrlimit};

/// Connections that one master is meant for, with room for files and listeners.
const FILES_WANTED: u64 = 16_384;
/// Data connections have a thread each; a node takes this many.
const THREADS_WANTED: u64 = 8_192;
/// Below this not even a small segment fits.
const MEMORY_NEEDED: u64 = 512 << 20;
/// Buffers of a connection that moves megabytes over a network with some delay.
const SOCKET_BYTES_WANTED: u64 = 4 << 20;
/// Connections that may wait to be taken.
const BACKLOG_WANTED: u64 = 1_024;

pub(super) fn all(machine: &Machine) -> Vec<Finding> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let limit = |which: Resource| getrlimit(which);
    vec![
        cores_of(cores),
        memory(machine),
        group_memory(machine),
        huge_pages(machine),
        transparent_pages(machine),
        locked_memory(limit(Resource::Memlock).current),
        files(&limit(Resource::Nofile)),
        threads(machine, limit(Resource::Nproc).current),
        socket_buffers(machine),
        backlog(machine),
        cuda(machine),
        namespaces(machine),
        etcd(machine),
    ]
}

pub(super) fn finding(name: &'static str, grade: Grade, found: impl Into<String>) -> Finding {
    Finding { name, grade, found: found.into(), why: "", fix: None, required: false }
}

fn cores_of(cores: u64) -> Finding {
    let grade = if cores >= 4 { Grade::Ok } else { Grade::Better };
    let fix = "give the machine, the container or the cpuset four cores or more";
    Finding {
        why: "A master, a node and their clients each keep a core busy; on fewer they take turns.",
        fix: (grade != Grade::Ok).then(|| fix.to_owned()),
        ..finding("cores", grade, cores.to_string())
    }
}

fn memory(machine: &Machine) -> Finding {
    let why = "Segments are memory: --segment-size says how much of it a node offers.";
    let (Some(total), Some(free)) = (machine.meminfo("MemTotal"), machine.meminfo("MemAvailable"))
    else {
        let fix = Some("mount /proc, which tells how much there is".to_owned());
        return Finding { why, fix, ..finding("memory", Grade::Better, "not known") };
    };
    let grade = if free >= MEMORY_NEEDED { Grade::Ok } else { Grade::Missing };
    let fix = format!("free memory until {} are available", bytes(MEMORY_NEEDED));
    Finding {
        why,
        fix: (grade != Grade::Ok).then_some(fix),
        required: true,
        ..finding("memory", grade, format!("{} of {} available", bytes(free), bytes(total)))
    }
}

fn group_memory(machine: &Machine) -> Finding {
    let why = "Beyond the limit of its control group the kernel ends a process without a word.";
    let limit = machine.group_limit("memory.max", "memory.limit_in_bytes");
    let total = machine.meminfo("MemTotal").unwrap_or(u64::MAX);
    match limit.filter(|limit| *limit < total) {
        None => Finding { why, ..finding("memory limit", Grade::Ok, "none below the machine's") },
        Some(limit) => Finding {
            why,
            fix: Some(format!(
                "keep --segment-size well below {}, or raise the limit of the container",
                bytes(limit)
            )),
            ..finding("memory limit", Grade::Better, format!("{} for this group", bytes(limit)))
        },
    }
}

fn huge_pages(machine: &Machine) -> Finding {
    let number = |name| machine.meminfo(name).unwrap_or(0);
    let (total, free) = (number("HugePages_Total"), number("HugePages_Free"));
    let size = number("Hugepagesize").max(1 << 20);
    let grade = if total > 0 { Grade::Ok } else { Grade::Better };
    let pages = (1_u64 << 30).div_ceil(size);
    let found = match total {
        0 => "none reserved".to_owned(),
        _ => format!("{free} of {total} free, {} each", bytes(size)),
    };
    Finding {
        why: "With --huge-pages a segment needs fewer address translations, and cannot be split.",
        fix: (total == 0).then(|| format!("sudo sysctl -w vm.nr_hugepages={pages}    # for 1 GiB")),
        ..finding("huge pages", grade, found)
    }
}

fn transparent_pages(machine: &Machine) -> Finding {
    const SHARED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let choice = machine.choice(SHARED);
    let good = |choice: &str| matches!(choice, "always" | "advise" | "within_size" | "force");
    let grade = if choice.as_deref().is_some_and(good) { Grade::Ok } else { Grade::Better };
    let found = choice.unwrap_or_else(|| "this kernel has none".to_owned());
    Finding {
        why: "Segments are shared memory; the kernel makes it of large pages only if told so.",
        fix: (grade != Grade::Ok).then(|| format!("echo advise | sudo tee {SHARED}")),
        ..finding("large shared pages", grade, found)
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    let enough = limit.is_none_or(|limit| limit >= 1 << 30);
    let grade = if enough { Grade::Ok } else { Grade::Better };
    Finding {
        why: "Buffers of disk rings, of GPUs and of network cards are locked in memory.",
        fix: (!enough).then(|| {
            "ulimit -l unlimited    # or LimitMEMLOCK=infinity in the unit of the service"
                .to_owned()
        }),
        ..finding("locked memory", grade, limit.map_or_else(|| "no limit".to_owned(), bytes))
    }
}

fn files(limit: &Rlimit) -> Finding {
    let show = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |l| l.to_string());
    let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit >= FILES_WANTED);
    let grade = if reaches(limit.current) { Grade::Ok } else { Grade::Better };
    let fix = if reaches(limit.maximum) {
        format!("ulimit -n {FILES_WANTED}    # before the server starts")
    } else {
        format!(
            "LimitNOFILE={FILES_WANTED} in the unit of the service, or docker --ulimit nofile=…"
        )
    };
    Finding {
        why: "Every connection is an open file; a master is meant for 10,000 of them.",
        fix: (grade != Grade::Ok).then_some(fix),
        ..finding(
            "open files",
            grade,
            format!("{}, can be raised to {}", show(limit.current), show(limit.maximum)),
        )
    }
}

fn threads(machine: &Machine, processes: Option<u64>) -> Finding {
    let group = machine.group_limit("pids.max", "pids.max");
    let kernel = machine.number("/proc/sys/kernel/threads-max");
    let lowest = [processes, group, kernel].into_iter().flatten().min();
    let enough = lowest.is_none_or(|limit| limit >= THREADS_WANTED);
    let fix = match group {
        Some(group) if Some(group) == lowest => {
            format!(
                "docker --pids-limit {THREADS_WANTED}, or TasksMax={THREADS_WANTED} in the unit"
            )
        }
        _ => format!("ulimit -u {THREADS_WANTED}    # or kernel.threads-max, if that is lower"),
    };
    Finding {
        why: "A node serves every data connection from a thread of its own.",
        fix: (!enough).then_some(fix),
        ..finding(
            "threads",
            if enough { Grade::Ok } else { Grade::Better },
            lowest.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {limit}")),
        )
    }
}

fn socket_buffers(machine: &Machine) -> Finding {
    let most = |path| machine.text(path)?.split_whitespace().last()?.parse::<u64>().ok();
    let (receive, send) =
        (most("/proc/sys/net/ipv4/tcp_rmem"), most("/proc/sys/net/ipv4/tcp_wmem"));
    let (Some(receive), Some(send)) = (receive, send) else {
        let why = "Between machines a connection fills the line only with room to keep bytes.";
        let fix = Some("look on the host: a container does not always see this".to_owned());
        return Finding { why, fix, ..finding("socket buffers", Grade::Better, "not known") };
    };
    let enough = receive.min(send) >= SOCKET_BYTES_WANTED;
    Finding {
        why: "Between machines a connection fills the line only with room to keep bytes.",
        fix: (!enough).then(|| {
            "sudo sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' \
             net.ipv4.tcp_wmem='4096 16384 16777216'"
                .to_owned()
        }),
        ..finding(
            "socket buffers",
            if enough { Grade::Ok } else { Grade::Better },
            format!("grow to {} in, {} out", bytes(receive), bytes(send)),
        )
    }
}

fn backlog(machine: &Machine) -> Finding {
    let why = "When a master comes back, all its clients connect at once.";
    let Some(most) = machine.number("/proc/sys/net/core/somaxconn") else {
        let fix = Some("look on the host: a container does not always see this".to_owned());
        return Finding { why, fix, ..finding("waiting callers", Grade::Better, "not known") };
    };
    let enough = most >= BACKLOG_WANTED;
    Finding {
        why,
        fix: (!enough).then(|| "sudo sysctl -w net.core.somaxconn=4096".to_owned()),
        ..finding(
            "waiting callers",
            if enough { Grade::Ok } else { Grade::Better },
            format!("at most {most}"),
        )
    }
}

fn cuda(machine: &Machine) -> Finding {
    let why = "For values in GPU memory. Nothing else needs it.";
    let version = machine.text("/proc/driver/nvidia/version");
    let driver = version.as_deref().and_then(|text| text.lines().next().map(str::to_owned));
    match (machine.library("libcuda.so.1"), driver) {
        (Some(library), driver) => {
            let driver = driver.unwrap_or_else(|| "driver version not told".to_owned());
            Finding {
                why,
                ..finding("CUDA", Grade::Ok, format!("{}, {driver}", library.display()))
            }
        }
        (None, Some(driver)) => Finding {
            why,
            fix: Some("docker --gpus all, or install libcuda1 of the same version".to_owned()),
            ..finding("CUDA", Grade::Missing, format!("no libcuda.so.1, though there is {driver}"))
        },
        (None, None) => Finding {
            why,
            fix: Some(
                "on a machine with an NVIDIA GPU: install its driver, 580 or later".to_owned(),
            ),
            ..finding("CUDA", Grade::Missing, "no driver, no libcuda.so.1")
        },
    }
}

fn namespaces(machine: &Machine) -> Finding {
    let why = "For developers: tests that cut and delay the network do it in a namespace.";
    let none = |path| machine.number(path) == Some(0);
    let mut lacks = Vec::new();
    let mut fixes = Vec::new();
    if none("/proc/sys/user/max_user_namespaces") {
        lacks.push("user namespaces are off");
        fixes.push("sudo sysctl -w user.max_user_namespaces=10000");
    }
    if none("/proc/sys/kernel/unprivileged_userns_clone") {
        lacks.push("user namespaces are for root only");
        fixes.push("sudo sysctl -w kernel.unprivileged_userns_clone=1");
    }
    if machine.program("nft").is_none() {
        lacks.push("no nft");
        fixes.push("sudo apt-get install nftables");
    }
    if machine.program("ip").is_none() {
        lacks.push("no ip");
        fixes.push("sudo apt-get install iproute2");
    }
    if lacks.is_empty() {
        return Finding { why, ..finding("namespaces", Grade::Ok, "user namespaces, nft, ip") };
    }
    let (found, fix) = (lacks.join(", "), Some(fixes.join(" && ")));
    Finding { why, fix, ..finding("namespaces", Grade::Missing, found) }
}

fn etcd(machine: &Machine) -> Finding {
    let why = "Only to run several masters, of which one leads.";
    match machine.program("etcd") {
        Some(path) => Finding { why, ..finding("etcd", Grade::Ok, path.display().to_string()) },
        None => Finding {
            why,
            fix: Some(
                "sudo apt-get install etcd-server, or reach one on another machine".to_owned(),
            ),
            ..finding("etcd", Grade::Missing, "not on the path")
        },
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
