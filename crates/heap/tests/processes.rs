//! Groups and heaps of real processes: this program starts itself once for each rank.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail where they stand; ranks speak"
)]

use mooncrate_heap::{Group, GroupSpec, Heap, Rank};
use mooncrate_mem::atomic::Ordering;
use mooncrate_mem::clock::boottime;
use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);
/// What a rank waits for one that was stopped or killed.
const SHORT: Duration = Duration::from_millis(400);

/// Starts `rank` of `world` in the role `role`.
fn start(role: &str, dir: &Path, rank: usize, world: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_rank", "--ignored", "--nocapture"])
        .env("HEAP_ROLE", role)
        .env("HEAP_PATH", dir.join("meet"))
        .env("HEAP_RANK", rank.to_string())
        .env("HEAP_WORLD", world.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the ranks said, in their order; each line that a rank says begins with `> `.
fn run(role: &str, world: usize) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let ranks: Vec<Child> = (0..world).map(|rank| start(role, dir.path(), rank, world)).collect();
    ranks.into_iter().map(said).collect()
}

fn said(rank: Child) -> String {
    let output = rank.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("> ")).collect::<Vec<_>>().join("\n")
}

#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
fn told(name: &str) -> String {
    env::var(name).unwrap()
}

/// What the other tests start.
#[test]
#[ignore = "the other tests start it as a rank"]
fn a_rank() {
    let (rank, world) = (told("HEAP_RANK").parse().unwrap(), told("HEAP_WORLD").parse().unwrap());
    let role = told("HEAP_ROLE");
    // Ranks that come after the hub has given up wait for it in vain.
    let within = match role.as_str() {
        "absent" => SHORT,
        "layout" | "world" | "twice" => 5 * SHORT,
        _ => WITHIN,
    };
    let path = told("HEAP_PATH").into();
    let mut spec = GroupSpec { path, rank, world, layout: 7, within };
    match (role.as_str(), rank) {
        ("layout", 2) => spec.layout = 8,
        ("world", 1) => spec.world = 4,
        ("twice", 2) => spec.rank = 1,
        ("absent", 1 | 3) => return,
        _ => {}
    }
    let mut group = match Group::join(&spec) {
        Ok(group) => group,
        Err(error) => return println!("> {error}"),
    };
    match role.as_str() {
        "heap" => share_a_heap(&mut group),
        "uneven" => {
            let error = Heap::host(&mut group, 4096 << (rank / 2), WITHIN).unwrap_err();
            println!("> {error}");
        }
        "differs" => {
            let doing = if rank == 1 { "eat" } else { "drink" };
            println!("> {}", group.barrier(doing, WITHIN).unwrap_err());
        }
        "killed" | "stopped" => one_is_missing(group, role == "killed"),
        _ => {}
    }
}

/// Every rank writes to every heap, and counts in a word of every heap.
fn share_a_heap(group: &mut Group) {
    let heap = Heap::host(group, 1 << 20, WITHIN).unwrap();
    let (me, world) = (heap.rank(), heap.world());
    for rank in world.ranks() {
        let region = heap.region(rank).unwrap();
        let place = 4096 * (1 + me.index() as u64);
        region.store(place, format!("{me} to {rank}").as_bytes()).unwrap();
        for _ in 0..1000 {
            region.atomic(64).unwrap().fetch_add(1, Ordering::AcqRel);
        }
    }
    group.barrier("write", WITHIN).unwrap();
    let own = heap.region(me).unwrap();
    for rank in world.ranks() {
        let expected = format!("{rank} to {me}");
        let mut came = vec![0; expected.len()];
        own.load(4096 * (1 + rank.index() as u64), &mut came).unwrap();
        assert_eq!(String::from_utf8_lossy(&came), expected);
    }
    let count = own.atomic(64).unwrap().load(Ordering::Acquire);
    let bases = heap.bases();
    let here = bases.0[me.index()] + 4096;
    assert_eq!(bases.translate(here, me, Rank::HUB), bases.0[0] + 4096);
    assert!(heap.span(me).is_none());
    println!("> {count} {}", heap.shared_by());
    heap.close(group, WITHIN).unwrap();
}

/// Rank 2 ends, or stops, and all others say so in time.
fn one_is_missing(mut group: Group, killed: bool) {
    let me = rustix::process::getpid();
    if group.rank().number() == 2 {
        let signal =
            if killed { rustix::process::Signal::KILL } else { rustix::process::Signal::STOP };
        rustix::process::kill_process(me, signal).unwrap();
        // The signal may take effect a moment later.
        std::thread::sleep(WITHIN);
    }
    let began = boottime();
    let error = group.barrier("step", SHORT).unwrap_err();
    let took = boottime().since(began);
    println!("> {error}");
    println!("> {}", took < SHORT + Duration::from_secs(5));
    let again = group.barrier("step again", SHORT).unwrap_err().to_string();
    assert_eq!(again, error.to_string());
    // A process closes its sockets before it has ended. The others may have ended by now, too.
    let dead = group.world().rank(2).unwrap();
    let until = boottime().deadline_in(if killed { WITHIN } else { Duration::ZERO });
    while !group.watch().gone().has(dead) && !until.passed(boottime()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("> {}", if group.watch().gone().has(dead) { "rank 2" } else { "nobody" });
}

#[test]
fn every_rank_writes_to_every_heap() {
    assert_eq!(run("heap", 8), vec!["8000 host memory"; 8]);
    assert_eq!(run("heap", 1), vec!["1000 host memory"]);
}

#[test]
fn ranks_that_disagree_are_named_to_all() {
    let layout = run("layout", 4);
    assert!(layout[2].contains("meet: rank 2 and rank 0 disagree about the layout"), "{layout:?}");
    assert_eq!(layout[0], layout[2]);
    let world = run("world", 3);
    assert!(world[1].contains("rank 1 and rank 0 disagree about the number of ranks"), "{world:?}");
    assert_eq!(world[0], world[1]);
    let twice = run("twice", 3);
    assert!(twice[0].contains("two processes say that they are rank 1"), "{twice:?}");
    let uneven = run("uneven", 4);
    assert!(
        uneven[0].starts_with("a heap of 4096 bytes here and of 8192 bytes at rank 2"),
        "{uneven:?}"
    );
    assert!(
        uneven[3].starts_with("a heap of 8192 bytes here and of 4096 bytes at rank 0"),
        "{uneven:?}"
    );
}

#[test]
fn ranks_that_lost_step_are_found() {
    for text in run("differs", 3) {
        assert!(text.contains("drink: rank 1 made another call"), "{text}");
    }
}

#[test]
fn ranks_that_never_come_are_named() {
    let said = run("absent", 4);
    for rank in [0, 2] {
        assert_eq!(said[rank], "meet: ranks 1, 3 did not come in time", "{said:?}");
    }
}

#[test]
fn a_rank_that_is_killed_is_named_at_once() {
    let said = run("killed", 4);
    for rank in [0, 1, 3] {
        assert!(said[rank].starts_with("step: rank 2 ended or left\ntrue\n"), "{said:?}");
        assert!(said[rank].ends_with("rank 2"), "every rank sees its end: {said:?}");
    }
}

#[test]
fn a_rank_that_is_stopped_is_named_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks: Vec<Child> = (0..4).map(|rank| start("stopped", dir.path(), rank, 4)).collect();
    let mut stopped = ranks.remove(2);
    for text in ranks.into_iter().map(said) {
        assert!(text.starts_with("step: rank 2 did not come in time\ntrue\n"), "{text}");
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

#[test]
fn bad_ranks_and_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |rank, world, path: &Path| GroupSpec {
        path: path.to_owned(),
        rank,
        world,
        layout: 0,
        within: Duration::from_millis(50),
    };
    let refused = |spec: GroupSpec| Group::join(&spec).unwrap_err().to_string();
    let path = dir.path().join("meet");
    assert!(refused(spec(8, 8, &path)).contains("rank 8 of a world of 8"));
    assert!(refused(spec(0, 9, &path)).contains("a world has 1 to 8 ranks"));
    assert!(refused(spec(1, 2, &path)).contains("rank 0 did not answer at"));
    let long = dir.path().join("x".repeat(200));
    assert!(refused(spec(0, 2, &long)).contains("cannot meet at"));
    assert!(refused(spec(1, 2, &long)).contains("cannot meet at"));
    // A socket that a killed hub left behind is no obstacle; one that is in use is.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(refused(spec(0, 2, &path)).contains("rank 1 did not come in time"));
    let _here = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(refused(spec(0, 2, &path)).contains("another group is meeting there"));
}
