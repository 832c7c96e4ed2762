//! Checks on machines made of files.

use super::*;
use std::ffi::OsString;
use std::fs;
use tempfile::TempDir;

/// A machine with these files.
fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = folder.path().to_owned();
    let machine = Machine { root, programs: "/opt/bin".into(), libraries: OsString::new() };
    (folder, machine)
}

const MEMORY: &str = "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\nHugePages_Total:  0\n\
                      HugePages_Free:  0\nHugepagesize:  2048 kB\n";

#[test]
fn memory_and_its_pages_are_read_off_the_kernel() {
    let (_folder, small) = machine(&[
        ("/proc/meminfo", MEMORY),
        ("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n"),
    ]);
    assert_eq!(memory(&small).found, "4.0 GiB of 8.0 GiB available");
    let pages = huge_pages(&small);
    assert_eq!(pages.grade, Grade::Better);
    assert!(pages.fix.unwrap().starts_with("sudo sysctl -w vm.nr_hugepages=512"));
    let large = transparent_pages(&small);
    assert_eq!((large.grade, large.found.as_str()), (Grade::Better, "never"));
    assert!(large.fix.unwrap().contains("echo advise"));

    let (_folder, tiny) =
        machine(&[("/proc/meminfo", "MemTotal: 100000 kB\nMemAvailable: 1000 kB\n")]);
    let one = memory(&tiny);
    assert!(one.grade == Grade::Missing && one.required && one.fix.is_some());
    let (_folder, dark) = machine(&[]);
    assert_eq!(memory(&dark).found, "not known");
}

#[test]
fn limits_of_control_groups_are_found_in_both_versions() {
    let (_folder, second) = machine(&[
        ("/proc/meminfo", MEMORY),
        ("/proc/self/cgroup", "0::/outer/inner\n"),
        ("/sys/fs/cgroup/outer/memory.max", "1073741824\n"),
        ("/sys/fs/cgroup/outer/inner/memory.max", "max\n"),
        ("/sys/fs/cgroup/outer/inner/pids.max", "100\n"),
    ]);
    let one = group_memory(&second);
    assert!(one.grade == Grade::Better && one.found.contains("1.0 GiB"), "{one:?}");
    let one = threads(&second, Some(1 << 20));
    assert!(one.grade == Grade::Better && one.found == "at most 100", "{one:?}");
    assert!(one.fix.unwrap().contains("pids-limit"));

    let (_folder, first) = machine(&[
        ("/proc/meminfo", MEMORY),
        ("/proc/self/cgroup", "4:memory:/box\n1:cpu:/box\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
    ]);
    assert!(group_memory(&first).found.contains("2.0 GiB"));

    let (_folder, free) = machine(&[
        ("/proc/meminfo", MEMORY),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/memory.max", "max\n"),
    ]);
    assert_eq!(group_memory(&free).grade, Grade::Ok);
}

#[test]
fn limits_of_the_process_name_the_command_that_raises_them() {
    let limit = |current, maximum| Rlimit { current, maximum };
    assert_eq!(files(&limit(Some(65_536), None)).grade, Grade::Ok);
    let soft = files(&limit(Some(1024), Some(1 << 20)));
    assert!(soft.grade == Grade::Better && soft.fix.unwrap().starts_with("ulimit -n 16384"));
    let hard = files(&limit(Some(1024), Some(4096)));
    assert!(hard.fix.unwrap().starts_with("LimitNOFILE=16384"));
    assert_eq!(locked_memory(None).grade, Grade::Ok);
    assert!(locked_memory(Some(65_536)).fix.unwrap().starts_with("ulimit -l unlimited"));
    assert_eq!((cores_of(1).grade, cores_of(16).grade), (Grade::Better, Grade::Ok));
}

#[test]
fn networks_programs_and_drivers_are_looked_for() {
    let (_folder, bare) = machine(&[
        ("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 1048576"),
        ("/proc/sys/net/core/somaxconn", "128"),
        ("/proc/sys/user/max_user_namespaces", "0"),
    ]);
    let buffers = socket_buffers(&bare);
    assert!(buffers.grade == Grade::Better && buffers.fix.unwrap().contains("tcp_wmem"));
    assert_eq!(backlog(&bare).grade, Grade::Better);
    let spaces = namespaces(&bare);
    assert_eq!(spaces.found, "user namespaces are off, no nft, no ip");
    assert!(spaces.fix.unwrap().contains("nftables"));
    assert_eq!((cuda(&bare).grade, etcd(&bare).grade), (Grade::Missing, Grade::Missing));

    let (_folder, full) = machine(&[
        ("/usr/sbin/nft", ""),
        ("/opt/bin/ip", ""),
        ("/opt/bin/etcd", ""),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", ""),
        ("/proc/driver/nvidia/version", "NVRM version: 580.1\nGCC version: 12"),
    ]);
    assert_eq!((namespaces(&full).grade, etcd(&full).grade), (Grade::Ok, Grade::Ok));
    assert_eq!(etcd(&full).found, "/opt/bin/etcd");
    assert!(cuda(&full).found.ends_with("libcuda.so.1, NVRM version: 580.1"));
    let (_folder, half) = machine(&[("/proc/driver/nvidia/version", "NVRM version: 580.1")]);
    assert!(cuda(&half).found.contains("though there is NVRM"));
}

/// Whatever is not as it should be comes with a remedy, and everything with a reason.
#[test]
fn every_finding_has_a_reason_and_every_worry_a_remedy() {
    let here = Machine {
        root: "/".into(),
        programs: std::env::var_os("PATH").unwrap_or_default(),
        libraries: OsString::new(),
    };
    let (_folder, dark) = machine(&[]);
    for one in all(&here).into_iter().chain(all(&dark)) {
        assert!(!one.why.is_empty() && !one.found.is_empty(), "{one:?}");
        assert_eq!(one.fix.is_some(), one.grade != Grade::Ok, "{one:?}");
    }
}
