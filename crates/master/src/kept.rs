//! What the next leader must know: the epoch, the nodes that may hold objects, the disks that it may
//! believe, and the quotas of tenants. Nothing else: the index is rebuilt from the nodes' headers. One
//! text, in the state file of a master alone and in etcd for several; `docs/formats/state.md` describes it.
//!
//! ```text
//! mooncrate-master 3
//! epoch 7
//! node 4b1f…
//! disk 6e02…
//! quota 9c3e01aa 1073741824
//! end
//! ```

use mooncrate_core::{LeaderEpoch, NodeId, SegmentId, TenantId};
use std::fmt::Write as _;

/// First lines, by version: the first had no quotas, the first two had no disks.
const FIRST: [&str; 3] = ["mooncrate-master 1", "mooncrate-master 2", "mooncrate-master 3"];

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) epoch: LeaderEpoch,
    pub(crate) nodes: Vec<NodeId>,
    /// Disks of which nothing was struck.
    pub(crate) disks: Vec<SegmentId>,
    /// Tenants that have one, and its bytes.
    pub(crate) quotas: Vec<(TenantId, u64)>,
}

impl Kept {
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\nepoch {}\n", FIRST[2], self.epoch.0);
        for node in &self.nodes {
            writeln!(text, "node {:x}", node.0).expect("a String takes it");
        }
        for disk in &self.disks {
            writeln!(text, "disk {:x}", disk.0).expect("a String takes it");
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
        let epoch = LeaderEpoch(lines.next()?.strip_prefix("epoch ")?.parse().ok()?);
        let mut kept = Self { epoch, ..Self::default() };
        // The line without a space is the end.
        while let Some((word, rest)) = lines.next()?.split_once(' ') {
            match word {
                "node" => kept.nodes.push(NodeId(u64::from_str_radix(rest, 16).ok()?)),
                "disk" if version >= 3 => {
                    kept.disks.push(SegmentId(u64::from_str_radix(rest, 16).ok()?));
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
            disks: vec![SegmentId(1 << 62), SegmentId(u64::MAX)],
            quotas: vec![(TenantId(0), 1), (TenantId(u32::MAX), u64::MAX)],
        };
        let text = kept.render();
        assert_eq!(Kept::parse(&text), Some(kept.clone()));
        for cut in 0..text.len() {
            assert_eq!(Kept::parse(&text[..cut]), None, "cut at {cut}");
        }
        for bad in [
            "disk\n",
            "disk x\n",
            "quota 1\n",
            "quota x 1\n",
            "quota 1 -1\n",
            "shoe 1\n",
            "end\nnode 1\n",
        ] {
            let odd = text.replace("end\n", &format!("{bad}end\n"));
            assert_eq!(Kept::parse(&odd), None, "{bad}");
        }
        assert_eq!(Kept::parse(&text.replace("master 3", "master 4")), None);
    }

    /// Files of the versions before are read, and have no disks, or no quotas.
    #[test]
    fn earlier_versions_are_read() {
        let kept = Kept::parse("mooncrate-master 2\nepoch 7\nnode ff\nquota 1 1\nend\n").unwrap();
        assert_eq!((kept.disks.len(), kept.quotas.len()), (0, 1));
        assert_eq!(Kept::parse("mooncrate-master 2\nepoch 7\ndisk 1\nend\n"), None);
        let kept = Kept::parse("mooncrate-master 1\nepoch 7\nnode ff\nend\n").unwrap();
        assert_eq!((kept.epoch, &kept.nodes[..]), (LeaderEpoch(7), &[NodeId(255)][..]));
        assert!(kept.quotas.is_empty());
        assert_eq!(Kept::parse("mooncrate-master 1\nepoch 7\nquota 1 1\nend\n"), None);
    }
}
