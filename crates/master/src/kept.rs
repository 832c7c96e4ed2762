//! What the next leader must know: the epoch, the nodes that may hold objects, and the quotas of
//! tenants. Nothing else: the index is rebuilt from the nodes' headers. One text, in the state file of
//! a master alone and in etcd for several; `docs/formats/state.md` describes it.
//!
//! ```text
//! mooncrate-master 2
//! epoch 7
//! node 4b1f…
//! quota 9c3e01aa 1073741824
//! end
//! ```

use mooncrate_core::{LeaderEpoch, NodeId, TenantId};
use std::fmt::Write as _;

/// The first line. Version 1 had no quotas.
const FIRST: &str = "mooncrate-master 2";
const FIRST_OF_1: &str = "mooncrate-master 1";

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) epoch: LeaderEpoch,
    pub(crate) nodes: Vec<NodeId>,
    /// Tenants that have one, and its bytes.
    pub(crate) quotas: Vec<(TenantId, u64)>,
}

impl Kept {
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{FIRST}\nepoch {}\n", self.epoch.0);
        for node in &self.nodes {
            writeln!(text, "node {:x}", node.0).expect("a String takes it");
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
        let has_quotas = match lines.next()? {
            FIRST => true,
            FIRST_OF_1 => false,
            _ => return None,
        };
        let epoch = LeaderEpoch(lines.next()?.strip_prefix("epoch ")?.parse().ok()?);
        let mut kept = Self { epoch, ..Self::default() };
        // The line without a space is the end.
        while let Some((word, rest)) = lines.next()?.split_once(' ') {
            match word {
                "node" => kept.nodes.push(NodeId(u64::from_str_radix(rest, 16).ok()?)),
                "quota" if has_quotas => {
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
            quotas: vec![(TenantId(0), 1), (TenantId(u32::MAX), u64::MAX)],
        };
        let text = kept.render();
        assert_eq!(Kept::parse(&text), Some(kept.clone()));
        for cut in 0..text.len() {
            assert_eq!(Kept::parse(&text[..cut]), None, "cut at {cut}");
        }
        for bad in ["quota 1\n", "quota x 1\n", "quota 1 -1\n", "shoe 1\n", "end\nnode 1\n"] {
            let odd = text.replace("end\n", &format!("{bad}end\n"));
            assert_eq!(Kept::parse(&odd), None, "{bad}");
        }
        assert_eq!(Kept::parse(&text.replace("master 2", "master 3")), None);
    }

    /// A file of the version before is read, and has no quotas.
    #[test]
    fn version_1_is_read() {
        let kept = Kept::parse("mooncrate-master 1\nepoch 7\nnode ff\nend\n").unwrap();
        assert_eq!((kept.epoch, &kept.nodes[..]), (LeaderEpoch(7), &[NodeId(255)][..]));
        assert!(kept.quotas.is_empty());
        assert_eq!(Kept::parse("mooncrate-master 1\nepoch 7\nquota 1 1\nend\n"), None);
    }
}
