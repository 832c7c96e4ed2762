//! Segments as that API shows them: one per node, under the node's name. Where a node has mounted
//! several, they count together; the detail shows each.

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
use std::sync::Arc;

/// How a segment stands: the code and the name of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(u8, &'static str);

const OK: Status = Status(1, "OK");
const DRAINING: Status = Status(2, "DRAINING");
const DRAINED: Status = Status(3, "DRAINED");

/// A node and what it has mounted.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) node: NodeId,
    endpoint: String,
    status: Status,
    rows: Vec<SegmentRow>,
}

/// All nodes that have mounted something, by name.
pub(super) fn segments(master: &Master) -> Vec<Segment> {
    let rows = master.cluster_stat().segments;
    let mut segments: Vec<Segment> = master
        .node_entries()
        .into_iter()
        .filter_map(|entry| {
            let node = entry.info.node;
            let rows: Vec<_> = rows.iter().filter(|row| row.offer.node == node).cloned().collect();
            let look = Drain { node, segment: None, wish: DrainWish::Look };
            let drain = master.drain_node(&look)?;
            let endpoint = endpoint(&entry.info);
            let status = status_of(&drain);
            (!rows.is_empty()).then_some(Segment {
                name: entry.info.name,
                node,
                endpoint,
                status,
                rows,
            })
        })
        .collect();
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    segments
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

/// One name per line; nothing at all while no node has mounted anything, which callers poll for.
pub(super) async fn names(State(master): State<Arc<Master>>) -> Result<String, Wrong> {
    let segments = all(master).await?;
    Ok(segments.iter().flat_map(|segment| [segment.name.as_str(), "\n"]).collect())
}

pub(super) async fn detail(State(master): State<Arc<Master>>) -> Answer {
    let segments = all(master).await?;
    let rows: Vec<Value> = segments
        .iter()
        .flat_map(|segment| segment.rows.iter().map(move |row| detail_json(segment, row)))
        .collect();
    Ok(Json(json!({ "total_segments": rows.len(), "segments": rows })))
}

fn detail_json(segment: &Segment, row: &SegmentRow) -> Value {
    let (used, size) = (row.used_bytes, row.offer.bytes);
    json!({
        "segment_name": segment.name,
        "segment_id": format!("{}-{}", row.offer.segment.0, row.offer.incarnation.0),
        "client_id": format!("{}-0", segment.node.0),
        // Nobody outside a node knows or needs its addresses.
        "base_address": "0x0",
        "size_bytes": size,
        "size_human": gib(size),
        "te_endpoint": segment.endpoint,
        "protocol": "tcp",
        "status": segment.status.1,
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
    let used: u64 = segment.rows.iter().map(|row| row.used_bytes).sum();
    let capacity: u64 = segment.rows.iter().map(|row| row.offer.bytes).sum();
    // The space before the second colon belongs to that API.
    let text = format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n");
    Ok(text.into_response())
}

pub(super) async fn status(State(master): State<Arc<Master>>, RawQuery(query): RawQuery) -> Answer {
    let name = text_parameter(query.as_deref(), "segment")?;
    let name = name.ok_or_else(|| Wrong::input("Missing segment query parameter"))?;
    let segment = find(master, &name).await?;
    let Status(status, status_name) =
        segment.ok_or_else(|| Wrong::unknown(SEGMENT_NOT_FOUND))?.status;
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
    fn a_drain_shows_in_the_status() {
        let none = DrainStat::default();
        let begun = DrainStat { draining: 1, left_replicas: 3, ..none };
        let over = DrainStat { draining: 1, ..none };
        assert_eq!([none, begun, over].map(|stat| status_of(&stat)), [OK, DRAINING, DRAINED]);
    }
}
