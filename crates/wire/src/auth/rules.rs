//! Which role may send which kind: one table. A new kind does not compile until it has a row.

use crate::kind::Kind;
use crate::message::Role;

/// Whether a peer of this role may send requests of this kind.
pub const fn may(role: Role, kind: Kind) -> bool {
    use Role::{Admin, Client, Master, Node};
    match kind {
        // The handshake is over when this table is asked.
        Kind::Hello | Kind::Refuse | Kind::Challenge | Kind::Proof | Kind::Claim => false,
        Kind::Ping | Kind::Stat | Kind::Nodes => matches!(role, Client | Node | Master | Admin),
        Kind::PutStart
        | Kind::PutEnd
        | Kind::PutRevoke
        | Kind::Locate
        | Kind::Exist
        | Kind::Look
        | Kind::Remove
        | Kind::RemoveMatching
        | Kind::PutReplan
        | Kind::Copy
        | Kind::DropCopy
        | Kind::ReadMarks
        | Kind::List => matches!(role, Client | Admin),
        Kind::SetQuota | Kind::Command => matches!(role, Admin),
        // A node hands over what it holds before it stops, and may make room in what it offers.
        Kind::Drain | Kind::Evict => matches!(role, Node | Admin),
        Kind::Mount | Kind::Announce | Kind::Unmount | Kind::Heartbeat | Kind::Orders => {
            matches!(role, Node)
        }
        // Nodes copy replicas from each other.
        Kind::Attach
        | Kind::Begin
        | Kind::Write
        | Kind::Signal
        | Kind::Read
        | Kind::Pin
        | Kind::Unpin
        | Kind::Abandon
        | Kind::Open
        | Kind::WritePart
        | Kind::Stage
        | Kind::Release
        | Kind::Verify
        | Kind::Lend => matches!(role, Client | Node | Admin),
    }
}

/// Whether a request changes what the cluster holds: an admin's leaves a line in the audit log.
pub const fn mutates(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::PutStart
            | Kind::PutEnd
            | Kind::PutRevoke
            | Kind::PutReplan
            | Kind::Remove
            | Kind::RemoveMatching
            | Kind::SetQuota
            | Kind::Drain
            | Kind::Evict
            | Kind::Copy
            | Kind::DropCopy
            | Kind::Command
            | Kind::Mount
            | Kind::Unmount
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_the_table_of_roles() {
        for &kind in Kind::ALL {
            let roles: Vec<_> = [Role::Client, Role::Node, Role::Master, Role::Admin]
                .into_iter()
                .filter(|role| may(*role, kind))
                .collect();
            let expected: &[Role] = match kind as u8 {
                0x10 | 0x18 | 0x19 => &[Role::Client, Role::Node, Role::Master, Role::Admin],
                0x11..0x18 | 0x1a..0x1d | 0x32 | 0x35 | 0x38 => &[Role::Client, Role::Admin],
                0x30 | 0x34 => &[Role::Admin],
                0x31 | 0x36 => &[Role::Node, Role::Admin],
                0x20..0x25 => &[Role::Node],
                0x40..0x4e => &[Role::Client, Role::Node, Role::Admin],
                _ => &[],
            };
            assert_eq!(roles, expected, "{kind}");
        }
    }
}
