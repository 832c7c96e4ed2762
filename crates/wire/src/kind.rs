//! What a frame is about. A request and its reply share the kind; a flag tells them apart. A kind
//! belongs to one sort of link, so that a value can never enter a control link, not even by
//! mistake.

use std::fmt;

/// What a link carries. Said in the hello and checked for every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkKind {
    /// Client or node to master: metadata only.
    Control = 0,
    /// Client to node: values, descriptors, pins.
    Data = 1,
}

impl LinkKind {
    /// The link kind with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Control,
            1 => Self::Data,
            _ => return None,
        })
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Data => "data",
        })
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// What a frame is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// All kinds, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// Its name in words, as the format page and messages show it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What a caller of this kind waits for, for errors that name it.
            pub const fn awaited(self) -> &'static str {
                match self { $(Self::$name => concat!("the reply to ", $text),)* }
            }
        }
    };
}

kinds! {
    /// First frame of a link, either way.
    Hello = 0x01, "hello";
    /// Reply of any request that was not handled.
    Refuse = 0x02, "refuse";
    /// The server asks for a proof.
    Challenge = 0x03, "challenge";
    /// Who holds which token, either way.
    Proof = 0x04, "proof";
    /// Whose keys a caller asks for, at a server that asks for no proof.
    Claim = 0x05, "claim";
    /// Is the master there?
    Ping = 0x10, "ping";
    /// Reserve room for values.
    PutStart = 0x11, "put_start";
    /// Make written values visible.
    PutEnd = 0x12, "put_end";
    /// Give reserved room back.
    PutRevoke = 0x13, "put_revoke";
    /// Where are these objects?
    Locate = 0x14, "locate";
    /// Are these keys there?
    Exist = 0x15, "exist";
    /// Remove objects.
    Remove = 0x16, "remove";
    /// A page of keys.
    List = 0x17, "list";
    /// Numbers of the cluster.
    Stat = 0x18, "stat";
    /// Where nodes can be reached.
    Nodes = 0x19, "nodes";
    /// Copies of an open put failed their writer: plan them anew.
    PutReplan = 0x1a, "put_replan";
    /// Remove the objects whose keys match, a bounded step.
    RemoveMatching = 0x1b, "remove_matching";
    /// What is known of these keys?
    Look = 0x1c, "look";
    /// Sets what a tenant may use.
    SetQuota = 0x30, "set_quota";
    /// Empties the segments of a node, or tells how far that is.
    Drain = 0x31, "drain";
    /// Copies or moves an object to a segment.
    Copy = 0x32, "copy";
    /// A command for a node.
    Command = 0x34, "command";
    /// Ends one copy of an object.
    DropCopy = 0x35, "drop_copy";
    /// Evicts until a segment holds no more than so much.
    Evict = 0x36, "evict";
    /// Reads that asked nobody.
    ReadMarks = 0x38, "read_marks";
    /// A node offers segments.
    Mount = 0x20, "mount";
    /// A node tells what is in a segment.
    Announce = 0x21, "announce";
    /// A node takes segments back.
    Unmount = 0x22, "unmount";
    /// A node is alive.
    Heartbeat = 0x23, "heartbeat";
    /// A node delivers notices and waits for orders.
    Orders = 0x24, "orders";
    /// Descriptors of a segment in shared memory.
    Attach = 0x40, "attach";
    /// A put through shared memory begins.
    Begin = 0x41, "begin";
    /// A put whose value is attached.
    Write = 0x42, "write";
    /// The bytes are in place: publish.
    Signal = 0x43, "signal";
    /// Bytes of a replica, attached to the reply.
    Read = 0x44, "read";
    /// Keep these replicas in place.
    Pin = 0x45, "pin";
    /// Let them go.
    Unpin = 0x46, "unpin";
    /// The writer gave up.
    Abandon = 0x47, "abandon";
    /// A put in parts begins.
    Open = 0x48, "open";
    /// A part of an open put, attached.
    WritePart = 0x49, "write_part";
    /// Load values from a disk into the owner's memory.
    Stage = 0x4a, "stage";
    /// What was staged was read.
    Release = 0x4b, "release";
    /// Sum a replica that a reader found wrong.
    Verify = 0x4c, "verify";
    /// Descriptor of a segment in memory of a GPU.
    Lend = 0x4d, "lend";
}

impl Kind {
    /// The link it may travel on; `None`: any.
    pub const fn link(self) -> Option<LinkKind> {
        match self as u8 {
            0x10..0x40 => Some(LinkKind::Control),
            0x40..0x60 => Some(LinkKind::Data),
            _ => None,
        }
    }

    /// Whether it belongs to the hello, before a version is agreed.
    pub const fn greets(self) -> bool {
        matches!(self, Self::Hello | Self::Refuse | Self::Challenge | Self::Proof | Self::Claim)
    }

    /// Whether a frame of this kind starts its body with the length of an attachment.
    pub const fn may_attach(self, reply: bool) -> bool {
        matches!((self, reply), (Self::Write | Self::WritePart, false) | (Self::Read, true))
    }

    /// Whether asking twice has the same outcome as asking once, so that a request whose answer was
    /// lost with the link may go out again by itself (G10). A repeated `put_start` would find its
    /// own first attempt in the way; a repeated pin would pin twice, and a repeated stage load twice; a repeated poll for orders
    /// could lose the orders that the first one took.
    pub const fn repeatable(self) -> bool {
        !matches!(
            self,
            Self::PutStart
                | Self::PutReplan
                | Self::Orders
                | Self::Begin
                | Self::Write
                | Self::Open
                | Self::WritePart
                | Self::Pin
                | Self::Stage
                | Self::Unpin
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_and_every_kind_has_its_link() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_code(kind as u8), Some(kind));
            let free = kind.greets();
            assert_eq!(kind.link().is_none(), free, "{kind}");
        }
        assert_eq!(Kind::from_code(0), None);
        assert_eq!(Kind::Stat.link(), Some(LinkKind::Control));
        assert_eq!(Kind::Abandon.link(), Some(LinkKind::Data));
    }

    /// The page is the contract: a new kind must be drawn there.
    #[test]
    fn the_format_page_lists_every_kind() {
        let page = include_str!("../../../docs/formats/frame.md");
        for &kind in Kind::ALL {
            let row = format!("| 0x{:02x} | {} |", kind as u8, kind.name());
            assert!(page.contains(&row), "docs/formats/frame.md lacks the row `{row}`");
        }
    }
}
