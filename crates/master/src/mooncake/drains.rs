//! The routes of drain jobs. An id is `EPOCH-NUMBER`: the leader that began the job, and which of its
//! jobs it is.

use super::jobs::{Job, NoJob, State as JobState};
use super::segments::segments;
use super::{
    Answer, JOB_NOT_FOUND, SEGMENT_NOT_FOUND, TOO_MANY_TASKS, WRONG_STATUS, Wrong, text_parameter,
};
use crate::admin::ask;
use crate::service::Master;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, RawQuery, State};
use mooncrate_admin::{changed, told};
use mooncrate_core::NodeId;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// Nodes of one job.
const NODES_MAX: usize = 1024;

/// The nodes that a body names.
fn wanted(body: &[u8]) -> Result<Vec<String>, Wrong> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| Wrong::input(format!("no JSON: {error}")))?;
    let names = |field: &str| match &body[field] {
        Value::Null => Ok(Vec::new()),
        Value::Array(names) => names
            .iter()
            .map(|name| name.as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Wrong::input(format!("{field}: a list of names is wanted"))),
        _ => Err(Wrong::input(format!("{field}: a list of names is wanted"))),
    };
    let mut segments = names("segments")?;
    segments.sort();
    segments.dedup();
    if segments.is_empty() || segments.len() > NODES_MAX {
        return Err(Wrong::input(format!("segments: 1 to {NODES_MAX} names are wanted")));
    }
    if !names("target_segments")?.is_empty() {
        let text =
            "target_segments is not possible: the master chooses where values go; leave it away";
        return Err(Wrong::input(text));
    }
    let concurrency = &body["max_concurrency"];
    if !concurrency.is_null() && concurrency.as_u64().is_none_or(|count| count == 0) {
        return Err(Wrong::input("max_concurrency: a number above 0 is wanted"));
    }
    Ok(segments)
}

pub(super) async fn create(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    body: Bytes,
) -> Answer {
    let names = wanted(&body)?;
    let subject = format!("nodes {}", names.join(", "));
    let begun = ask(master, move |scope, _| {
        let master = scope.master();
        let known = segments(master);
        let nodes = |name: String| {
            let found = known.iter().find(|segment| segment.name == name);
            let members = &found.ok_or_else(|| NoJob::Gone(name.clone()))?.nodes;
            Ok(members.iter().map(|member| (name.clone(), member.node)).collect())
        };
        let nodes: Result<Vec<Vec<(String, NodeId)>>, _> = names.into_iter().map(nodes).collect();
        let number = nodes.and_then(|nodes| master.jobs.begin(master, nodes.concat()));
        Ok(number.map(|number| format!("{}-{number}", master.leader_epoch().0)))
    });
    let begun = begun.await?;
    let outcome = match &begun {
        Ok(id) => Ok(format!("begun as {id}")),
        Err(no) => Err(format!("{no:?}")),
    };
    changed(who, "drain", &subject, told(&outcome));
    let id = begun.map_err(|no| match no {
        NoJob::Gone(_) => Wrong::unknown(SEGMENT_NOT_FOUND),
        NoJob::Taken(name) => {
            let text = format!("{}: {name} is being drained by another job", WRONG_STATUS.1);
            Wrong::conflict(WRONG_STATUS, text)
        }
        NoJob::TooMany => Wrong::conflict(TOO_MANY_TASKS, TOO_MANY_TASKS.1),
    })?;
    Ok(Json(begun_json(&id, "CREATED")))
}

fn begun_json(id: &str, status: &str) -> Value {
    json!({
        "success": true,
        "job_id": id,
        "status": status,
        "error_code": 0,
        "error_message": "",
    })
}

/// The number in an id of this leader's.
fn number(master: &Master, id: &str) -> Option<u64> {
    let (epoch, number) = id.split_once('-')?;
    let own = epoch.parse() == Ok(master.leader_epoch().0);
    number.parse().ok().filter(|_| own)
}

fn job_id(query: Option<&str>) -> Result<String, Wrong> {
    let id = text_parameter(query, "job_id")?;
    id.ok_or_else(|| Wrong::input("Missing job_id query parameter"))
}

pub(super) async fn query(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let id = job_id(query.as_deref())?;
    let asked = id.clone();
    let job = ask(master, move |scope, _| {
        let master = scope.master();
        Ok(number(master, &asked).and_then(|number| master.jobs.get(master, number)))
    });
    let job = job.await?.ok_or_else(|| Wrong::unknown(JOB_NOT_FOUND))?;
    Ok(Json(job_json(&id, &job)))
}

fn job_json(id: &str, job: &Job) -> Value {
    let stat = job.stat();
    let (status, status_name) = job.state.shown();
    json!({
        "success": true,
        "job_id": id,
        "error_code": 0,
        "error_message": "",
        "type": 0,
        "type_name": "DRAIN",
        "status": status,
        "status_name": status_name,
        "created_at_ms_epoch": job.created_ms,
        "last_updated_at_ms_epoch": job.updated_ms,
        "segments": job.segments(),
        "succeeded_units": stat.moved + stat.dropped,
        // A copy that fails is tried again: what is left of a job that failed is what was lost.
        "failed_units": if job.state == JobState::Failed { stat.left_replicas } else { 0 },
        "blocked_units": stat.stuck.min(stat.left_replicas),
        "active_units": stat.left_replicas.saturating_sub(stat.stuck),
        "migrated_bytes": stat.start_bytes.saturating_sub(stat.left_bytes),
        "message": job.message,
    })
}

pub(super) async fn cancel(
    State(master): State<Arc<Master>>,
    ConnectInfo(who): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
) -> Answer {
    let id = job_id(query.as_deref())?;
    let asked = id.clone();
    let canceled = ask(master, move |scope, _| {
        let master = scope.master();
        Ok(number(master, &asked).and_then(|number| master.jobs.cancel(master, number)))
    });
    let canceled = canceled.await?;
    let outcome = match &canceled {
        None => Err("no such job".to_owned()),
        Some(Err(state)) => Err(format!("it is over already: {}", state.shown().1)),
        Some(Ok(job)) => Ok(format!("nodes {} take values again", job.segments().join(", "))),
    };
    changed(who, "undrain", &format!("job {id}"), told(&outcome));
    match canceled {
        None => Err(Wrong::unknown(JOB_NOT_FOUND)),
        Some(Err(state)) => {
            let text = format!("{}: the job is {}", WRONG_STATUS.1, state.shown().1);
            Err(Wrong::conflict(WRONG_STATUS, text))
        }
        Some(Ok(job)) => Ok(Json(begun_json(&id, job.state.shown().1))),
    }
}
