//! Between the proto and `core`: what comes in is checked here, once; what goes out names lives of
//! slots, never addresses.

use crate::pb::buf_handle::BufStatus;
use crate::pb::replica_info::ReplicaStatus;
use crate::pb::{BufHandle, MediaType, ReplicaInfo, ReplicateConfig};
use crate::places::Owners;
use crate::status::Judged;
use mooncrate_core::error::PutError;
use mooncrate_core::ids::name_hash;
use mooncrate_core::plan::{Keep, Locator, PutConfig, Striping};
use mooncrate_core::state::ReplicaState;
use mooncrate_core::{GroupId, HostId, NodeId, PutToken, Seal, SegmentId, ZoneId};
use mooncrate_wire::message::Abandon;
use std::collections::BTreeMap;

/// The key of a request: its text, or its bytes.
pub(crate) fn key<'a>(text: &'a str, bytes: Option<&'a [u8]>) -> Result<&'a [u8], Judged> {
    match bytes {
        None => Ok(text.as_bytes()),
        Some(bytes) if text.is_empty() => Ok(bytes),
        Some(_) => Err(Judged::argument("give `key` or `key_bytes`, not both")),
    }
}

/// The length of a value, and whether its slices add up to it.
pub(crate) fn value_length(value: i64, slices: &[u64]) -> Result<u64, Judged> {
    let len = u64::try_from(value)
        .map_err(|_| Judged::argument(format!("value_length is {value}; it cannot be negative")))?;
    if slices.is_empty() {
        return Ok(len);
    }
    let sum = slices.iter().try_fold(0_u64, |sum, slice| sum.checked_add(*slice));
    if sum == Some(len) {
        return Ok(len);
    }
    let sum = sum.map_or_else(|| "more than 2^64".to_owned(), |sum| sum.to_string());
    Err(Judged::argument(format!(
        "slice_lengths add up to {sum} bytes, value_length is {len}; make them equal, or leave \
         slice_lengths out"
    )))
}

/// A node's name and the index of its segment.
pub(crate) fn segment_name(name: &str) -> Result<(&str, u16), Judged> {
    let (node, index) = match name.rsplit_once('/') {
        None => (name, Some(0)),
        Some((node, index)) => (node, index.parse().ok()),
    };
    match index {
        Some(index) if !node.is_empty() => Ok((node, index)),
        _ => Err(Judged::argument(format!(
            "segment_name is \"{}\"; write <node>/<index>, as in node-a/0",
            name.escape_debug()
        ))),
    }
}

/// The wishes of a put.
pub(crate) fn put_config(config: &ReplicateConfig) -> Result<PutConfig, Judged> {
    let wanted = config.replica_num();
    let bad = PutError::BadReplicas { wanted: u32::try_from(wanted).unwrap_or(u32::MAX) };
    let mut media = [0; 3];
    for entry in &config.media_replica_num {
        let number = entry.media.unwrap_or_default();
        let medium = MediaType::try_from(number)
            .map_err(|_| Judged::argument(format!("media_replica_num: medium {number} is none")))?;
        let count = u8::try_from(entry.count()).map_err(|_| {
            let count = entry.count();
            Judged::argument(format!("media_replica_num: {count} replicas cannot be"))
        })?;
        media[medium as usize] = count;
    }
    let mut preferred = Vec::with_capacity(config.locations.len());
    for location in &config.locations {
        let (node, index) = segment_name(location.segment_name())?;
        preferred.push(SegmentId::of(NodeId::named(node), index));
    }
    let keep = match (config.hard_pin(), config.soft_pin_ms()) {
        (false, 0) => Keep::Normal,
        (false, ttl_ms) => Keep::Soft { ttl_ms },
        (true, 0) => Keep::Hard,
        (true, _) => return Err(Judged::argument("give hard_pin or soft_pin_ms, not both")),
    };
    let label = |name: Option<&str>| name.map_or(0, name_hash);
    Ok(PutConfig {
        replicas: u8::try_from(wanted).map_err(|_| bad)?,
        best_effort: config.best_effort(),
        media,
        preferred,
        host: HostId(label(config.host.as_deref())),
        zone: ZoneId(label(config.zone.as_deref())),
        keep,
        group: config.group.as_deref().map_or(GroupId(0), |name| GroupId::named(name.as_bytes())),
        expire_ms: config.expire_ms(),
        upsert: config.upsert(),
        ..PutConfig::default()
    })
}

/// How `MasterService` calls a state: the one place where the two tables meet.
pub(crate) const fn statuses(state: ReplicaState) -> (ReplicaStatus, BufStatus) {
    match state {
        ReplicaState::Reserved => (ReplicaStatus::Initialized, BufStatus::Init),
        ReplicaState::Writing => (ReplicaStatus::Processing, BufStatus::Init),
        ReplicaState::Ready => (ReplicaStatus::Complete, BufStatus::Complete),
        ReplicaState::Retiring | ReplicaState::Dead => {
            (ReplicaStatus::Removed, BufStatus::Unregistered)
        }
        ReplicaState::Failed => (ReplicaStatus::Failed, BufStatus::Failed),
    }
}

/// Replicas as they go out, and what is known of them beside their locators.
pub(crate) struct Shown<'a> {
    /// Where they stand.
    pub(crate) state: ReplicaState,
    /// How their value is cut.
    pub(crate) striping: Striping,
    /// One seal per stripe, or none where they are not known.
    pub(crate) seals: &'a [Seal],
    /// One label per stripe, for the writer alone.
    pub(crate) labels: &'a [Vec<u8>],
    /// Who owns them.
    pub(crate) owners: &'a Owners,
}

impl Shown<'_> {
    /// Whole copies of the value, best first: each has a handle for every stripe.
    pub(crate) fn replicas(&self, locators: &[Locator]) -> Vec<ReplicaInfo> {
        let mut stripes: BTreeMap<u8, Vec<&Locator>> = BTreeMap::new();
        for locator in locators {
            stripes.entry(locator.stripe).or_default().push(locator);
        }
        let whole = stripes.len() == self.striping.stripes();
        let copies = if whole { stripes.values().map(Vec::len).min() } else { None };
        let (status, _) = statuses(self.state);
        (0..copies.unwrap_or(0))
            .map(|nth| ReplicaInfo {
                handles: stripes.values().map(|copies| self.handle(copies[nth])).collect(),
                status: status.into(),
            })
            .collect()
    }

    fn handle(&self, locator: &Locator) -> BufHandle {
        let stripe = usize::from(locator.stripe);
        let owner = self.owners.of(locator);
        let (_, status) = statuses(self.state);
        BufHandle {
            segment_name: locator.segment.0,
            size: locator.extent.len(),
            buffer: locator.extent.offset(),
            status: status.into(),
            incarnation: Some(locator.incarnation.0),
            slot: Some(locator.slot.0),
            generation: Some(locator.generation.0),
            value_bytes: Some(self.striping.stripe_len(locator.stripe)),
            stripe: Some(locator.stripe.into()),
            seal: self.seals.get(stripe).map(|seal| seal.0),
            node: owner.map(|info| info.name.clone()),
            data_address: owner.map(|info| info.tcp.clone()),
            locator: Some(locator_bytes(locator)),
            label: self.labels.get(stripe).cloned(),
        }
    }
}

/// A locator as data frames carry it, taken from the one frame that is a locator and a token.
fn locator_bytes(locator: &Locator) -> Vec<u8> {
    let mut bytes = Vec::new();
    Abandon { locator: *locator, token: PutToken(0) }.encode(&mut bytes);
    bytes.truncate(bytes.len() - size_of::<u64>());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::{Location, MediaReplicaNum, StatusCode};
    use mooncrate_core::{Extent, Generation, Incarnation, Slot};

    fn locator(stripe: u8, slot: u32) -> Locator {
        Locator {
            segment: SegmentId(7),
            incarnation: Incarnation(8),
            slot: Slot(slot),
            generation: Generation(9),
            extent: Extent::new(64, 128).unwrap(),
            stripe,
            grant: None,
        }
    }

    fn config() -> ReplicateConfig {
        ReplicateConfig { replica_num: Some(1), ..ReplicateConfig::default() }
    }

    #[test]
    fn slices_add_up_or_are_refused() {
        assert_eq!(value_length(5, &[]), Ok(5));
        assert_eq!(value_length(5, &[2, 3]), Ok(5));
        for (len, slices, says) in [
            (5, &[2, 2][..], "add up to 4 bytes"),
            (5, &[u64::MAX, 6], "more than 2^64"),
            (-1, &[], "negative"),
        ] {
            let judged = value_length(len, slices).unwrap_err();
            assert_eq!(judged.code, StatusCode::InvalidArgument);
            assert!(judged.message.contains(says), "{judged:?}");
        }
    }

    #[test]
    fn segments_are_named_by_node_and_index() {
        assert_eq!(segment_name("a"), Ok(("a", 0)));
        assert_eq!(segment_name("a/3"), Ok(("a", 3)));
        assert_eq!(segment_name("rack/a/3"), Ok(("rack/a", 3)));
        for bad in ["", "/0", "a/", "a/b", "a/65536", "a/-1"] {
            assert!(segment_name(bad).unwrap_err().message.contains("<node>/<index>"), "{bad}");
        }
    }

    #[test]
    fn wishes_are_taken_over_or_refused() {
        let entry = |media: i32, count| MediaReplicaNum { media: Some(media), count: Some(count) };
        let wishes = ReplicateConfig {
            replica_num: Some(3),
            media_replica_num: vec![entry(1, 1), entry(1, 2)],
            locations: vec![Location { segment_name: Some("a/1".into()) }],
            best_effort: Some(true),
            soft_pin_ms: Some(9),
            group: Some("g".into()),
            ..config()
        };
        let taken = put_config(&wishes).unwrap();
        assert_eq!((taken.replicas, taken.best_effort, taken.media), (3, true, [0, 2, 0]));
        assert_eq!(taken.preferred, [SegmentId::of(NodeId::named("a"), 1)]);
        assert_eq!((taken.keep, taken.group), (Keep::Soft { ttl_ms: 9 }, GroupId::named(b"g")));
        assert_eq!(taken.host, HostId(0));
        let refused = |wishes| put_config(&wishes).unwrap_err().code;
        let many = ReplicateConfig { replica_num: Some(256), ..config() };
        assert_eq!(refused(many), StatusCode::BadReplicas);
        for bad in [
            ReplicateConfig { media_replica_num: vec![entry(3, 1)], ..config() },
            ReplicateConfig { media_replica_num: vec![entry(1, -1)], ..config() },
            ReplicateConfig { hard_pin: Some(true), soft_pin_ms: Some(1), ..config() },
            ReplicateConfig { locations: vec![Location::default()], ..config() },
        ] {
            assert_eq!(refused(bad), StatusCode::InvalidArgument);
        }
    }

    #[test]
    fn a_replica_is_whole_or_not_shown() {
        let owners = Owners::default();
        let striping = Striping { len: 250, stripe_bytes: 200 };
        let seals = [Seal(1), Seal(2)];
        let shown = Shown {
            state: ReplicaState::Ready,
            striping,
            seals: &seals,
            labels: &[],
            owners: &owners,
        };
        let list = shown.replicas(&[locator(0, 1), locator(0, 2), locator(1, 3)]);
        assert_eq!(list.len(), 1);
        let told: Vec<_> =
            list[0].handles.iter().map(|h| (h.slot(), h.value_bytes(), h.seal())).collect();
        assert_eq!(told, [(1, 200, 1), (3, 50, 2)]);
        assert_eq!(list[0].status(), ReplicaStatus::Complete);
        assert!(shown.replicas(&[locator(0, 1)]).is_empty());
    }

    #[test]
    fn a_locator_travels_as_data_frames_carry_it() {
        let bytes = locator_bytes(&locator(2, 5));
        let mut frame = bytes.clone();
        frame.extend(11_u64.to_le_bytes());
        let read = Abandon::decode(&frame).unwrap();
        assert_eq!((read.locator, read.token), (locator(2, 5), PutToken(11)));
        assert_eq!(bytes[..8], 7_u64.to_le_bytes());
    }

    #[test]
    fn a_key_is_text_or_bytes() {
        assert_eq!(key("k", None), Ok(&b"k"[..]));
        assert_eq!(key("", Some(b"\xff")), Ok(&b"\xff"[..]));
        assert!(key("k", Some(b"k")).is_err());
    }
}
