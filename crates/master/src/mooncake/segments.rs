//! Segments as that API shows them: by the name under which they are lent. Where several are lent under
//! one name, they count together; the detail shows each.

use super::keys::endpoint;
use super::shown::{gib, percent};
use super::{Answer, SEGMENT_NOT_FOUND, Wrong, text_parameter};
use crate::admin::ask;
use crate::service::Master;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mooncrate_core::NodeId;
use mooncrate_core::copy::DrainStat;
use mooncrate_wire::message::{Drain, DrainWish, SegmentRow};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a segment stands: the code and the name of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(u8, &'static str);

const OK: Status = Status(1, "OK");
const DRAINING: Status = Status(2, "DRAINING");
const DRAINED: Status = Status(3, "DRAINED");

/// What is mounted under one name.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) nodes: Vec<Member>,
}

/// A node and what it has mounted.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) node: NodeId,
    endpoint: String,
    drain: DrainStat,
    rows: Vec<SegmentRow>,
}

impl Segment {
    fn rows(&self) -> impl Iterator<Item = (&Member, &SegmentRow)> {
        self.nodes.iter().flat_map(|member| member.rows.iter().map(move |row| (member, row)))
    }

    fn status(&self) -> Status {
        let mut all = self.nodes.iter().map(|member| status_of(&member.drain));
        let first = all.next().unwrap_or(OK);
        // As far as the one that is farthest behind, once any has begun.
        all.fold(first, |sum, one| if sum == one { sum } else { DRAINING })
    }
}

/// The name that a node of this name lends its memory under. Several stores may share one name; the
/// nodes of the later ones end in `#` and a number.
fn shared_name(node: &str) -> &str {
    match node.rsplit_once('#') {
        Some((name, number)) if number.parse::<u32>().is_ok() => name,
        _ => node,
    }
}

/// All nodes that have mounted something, by name.
pub(super) fn segments(master: &Master) -> Vec<Segment> {
    let rows = master.cluster_stat().segments;
    let mut names: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for entry in master.node_entries() {
        let node = entry.info.node;
        let rows: Vec<_> = rows.iter().filter(|row| row.offer.node == node).cloned().collect();
        let look = Drain { node, segment: None, wish: DrainWish::Look };
        let Some(drain) = master.drain_node(&look).filter(|_| !rows.is_empty()) else { continue };
        let member = Member { node, endpoint: endpoint(&entry.info), drain, rows };
        names.entry(shared_name(&entry.info.name).to_owned()).or_default().push(member);
    }
    names.into_iter().map(|(name, nodes)| Segment { name, nodes }).collect()
}

fn status_of(drain: &DrainStat) -> Status {
    match drain {
        stat if stat.drained() => DRAINED,
        stat if stat.draining > 0 => DRAINING,
        _ => OK,
    }
}

async fn all(master: Arc<Master>) -> Result<Vec<Segment>, Wrong> {
    Ok(ask(master, |scope, _| Ok(segments(scope.master()))).await?)
}

async fn find(master: Arc<Master>, name: &str) -> Result<Option<Segment>, Wrong> {
    Ok(all(master).await?.into_iter().find(|segment| segment.name == name))
}

/// One name per line. Callers poll for a name and then put, so a segment that has mounted and still tells
/// what it holds is not there yet.
pub(super) async fn names(State(master): State<Arc<Master>>) -> Result<String, Wrong> {
    let mut segments = all(master).await?;
    segments.retain(|segment| segment.status() != OK || segment.rows().any(|(_, row)| row.open));
    Ok(segments.iter().flat_map(|segment| [segment.name.as_str(), "\n"]).collect())
}

pub(super) async fn detail(State(master): State<Arc<Master>>) -> Answer {
    let segments = all(master).await?;
    let rows: Vec<Value> = segments
        .iter()
        .flat_map(|segment| {
            segment.rows().map(|(member, row)| detail_json(&segment.name, member, row))
        })
        .collect();
    Ok(Json(json!({ "total_segments": rows.len(), "segments": rows })))
}

fn detail_json(name: &str, member: &Member, row: &SegmentRow) -> Value {
    let (used, size) = (row.used_bytes, row.offer.bytes);
    json!({
        "segment_name": name,
        "segment_id": format!("{}-{}", row.offer.segment.0, row.offer.incarnation.0),
        "client_id": format!("{}-0", member.node.0),
        // Nobody outside a node knows or needs its addresses.
        "base_address": "0x0",
        "size_bytes": size,
        "size_human": gib(size),
        "te_endpoint": member.endpoint,
        "protocol": "tcp",
        "status": status_of(&member.drain).1,
        "allocator_used_bytes": used,
        "allocator_capacity_bytes": size,
        "allocator_usage_percent": percent(used, size),
    })
}

pub(super) async fn query(
    State(master): State<Arc<Master>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Wrong> {
    let name = text_parameter(query.as_deref(), "segment")?.unwrap_or_default();
    let Some(segment) = find(master, &name).await? else {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Ok((status, "Failed to query segment").into_response());
    };
    let used: u64 = segment.rows().map(|(_, row)| row.used_bytes).sum();
    let capacity: u64 = segment.rows().map(|(_, row)| row.offer.bytes).sum();
    // The space before the second colon belongs to that API.
    let text = format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n");
    Ok(text.into_response())
}

pub(super) async fn status(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let name = text_parameter(query.as_deref(), "segment")?;
    let name = name.ok_or_else(|| Wrong::input("Missing segment query parameter"))?;
    let segment = find(master, &name).await?;
    let Status(status, status_name) =
        segment.ok_or_else(|| Wrong::unknown(SEGMENT_NOT_FOUND))?.status();
    Ok(Json(json!({
        "success": true,
        "segment": name,
        "status": status,
        "status_name": status_name,
        "error_code": 0,
        "error_message": "",
    })))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn stores_may_share_a_name() {
        for (node, name) in [("a:1", "a:1"), ("a:1#2", "a:1"), ("a#b", "a#b"), ("a#", "a#")] {
            assert_eq!(shared_name(node), name);
        }
    }

    #[test]
    fn a_drain_shows_in_the_status() {
        let none = DrainStat::default();
        let begun = DrainStat { draining: 1, left_replicas: 3, ..none };
        let over = DrainStat { draining: 1, ..none };
        assert_eq!([none, begun, over].map(|stat| status_of(&stat)), [OK, DRAINING, DRAINED]);
        let of = |drains: &[DrainStat]| {
            let member = |drain: &DrainStat| {
                let (id, endpoint) = (NodeId(1), String::new());
                Member { node: id, endpoint, drain: *drain, rows: Vec::new() }
            };
            Segment { name: String::new(), nodes: drains.iter().map(member).collect() }.status()
        };
        assert_eq!((of(&[over, over]), of(&[over, none]), of(&[none])), (DRAINED, DRAINING, OK));
    }
}
