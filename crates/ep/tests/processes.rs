//! An exchange of real processes in host memory: this program starts itself once for each rank. Results are
//! compared bit for bit with the dense reference; ranks that die, stop or go wrong are named to all others.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail where they stand; ranks speak"
)]

use mooncrate_ep::heaps::Heaps;
use mooncrate_ep::kernels::expert_oracle;
use mooncrate_ep::oracle::{dense_of, scale_expert, test_expert};
use mooncrate_ep::seat::HostSeat;
use mooncrate_ep::workload::{Drawn, DrawnWeights, Routing};
use mooncrate_ep::{Ep, EpConfig, Payload};
use mooncrate_heap::{Group, GroupSpec};
use mooncrate_mem::clock::boottime;
use rustix::process::{Signal, getpid, kill_process};
use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WITHIN: Duration = Duration::from_mins(1);
/// What a rank waits for one that was stopped or killed.
const TIMEOUT: Duration = Duration::from_secs(2);
const VICTIM: usize = 2;
const SEED: u64 = 11;

fn start(role: &str, dir: &Path, rank: usize, world: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_rank", "--ignored", "--nocapture"])
        .env("EP_ROLE", role)
        .env("EP_PATH", dir.join("meet"))
        .env("EP_RANK", rank.to_string())
        .env("EP_WORLD", world.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the ranks said, in their order; each line that a rank says begins with `> `.
fn run(role: &str, world: usize) -> Vec<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let ranks: Vec<Child> = (0..world).map(|rank| start(role, dir.path(), rank, world)).collect();
    ranks.into_iter().map(said).collect()
}

fn said(rank: Child) -> Vec<String> {
    let output = rank.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("> ")).map(str::to_owned).collect()
}

#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
fn told(name: &str) -> String {
    env::var(name).unwrap()
}

fn config(world: usize) -> EpConfig {
    EpConfig {
        world,
        tokens_max: 8,
        top_k: 4,
        hidden: 64,
        experts: 4 * world,
        timeout: WITHIN,
        first_timeout: WITHIN,
        ..EpConfig::default()
    }
}

/// What the other tests start.
#[test]
#[ignore = "the other tests start it as a rank"]
fn a_rank() {
    let (rank, world) = (told("EP_RANK").parse().unwrap(), told("EP_WORLD").parse().unwrap());
    let role = told("EP_ROLE");
    let path = told("EP_PATH").into();
    let spec = GroupSpec { path, rank, world, layout: 0, within: WITHIN };
    let group = &mut Group::join(&spec).unwrap();
    let mut config = config(world);
    match role.as_str() {
        "killed" | "stopped" => config.timeout = TIMEOUT,
        "fp8" => (config.hidden, config.payload) = (256, Payload::Fp8),
        "small" => (config.tokens_max, config.top_k, config.hidden) = (3, 1, 8),
        "large" => (config.hidden, config.experts, config.top_k) = (7168, 256, 8),
        "violations" => config.rows_max = Some(2),
        "other" if rank == VICTIM => config.hidden = 128,
        "bad" if rank == VICTIM => config.hidden = 63,
        _ => {}
    }
    let ep = match Ep::host(group, &config, WITHIN) {
        Ok(ep) => ep,
        Err(error) => return println!("> {error}"),
    };
    let mut stage = HostSeat::new(ep);
    match role.as_str() {
        "steps" => steps(&mut stage, 2_800),
        "small" | "fp8" => steps(&mut stage, 700),
        "large" => steps(&mut stage, 14),
        "violations" => violations(&mut stage, group),
        "killed" | "stopped" => missing(&mut stage, &role),
        "leaves" | "closes" => leaves(stage, group, &role),
        "together" => {
            stage.layer(0, &draw(&stage, Routing::Full, 0).batch()).unwrap();
            stage.ep.close(group, WITHIN).unwrap();
            println!("> closed");
        }
        "forward" => forward(&mut stage),
        other => panic!("no role {other}"),
    }
}

/// A NaN, so that what was not written shows up in every sum.
const POISON: u16 = 0xffff;

fn me(stage: &HostSeat) -> u32 {
    stage.ep.rank().number().into()
}

fn draw(stage: &HostSeat, routing: Routing, step: u64) -> Drawn {
    Drawn::new(stage.ep.shape(), routing, SEED, me(stage), step)
}

/// Layers of all routings, each compared with the dense reference.
fn steps(stage: &mut HostSeat, count: u64) {
    let (shape, mut tokens) = (*stage.ep.shape(), 0);
    for step in 0..count {
        let routing = Routing::ALL[step as usize % Routing::ALL.len()];
        let drawn = draw(stage, routing, step);
        let out = stage.layer((step % 61) as u16, &drawn.batch()).unwrap();
        let expected = dense_of(&shape, &drawn.batch(), &test_expert(&shape));
        assert_eq!(out[..expected.len()], expected, "step {step}, {routing:?}");
        assert!(out[expected.len()..].iter().all(|bits| *bits == POISON), "step {step}");
        tokens += drawn.tokens;
    }
    assert_eq!(u64::from(stage.ep.phase()), 2 * count);
    println!("> {count} steps, {}", tokens > 0);
}

#[test]
fn eight_processes_agree_with_the_dense_reference() {
    assert_eq!(run("steps", 8), vec![vec!["2800 steps, true"]; 8]);
}

#[test]
fn other_worlds_and_shapes_agree_with_the_dense_reference() {
    assert_eq!(run("small", 3), vec![vec!["700 steps, true"]; 3]);
    assert_eq!(run("small", 2), vec![vec!["700 steps, true"]; 2]);
    assert_eq!(run("fp8", 4), vec![vec!["700 steps, true"]; 4]);
    assert_eq!(run("large", 4), vec![vec!["14 steps, true"]; 4]);
}

/// Layers with real experts: every rank knows the weights of all, and computes what must come out.
fn forward(stage: &mut HostSeat) {
    let (shape, inter) = (*stage.ep.shape(), 24);
    let all: Vec<DrawnWeights> =
        (0..shape.ranks()).map(|rank| DrawnWeights::new(&shape, inter, SEED, rank)).collect();
    let dense = |expert: u32, x: &[u16], y: &mut [u16]| {
        let (rank, local) = (expert / shape.local_experts(), expert % shape.local_experts());
        let mut act = vec![0; inter as usize];
        expert_oracle(&all[rank as usize].weights(), local as usize, x, &mut act, y);
    };
    let mut out = vec![POISON; (shape.output_bytes() / 2) as usize];
    for step in 0..14 {
        let drawn = draw(stage, Routing::ALL[step as usize % Routing::ALL.len()], step);
        let weights = all[me(stage) as usize].weights();
        stage.ep.forward(step as u16, &drawn.batch(), &weights, &mut out).unwrap();
        let expected = dense_of(&shape, &drawn.batch(), &dense);
        assert_eq!(out[..expected.len()], expected, "step {step}");
    }
    println!("> forward");
}

#[test]
fn layers_with_experts_agree_with_the_dense_reference() {
    assert_eq!(run("forward", 4), vec![vec!["forward"]; 4]);
}

#[test]
fn ranks_with_another_configuration_are_named_to_all() {
    let other = run("other", 4);
    assert_eq!(other.iter().map(Vec::len).collect::<Vec<_>>(), [1; 4], "{other:?}");
    for text in other.concat() {
        assert!(
            text.starts_with("the configuration of rank 2 differs from that of rank 0"),
            "{text}"
        );
    }
    let bad = run("bad", 4);
    assert!(bad[VICTIM][0].starts_with("hidden is 63; rows move in pieces"), "{bad:?}");
    assert!(bad[0][0].starts_with("the configuration of rank 2 differs"), "{bad:?}");
}

/// Input that is wrong, one after the other: all ranks learn who and what, and go on after a reset.
fn violations(stage: &mut HostSeat, group: &mut Group) {
    type Spoil = fn(&mut HostSeat, &mut Drawn);
    let spoil: [(&str, Spoil); 6] = [
        ("expert", |_, drawn| drawn.experts[5] = 32),
        ("negative", |_, drawn| drawn.experts[6] = -2),
        ("twice", |_, drawn| drawn.experts[7] = drawn.experts[4]),
        ("weight", |_, drawn| drawn.weights[6] = f32::NAN),
        ("many", |stage, drawn| drawn.tokens = stage.ep.shape().tokens_max() + 1),
        ("layer", |_, _| {}),
    ];
    for (at, (name, spoil)) in spoil.into_iter().enumerate() {
        let mut drawn = two_rows_per_expert(stage);
        let victim = me(stage) as usize == VICTIM;
        if victim {
            spoil(stage, &mut drawn);
        }
        let layer = if victim && name == "layer" { 8 } else { 7 };
        let error = stage.layer(layer, &drawn.batch()).unwrap_err();
        println!("> {name}: {error}");
        let again = stage.ep.dispatch(0, &drawn.batch()).unwrap_err();
        assert_eq!(again.to_string(), error.to_string(), "the first failure stays");
        stage.ep.reset(group, WITHIN).unwrap();
        assert_eq!((stage.ep.epoch(), stage.ep.phase()), (at as u64 + 1, 0));
        let good = two_rows_per_expert(stage);
        let out = stage.layer(7, &good.batch()).unwrap().to_vec();
        let expected = dense_of(stage.ep.shape(), &good.batch(), &scale_expert);
        assert_eq!(out[..expected.len()], expected, "after {name}");
    }
    // A row that this step did not write: rank 1 finds it, because somebody has changed the stamp.
    let drawn = two_rows_per_expert(stage);
    let mut end = stage.ep.dispatch(9, &drawn.batch()).and_then(|()| stage.ep.await_rows());
    if me(stage) == 1 {
        let row = stage.ep.layout().meta(stage.ep.shape().slot(VICTIM as u32, 3)) + 52;
        stage.ep.heap().store(1, row, &77u32.to_le_bytes());
    }
    end = end.and_then(|()| stage.pack());
    end = end.and_then(|()| stage.give_back());
    println!("> stale: {}", end.and_then(|()| stage.ep.await_results()).unwrap_err());
    stage.ep.reset(group, WITHIN).unwrap();
    // Everybody wants expert 0 of rank 0, which has room for two rows.
    let all = draw(stage, Routing::OneExpert, 0);
    println!("> overflow: {}", stage.layer(1, &all.batch()).unwrap_err());
}

/// Two tokens of each rank, such that every expert of all ranks has exactly the two rows that it has room for.
fn two_rows_per_expert(stage: &HostSeat) -> Drawn {
    let (shape, me) = (*stage.ep.shape(), me(stage));
    let mut drawn = Drawn::new(&shape, Routing::Full, SEED, me, 1);
    drawn.tokens = 2;
    for (at, expert) in (0u32..).zip(&mut drawn.experts[..8]) {
        let (token, rank) = (at / 4, (me * 4 + at % 4) % shape.ranks());
        *expert = (rank * shape.local_experts() + (me / 2 * 2 + token) % 4).cast_signed();
    }
    drawn
}

#[test]
fn wrong_input_is_named_to_all_and_a_reset_brings_everybody_back() {
    let said = run("violations", 8);
    let found = |rank: usize, name: &str| -> String {
        let mark = format!("{name}: ");
        let line = said[rank].iter().find_map(|line| line.strip_prefix(&mark));
        line.unwrap_or_else(|| panic!("rank {rank} says nothing of {name}: {said:?}")).to_owned()
    };
    for (name, own, others) in [
        (
            "expert",
            "rank 2 routes token 1 to expert 32 in place 1: there is none",
            "that does not exist",
        ),
        (
            "negative",
            "rank 2 routes token 1 to expert -2 in place 2: there is none",
            "does not exist",
        ),
        (
            "twice",
            "rank 2 routes token 1 to expert 3 twice, again in place 3",
            "to one expert twice",
        ),
        ("weight", "rank 2 gives token 1 the weight NaN in place 2", "no finite number"),
        ("many", "rank 2 has 9 tokens, more than tokens_max", "more tokens than tokens_max"),
    ] {
        let victim = found(VICTIM, name);
        // The first one comes in the first layer, the others after a good layer.
        let phase = if name == "expert" { "phase 1 (dispatch)" } else { "phase 3 (dispatch)" };
        assert!(victim.starts_with(&format!("rank 2: {phase}, layer 7: ")), "{victim}");
        assert!(victim.contains(own), "{victim}");
        for rank in [0, 1, 3, 4, 5, 6, 7] {
            let text = found(rank, name);
            assert!(text.contains(phase) && text.contains(others), "{text}");
            assert!(text.contains("; found by rank 2, heard from rank"), "{text}");
        }
    }
    for rank in 0..8 {
        let text = found(rank, "layer");
        assert!(text.contains("phase 3 (dispatch)"), "{text}");
        assert!(text.contains("came to "), "{text}");
    }
    assert!(
        found(1, "stale").contains("rank 2 did not write row 19 of this step (it is of phase 77)")
    );
    assert!(found(5, "stale").contains("rank 2 did not write a row of this step; found by rank 1"));
    let full = (0..8).map(|rank| found(rank, "overflow")).collect::<Vec<_>>();
    assert!(full.iter().any(|text| text.contains("more than rows_max")), "{full:?}");
    assert!(full.iter().all(|text| text.contains("rows_max")), "{full:?}");
}

/// The victim dies or stops between dispatch and combine of a later layer; all others say so in time.
fn missing(stage: &mut HostSeat, role: &str) {
    steps(stage, 5);
    let drawn = draw(stage, Routing::Full, 5);
    if me(stage) as usize == VICTIM {
        stage.ep.dispatch(5, &drawn.batch()).unwrap();
        stage.ep.await_rows().unwrap();
        let signal = if role == "killed" { Signal::KILL } else { Signal::STOP };
        kill_process(getpid(), signal).unwrap();
        // The signal may take effect a moment later.
        std::thread::sleep(WITHIN);
    }
    let began = boottime();
    let error = stage.layer(5, &drawn.batch()).unwrap_err();
    let took = boottime().since(began);
    println!("> {error}");
    println!("> {}", took < TIMEOUT + TIMEOUT / 10);
    assert_eq!(error.fault().unwrap().ranks().bits(), 1 << VICTIM);
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    let said = run("killed", 8);
    for rank in [0, 1, 3, 4, 5, 6, 7] {
        assert!(said[rank][1].contains("phase 12 (return), layer 5: rank 2 ended"), "{said:?}");
        assert_eq!(said[rank][2], "true", "{said:?}");
    }
}

#[test]
fn a_rank_that_is_stopped_is_named_by_all_others_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut ranks: Vec<Child> = (0..8).map(|rank| start("stopped", dir.path(), rank, 8)).collect();
    let mut stopped = ranks.remove(VICTIM);
    for said in ranks.into_iter().map(said) {
        let text = &said[1];
        assert!(text.contains("phase 12 (return), layer 5: rank 2 did not come in time"), "{text}");
        assert_eq!(said[2], "true", "{said:?}");
    }
    stopped.kill().unwrap();
    stopped.wait().unwrap();
}

/// A rank gives its communicator up: in the middle of a layer, or between two, by a call or by dropping it.
fn leaves(mut stage: HostSeat, group: &mut Group, role: &str) {
    let drawn = draw(&stage, Routing::Full, 0);
    if role == "closes" {
        stage.layer(0, &drawn.batch()).unwrap();
    }
    if me(&stage) as usize == VICTIM {
        if role == "leaves" {
            // The layer of the others: whether they see this signal before the poison or not, they hear the same.
            stage.ep.dispatch(1, &drawn.batch()).unwrap();
        }
        return if role == "leaves" {
            drop(stage);
            group.barrier("end", WITHIN).unwrap();
        } else {
            stage.ep.close(group, WITHIN).unwrap();
        };
    }
    println!("> {}", stage.layer(1, &drawn.batch()).unwrap_err());
    if role == "leaves" {
        group.barrier("end", WITHIN).unwrap();
    } else {
        stage.ep.close(group, WITHIN).unwrap();
    }
}

#[test]
fn a_rank_that_gives_up_is_named_at_once() {
    for role in ["leaves", "closes"] {
        let said = run(role, 4);
        for rank in [0, 1, 3] {
            let text = &said[rank][0];
            assert!(text.contains("layer 1: rank 2 closed its communicator"), "{role}: {said:?}");
        }
    }
}

/// All ranks close after the last layer: the one that is first fails nobody who still looks for its results.
#[test]
fn ranks_that_close_together_fail_nobody() {
    assert_eq!(run("together", 8), vec![vec!["closed"]; 8]);
}
