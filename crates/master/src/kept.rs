//! What the next leader must know: the epoch, the nodes that may hold objects, the segments that it may
//! believe, and the quotas of tenants. Nothing else: the index is rebuilt from the nodes' headers. One
//! text, in the state file of a master alone and in etcd for several; `docs/formats/state.md` describes it.
//!
//! ```text
//! mooncrate-master 4
//! epoch 7
//! serial 12
//! node 4b1f…
//! segment 6e02… 91c4…
//! quota 9c3e01aa 1073741824
//! end
//! ```

use mooncrate_core::catalog::Trusted;
use mooncrate_core::{LeaderEpoch, NodeId, SegmentId, Stamp, TenantId};
use std::fmt::Write as _;

/// First lines, by version. The first had no quotas. The third listed disks by their position at a node, which
/// does not name them: they are not believed.
const FIRST: [&str; 4] =
    ["mooncrate-master 1", "mooncrate-master 2", "mooncrate-master 3", "mooncrate-master 4"];

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) epoch: LeaderEpoch,
    /// Counts the writes of one master: of two copies the later one is right.
    pub(crate) serial: u64,
    pub(crate) nodes: Vec<NodeId>,
    /// Segments of which nothing was struck.
    pub(crate) trusted: Vec<Trusted>,
    /// Tenants that have one, and its bytes.
    pub(crate) quotas: Vec<(TenantId, u64)>,
}

impl Kept {
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\nepoch {}\nserial {}\n", FIRST[3], self.epoch.0, self.serial);
        for node in &self.nodes {
            writeln!(text, "node {:x}", node.0).expect("a String takes it");
        }
        for Trusted { segment, stamp } in &self.trusted {
            writeln!(text, "segment {:x} {:x}", segment.0, stamp.0).expect("a String takes it");
        }
        for (tenant, bytes) in &self.quotas {
            writeln!(text, "quota {:x} {bytes}", tenant.0).expect("a String takes it");
        }
        text.push_str("end\n");
        text
    }

    /// `None`: this is not what a master of this version or an earlier one wrote, or not all of it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let first = lines.next()?;
        let version = 1 + FIRST.iter().position(|line| *line == first)?;
        let epoch: u64 = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
        // The next leader is one above it; no cluster has had so many.
        epoch.checked_add(1)?;
        let epoch = LeaderEpoch(epoch);
        let mut kept = Self { epoch, ..Self::default() };
        // The line without a space is the end.
        while let Some((word, rest)) = lines.next()?.split_once(' ') {
            match word {
                "node" => kept.nodes.push(NodeId(u64::from_str_radix(rest, 16).ok()?)),
                "serial" if version >= 4 => kept.serial = rest.parse().ok()?,
                "disk" if version == 3 => {}
                "segment" if version >= 4 => {
                    let (segment, stamp) = rest.split_once(' ')?;
                    let segment = SegmentId(u64::from_str_radix(segment, 16).ok()?);
                    let stamp = Stamp(u64::from_str_radix(stamp, 16).ok()?);
                    kept.trusted.push(Trusted { segment, stamp });
                }
                "quota" if version >= 2 => {
                    let (tenant, bytes) = rest.split_once(' ')?;
                    let tenant = TenantId(u32::from_str_radix(tenant, 16).ok()?);
                    kept.quotas.push((tenant, bytes.parse().ok()?));
                }
                _ => return None,
            }
        }
        (lines.next().is_none() && text.ends_with("\nend\n")).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_whole_or_not_at_all() {
        let kept = Kept {
            epoch: LeaderEpoch(7),
            nodes: vec![NodeId(1), NodeId(u64::MAX)],
            serial: 3,
            trusted: [SegmentId(1 << 62), SegmentId(u64::MAX)]
                .map(|segment| Trusted { segment, stamp: Stamp(9) })
                .to_vec(),
            quotas: vec![(TenantId(0), 1), (TenantId(u32::MAX), u64::MAX)],
        };
        let text = kept.render();
        assert_eq!(Kept::parse(&text), Some(kept.clone()));
        for cut in 0..text.len() {
            assert_eq!(Kept::parse(&text[..cut]), None, "cut at {cut}");
        }
        for bad in [
            "disk 1\n",
            "segment 1\n",
            "segment x 1\n",
            "serial x\n",
            "quota 1\n",
            "quota x 1\n",
            "quota 1 -1\n",
            "shoe 1\n",
            "end\nnode 1\n",
        ] {
            let odd = text.replace("end\n", &format!("{bad}end\n"));
            assert_eq!(Kept::parse(&odd), None, "{bad}");
        }
        assert_eq!(Kept::parse(&text.replace("master 4", "master 5")), None);
        let last = text.replace("epoch 7", &format!("epoch {}", u64::MAX));
        assert_eq!(Kept::parse(&last), None, "nobody could lead after it");
    }

    /// Files of the versions before are read, and believe no segment.
    #[test]
    fn earlier_versions_are_read() {
        let kept = Kept::parse("mooncrate-master 3\nepoch 7\ndisk 1\nend\n").unwrap();
        assert_eq!(kept.trusted, [], "a position names no disk");
        let kept = Kept::parse("mooncrate-master 2\nepoch 7\nnode ff\nquota 1 1\nend\n").unwrap();
        assert_eq!((kept.trusted.len(), kept.quotas.len()), (0, 1));
        assert_eq!(Kept::parse("mooncrate-master 2\nepoch 7\ndisk 1\nend\n"), None);
        let kept = Kept::parse("mooncrate-master 1\nepoch 7\nnode ff\nend\n").unwrap();
        assert_eq!((kept.epoch, &kept.nodes[..]), (LeaderEpoch(7), &[NodeId(255)][..]));
        assert!(kept.quotas.is_empty());
        assert_eq!(Kept::parse("mooncrate-master 1\nepoch 7\nquota 1 1\nend\n"), None);
    }
}
