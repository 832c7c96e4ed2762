//! What can go wrong on a link, from the bytes up to the call, and what the caller does next.

use crate::address::Address;
use crate::frame::{ATTACHMENT_BYTES_MAX, BODY_BYTES_MAX, VERSION_MAX, VERSION_MIN};
use crate::kind::Kind;
use mooncrate_core::error::Advice;
use mooncrate_core::shown::shown;
use std::io;
use std::time::Duration;

/// Why some bytes are not a frame. Final for the link: it is out of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol.
    #[error(
        "the peer does not speak Mooncrate: a frame starts with \"MCR1\", not with {}",
        opening(*found)
    )]
    Magic {
        /// What stood there.
        found: [u8; 4],
    },
    /// The header was damaged on the way.
    #[error("header checksum: the frame says {stated:08x}, its bytes give {computed:08x}")]
    HeaderCrc {
        /// In the frame.
        stated: u32,
        /// Of its bytes.
        computed: u32,
    },
    /// The body was damaged on the way.
    #[error("body checksum: the frame says {stated:08x}, its bytes give {computed:08x}")]
    BodyCrc {
        /// In the frame.
        stated: u32,
        /// Of its bytes.
        computed: u32,
    },
    /// A version that was not agreed.
    #[error("the frame has version {found}, this build speaks {VERSION_MIN} to {VERSION_MAX}")]
    Version {
        /// In the frame.
        found: u8,
    },
    /// A kind nobody knows.
    #[error("frame kind 0x{found:02x} is unknown")]
    Kind {
        /// In the frame.
        found: u8,
    },
    /// A flag nobody knows.
    #[error("frame flags 0x{found:04x} are unknown")]
    Flags {
        /// In the frame.
        found: u16,
    },
    /// Over the limit.
    #[error(
        "{bytes} bytes are over the limit of {BODY_BYTES_MAX} for a body \
         or {ATTACHMENT_BYTES_MAX} for an attachment"
    )]
    TooLarge {
        /// Asked for.
        bytes: u64,
    },
    /// An attachment on a kind that has none.
    #[error("a {kind} frame carries no attachment")]
    NoAttachmentHere {
        /// The kind.
        kind: Kind,
    },
    /// The body is too short to hold the length of its attachment.
    #[error("the body does not start with the length of its attachment")]
    NoAttachmentLength,
    /// The flag and the length contradict each other.
    #[error("the attachment has {bytes} bytes, which its flag contradicts")]
    AttachmentFlag {
        /// As the body says.
        bytes: u64,
    },
}

/// Why a frame or its body does not say what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not even a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The body ends too early.
    #[error("the body ends {missing} bytes before its {what} does")]
    Short {
        /// What was being read.
        what: &'static str,
        /// How many bytes more it needs.
        missing: usize,
    },
    /// The body goes on after the message.
    #[error("{bytes} bytes follow the end of the message")]
    TrailingBytes {
        /// How many.
        bytes: usize,
    },
    /// A list longer than allowed.
    #[error("a list of {count} is over the limit of {limit}")]
    TooMany {
        /// Stated length.
        count: u64,
        /// Allowed length.
        limit: usize,
    },
    /// A field with a value that means nothing.
    #[error("{what} cannot be {value}")]
    BadValue {
        /// Which field.
        what: &'static str,
        /// What stood there.
        value: u64,
    },
    /// A text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// A frame of a kind that has no place here.
    #[error("a {kind} frame has no place here")]
    Unexpected {
        /// Its kind.
        kind: Kind,
    },
    /// A reply with another number of results than the request had items (G11).
    #[error("{results} results came for {items} items")]
    ResultCount {
        /// Asked for.
        items: usize,
        /// Came.
        results: usize,
    },
}

/// Why a peer did not handle a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum RefusalCode {
    /// The frame or its message was wrong; the link is closed.
    Protocol = 1,
    /// No version in common.
    Version = 2,
    /// A data frame on a control link, or the other way round.
    WrongLink = 3,
    /// The caller's budget was over before the answer was there.
    Deadline = 4,
    /// The peer is going away.
    ShuttingDown = 5,
    /// Too many requests, or connections, at once.
    TooMany = 6,
    /// The answer does not fit into a frame; ask for less.
    TooLarge = 7,
    /// The peer failed in a way that is its own fault.
    Internal = 8,
    /// The peer is a master that does not lead.
    NotLeader = 9,
    /// The caller could not prove who it is, or its role may not do this.
    Denied = 10,
    /// The request was understood and makes no sense: sending it again changes nothing.
    BadRequest = 11,
}

/// The first bytes of a frame, without an escape: a refusal takes these words to the peer, who escapes them.
fn opening(found: [u8; 4]) -> String {
    match std::str::from_utf8(&found) {
        Ok(text) if text.chars().all(|c| c.is_ascii_graphic() && c != '\\' || c == ' ') => {
            format!("\"{text}\"")
        }
        _ => found.map(|byte| format!("{byte:02x}")).join(" "),
    }
}

impl RefusalCode {
    /// All codes.
    pub const ALL: [Self; 11] = [
        Self::Protocol,
        Self::Version,
        Self::WrongLink,
        Self::Deadline,
        Self::ShuttingDown,
        Self::TooMany,
        Self::TooLarge,
        Self::Internal,
        Self::NotLeader,
        Self::Denied,
        Self::BadRequest,
    ];

    /// The code with this number.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u16 == code)
    }
}

/// A reply of any request that was not handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", shown(message))]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people.
    pub message: String,
    /// Only with [`RefusalCode::NotLeader`]: where the leader is, empty if that is not known.
    pub leader: String,
}

impl Refusal {
    /// A refusal in words; long ones are cut to what a frame may carry.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        let mut end = message.len().min(crate::codec::TEXT_BYTES_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        Self { code, message, leader: String::new() }
    }

    /// The refusal of a master that does not lead. `leader` is where the leader is, if it is known.
    pub fn not_leader(leader: Option<&str>) -> Self {
        let words = match leader {
            Some(at) => format!("this master does not lead; the leader is at {at}"),
            None => "this master does not lead, and knows no leader yet".to_owned(),
        };
        let leader = leader.unwrap_or_default().to_owned();
        Self { leader, ..Self::new(RefusalCode::NotLeader, words) }
    }
}

/// Why a call over a link, or into a master in the same process, gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket failed; the link is closed.
    #[error("{doing} {peer}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With whom.
        peer: String,
        /// What the system said.
        source: io::Error,
    },
    /// The deadline passed; the link is closed, because the answer may still come.
    #[error("the deadline passed while waiting for {awaited}")]
    Deadline {
        /// What did not come.
        awaited: &'static str,
        /// How long nothing at all had come from the peer, and it had taken nothing: a long silence is a
        /// stopped peer, a short one may be a large value on a slow line.
        silent: Duration,
    },
    /// The caller does not want the answer any more ([`mooncrate_lock::interrupt`]); the link is closed, because
    /// it may still come. It says nothing about the peer.
    #[error("interrupted while waiting for {awaited}")]
    Interrupted {
        /// What was not waited for.
        awaited: &'static str,
    },
    /// The peer was not asked: it did not answer lately, and no probe has been answered since.
    #[error("{peer} has not answered for {for_ms} ms; calls are not sent until it answers a probe")]
    Away {
        /// Who.
        peer: String,
        /// For how long.
        for_ms: u64,
    },
    /// The peer answered that it will not.
    #[error("refused: {}", shown(message))]
    Refused {
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        message: String,
    },
    /// The peer is a master that does not lead: the request was not handled.
    #[error("refused: {}", shown(message))]
    NotLeader {
        /// Why, for people.
        message: String,
        /// Where the leader is, as far as that master knows.
        leader: Option<Address>,
    },
    /// The peer sent what it must not; the link is closed.
    #[error("protocol: {0}")]
    Protocol(#[from] DecodeError),
    /// The peer hung up, or the link met an error before.
    #[error("{peer} closed the link while {awaited} was awaited")]
    Closed {
        /// Who.
        peer: String,
        /// What did not come.
        awaited: &'static str,
    },
    /// The encryption of the link failed; it is closed.
    #[error("TLS with {peer}: {words}")]
    Tls {
        /// With whom.
        peer: String,
        /// Why, and what to do.
        words: String,
    },
    /// All links to the peer are in use.
    #[error("{links} links to {peer} are in use, which is the limit; try again in {after_ms} ms")]
    Busy {
        /// Who.
        peer: String,
        /// The limit.
        links: usize,
        /// Hint.
        after_ms: u32,
    },
}

impl CallError {
    /// What the caller does next. `Retry` says nothing about whether the request was carried out:
    /// requests are idempotent, or carry a token (G10).
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Io { .. } | Self::Closed { .. } | Self::Away { .. } => {
                Advice::Retry { after_ms: 100 }
            }
            Self::Deadline { .. } => Advice::Retry { after_ms: 0 },
            Self::Busy { after_ms, .. } => Advice::Retry { after_ms: *after_ms },
            Self::NotLeader { .. } => Advice::Retry { after_ms: 500 },
            Self::Protocol(_) | Self::Tls { .. } | Self::Interrupted { .. } => Advice::GiveUp,
            Self::Refused { code, .. } => match code {
                RefusalCode::Deadline => Advice::Retry { after_ms: 0 },
                RefusalCode::TooMany => Advice::Retry { after_ms: 10 },
                RefusalCode::ShuttingDown | RefusalCode::NotLeader => {
                    Advice::Retry { after_ms: 500 }
                }
                RefusalCode::Protocol
                | RefusalCode::Version
                | RefusalCode::WrongLink
                | RefusalCode::TooLarge
                | RefusalCode::Internal
                | RefusalCode::BadRequest
                | RefusalCode::Denied => Advice::GiveUp,
            },
        }
    }

    /// Whether the peer was reached and did not let us in: its words name the way out.
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::Tls { .. } | Self::Refused { code: RefusalCode::Denied, .. })
    }

    /// Whether nobody answered who could have: the peer is dead, stopped, cut off, or leads no more.
    pub const fn is_outage(&self) -> bool {
        match self {
            Self::Io { .. }
            | Self::Closed { .. }
            | Self::Deadline { .. }
            | Self::Away { .. }
            | Self::NotLeader { .. } => true,
            Self::Refused { code, .. } => matches!(code, RefusalCode::ShuttingDown),
            Self::Protocol(_) | Self::Tls { .. } | Self::Busy { .. } | Self::Interrupted { .. } => {
                false
            }
        }
    }

    /// The same words for a peer or a program: what came from others stands in them as it came. Whoever shows
    /// them to a person escapes them, once; `Display` is for those who do it here.
    pub fn sent(&self) -> String {
        match self {
            Self::Refused { message, .. } | Self::NotLeader { message, .. } => {
                format!("refused: {message}")
            }
            other => other.to_string(),
        }
    }

    /// The refusal a server sends in place of an answer that it did not get itself.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Refused { code, message } => Refusal::new(*code, message.clone()),
            Self::NotLeader { leader, .. } => {
                Refusal::not_leader(leader.as_ref().map(Address::to_string).as_deref())
            }
            Self::Deadline { .. } => Refusal::new(RefusalCode::Deadline, self.to_string()),
            Self::Busy { .. } => Refusal::new(RefusalCode::TooMany, self.to_string()),
            _ => Refusal::new(RefusalCode::Internal, self.to_string()),
        }
    }
}

impl From<FrameError> for CallError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.into())
    }
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, message, leader } = refusal;
        match code {
            // An address that cannot be read is as good as none: the others are asked in turn.
            RefusalCode::NotLeader => Self::NotLeader { message, leader: leader.parse().ok() },
            code => Self::Refused { code, message },
        }
    }
}

/// Why an owner did not do what a data frame asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The locator names a life, or a mount, that is over.
    #[error("the locator is stale; ask the master again")]
    Stale,
    /// No room, or too many pins.
    #[error("the owner is busy; try again in {after_ms} ms")]
    Busy {
        /// Hint.
        after_ms: u32,
    },
    /// The plan comes from a leader that was replaced.
    #[error("the plan comes from a leader that was replaced; start the put again")]
    OldEpoch,
    /// The token of another put, or of one that ended.
    #[error("this put is over, or the token is not its own")]
    BadToken,
    /// The bytes do not add up to their seal.
    #[error("the bytes do not match their checksum")]
    Corrupt,
    /// The range reaches outside the replica, or the extent outside the segment.
    #[error("the range reaches outside the replica")]
    OutOfBounds,
    /// No such segment here.
    #[error("this node has no such segment; ask the master again")]
    UnknownSegment,
    /// The grant of the locator is missing, forged, or for somebody or something else.
    #[error(
        "the locator was not granted to this tenant for this; ask the master for one of its own"
    )]
    Denied,
    /// The grant of the locator was good once. A fresh locator brings a fresh one, which is over again only where clocks
    /// differ by as long as a grant lasts.
    #[error(
        "the leave to use the locator has ended; if that is so with every new one, the clock of the owner's machine is \
         an hour ahead of the master's: set it right"
    )]
    Expired,
    /// Not on this kind of link, or not on this medium.
    #[error("this link or segment cannot do that")]
    Unsupported,
    /// The device that the bytes lie on did not move them: a GPU or its driver failed.
    #[error("the owner's GPU did not copy the bytes; see its log, or read another copy")]
    Device,
}

impl DataError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match *self {
            // With a fresh locator, from the master.
            Self::Stale | Self::UnknownSegment | Self::Expired => Advice::Retry { after_ms: 0 },
            // The owner gives up a device that fails; the master knows another copy, or none, then.
            Self::OldEpoch | Self::Device => Advice::Retry { after_ms: 100 },
            Self::Busy { after_ms } => Advice::Retry { after_ms },
            Self::Corrupt => Advice::TreatAsMiss,
            Self::BadToken | Self::OutOfBounds | Self::Unsupported | Self::Denied => Advice::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_cut_at_a_character() {
        let refusal = Refusal::new(RefusalCode::Internal, "é".repeat(5000));
        assert!(refusal.message.len() <= crate::codec::TEXT_BYTES_MAX);
        assert!(refusal.message.chars().all(|c| c == 'é'));
    }

    /// A peer that does not speak Mooncrate was told so with escapes, which were escaped again when shown.
    #[test]
    fn words_of_others_are_escaped_once_where_they_are_shown() {
        let refused = CallError::from(Refusal::new(RefusalCode::BadRequest, "a\\b\n"));
        assert_eq!(refused.to_string(), "refused: a\\\\b\\n");
        assert_eq!(refused.sent(), "refused: a\\b\n");
        assert_eq!(CallError::from(refused.refusal()).sent(), refused.sent(), "passed on as it is");
        let magic = |found: &[u8; 4]| FrameError::Magic { found: *found }.to_string();
        assert!(magic(b"GET ").ends_with("not with \"GET \""));
        assert!(magic(b"\x16\x03\x01\x00").ends_with("not with 16 03 01 00"));
        for found in [b"\x16\x03\\\x00", b"GET ", b"a\\b "] {
            let told = Refusal::new(RefusalCode::Protocol, magic(found));
            assert_eq!(told.to_string(), magic(found));
        }
    }

    #[test]
    fn advice_follows_the_cause() {
        let refused = |code| CallError::Refused { code, message: String::new() }.advice();
        assert_eq!(refused(RefusalCode::Version), Advice::GiveUp);
        assert_eq!(refused(RefusalCode::ShuttingDown), Advice::Retry { after_ms: 500 });
        let late = CallError::Deadline { awaited: "x", silent: Duration::ZERO };
        assert_eq!(late.advice(), Advice::Retry { after_ms: 0 });
        assert_eq!(DataError::Corrupt.advice(), Advice::TreatAsMiss);
        assert_eq!(DataError::Stale.advice(), Advice::Retry { after_ms: 0 });
        assert_eq!(DataError::BadToken.advice(), Advice::GiveUp);
    }
}
