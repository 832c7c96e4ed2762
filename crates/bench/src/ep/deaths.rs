//! Ranks that die or stop between dispatch and combine: all others name them in time.

use super::team::Team;
use anyhow::{Context, Result, bail, ensure};
use mooncrate_ep::barrier::Kind;
use mooncrate_ep::workload::Routing;
use mooncrate_mem::clock::boottime;
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;

/// Who dies or stops: not rank 0, where the group meets.
pub(super) const VICTIM: usize = 1;
/// How long a rank waits in these parts.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// A timeout that no check waits for.
pub(super) const NEVER: Duration = Duration::from_hours(1);

/// The victim gives its communicator up between two layers; the others come to the next one and hear of it.
pub(super) fn closes(team: &mut Team) -> Result<()> {
    let drawn = team.draw(Routing::Full, 0);
    for answer in team.layer(|_| 0, &drawn) {
        answer.context("a layer before the end")?;
    }
    // Where it is a process of its own, this ends when the others close as well.
    team.close(|rank| rank as usize == VICTIM)?;
    if team.seats.is_empty() {
        return Ok(());
    }
    let drawn = team.draw(Routing::Full, 1);
    for answer in team.layer(|_| 1, &drawn) {
        let Err(error) = answer else { bail!("the layer came to its end") };
        let fault = error.fault().with_context(|| format!("another error: {error}"))?;
        ensure!(fault.record.cause.kind == Kind::Left, "another reason: {fault}");
        ensure!(fault.ranks().bits() == 1 << VICTIM, "others are blamed: {fault}");
    }
    team.close(|_| true)
}

/// The victim gets a signal after the tokens have come; the others wait for its results.
pub(super) fn missing(team: &mut Team, signal: Signal, kind: Kind) -> Result<()> {
    for step in 0..3 {
        let drawn = team.draw(Routing::Full, step);
        for answer in team.layer(|_| step as u16, &drawn) {
            answer.context("a layer before the death")?;
        }
    }
    let drawn = team.draw(Routing::Full, 3);
    if team.seats[0].rank() as usize == VICTIM {
        team.seats[0].dispatch(3, &drawn[0])?;
        team.seats[0].await_rows()?;
        kill_process(getpid(), signal)?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let began = boottime();
    let Some(Err(error)) = team.layer(|_| 3, &drawn).pop() else {
        bail!("a layer without rank {VICTIM} came to its end")
    };
    let took = boottime().since(began);
    let fault = *error.fault().with_context(|| format!("it was no fault of the step: {error}"))?;
    ensure!(fault.ranks().bits() == 1 << VICTIM, "others are blamed: {fault}");
    ensure!(fault.record.cause.kind == kind, "for another reason: {fault}");
    ensure!((fault.phase(), fault.record.expected.layer()) == (8, 3), "elsewhere: {fault}");
    ensure!(took < TIMEOUT + TIMEOUT / 10, "after {took:?}, more than 1.1 times {TIMEOUT:?}");
    let again = team.layer(|_| 4, &drawn).pop().and_then(Result::err);
    let again = again.and_then(|error| error.fault().copied());
    ensure!(again == Some(fault), "a later call says something else: {again:?}");
    Ok(())
}
