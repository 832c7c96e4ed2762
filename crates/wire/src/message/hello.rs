//! The first exchange on every link: who are you, which versions, what for. Its layout never
//! changes, so that any two versions can refuse each other in words.

use super::message;
use crate::codec::{Field, Reader};
use crate::error::{DecodeError, Refusal, RefusalCode};
use crate::frame::{VERSION_MAX, VERSION_MIN};
use crate::kind::LinkKind;
use mooncrate_core::ids::{HostId, LeaderEpoch, TenantId};
use std::fmt;

/// Bytes of the longest name in a hello.
pub const NAME_BYTES_MAX: usize = 256;

/// What the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Puts and gets.
    Client = 0,
    /// Owns segments.
    Node = 1,
    /// Indexes.
    Master = 2,
    /// Looks and repairs.
    Admin = 3,
}

impl Role {
    /// The role of this name, as it is shown.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Client, Self::Node, Self::Master, Self::Admin];
        all.into_iter().find(|role| role.to_string() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Node => "node",
            Self::Master => "master",
            Self::Admin => "admin",
        })
    }
}

message! {
    /// The caller introduces itself.
    pub struct Hello {
        /// Oldest version it speaks.
        pub version_min: u8,
        /// Newest version it speaks.
        pub version_max: u8,
        /// What it is.
        pub role: Role,
        /// What it wants to send.
        pub link: LinkKind,
        /// Its name, for people.
        pub name: String,
    }
}

message! {
    /// The called introduces itself.
    pub struct HelloAck {
        /// The version both use from now on.
        pub version: u8,
        /// Its name, for people.
        pub name: String,
        /// The leader it is or knows; 0 when it knows none.
        pub epoch: LeaderEpoch,
        /// The machine it runs on: equal hosts may share memory.
        pub host: HostId,
    }
}

message! {
    /// The server asks for a proof.
    pub struct Challenge {
        /// Never the same twice.
        pub nonce: [u8; 32],
    }
}

message! {
    /// The caller's proof.
    pub struct Proof {
        /// What it is.
        pub role: Role,
        /// Whose it is; empty: the default tenant's.
        pub tenant: String,
        /// Never the same twice.
        pub nonce: [u8; 32],
        /// That it holds the token of both.
        pub mac: [u8; 32],
    }
}

message! {
    /// Whose keys the caller asks for. Sent after the hello on a control link, by callers of another
    /// tenant than the default one; the reply has no body. Where tenants are proved it must be the
    /// proved one.
    pub struct Claim {
        /// The tenant.
        pub tenant: TenantId,
    }
}

message! {
    /// The server's proof.
    pub struct ServerProof {
        /// That it knows the secret.
        pub mac: [u8; 32],
    }
}

impl Hello {
    /// The hello of this build.
    pub fn new(role: Role, link: LinkKind, name: &str) -> Self {
        let name: String = name.chars().take(NAME_BYTES_MAX / 4).collect();
        Self { version_min: VERSION_MIN, version_max: VERSION_MAX, role, link, name }
    }
}

/// What the called side makes of a hello: the version to use, or why not.
pub fn agree(hello: &Hello, serves: LinkKind) -> Result<u8, Refusal> {
    let version = hello.version_max.min(VERSION_MAX);
    if version < VERSION_MIN || version < hello.version_min {
        let message = format!(
            "no version in common: the caller speaks {} to {}, this peer {VERSION_MIN} to \
             {VERSION_MAX}; update the older one",
            hello.version_min, hello.version_max
        );
        return Err(Refusal::new(RefusalCode::Version, message));
    }
    if hello.link != serves {
        let message = format!("this address serves {serves} links, not {} links", hello.link);
        return Err(Refusal::new(RefusalCode::WrongLink, message));
    }
    if hello.name.len() > NAME_BYTES_MAX {
        let message = format!("the caller's name is over {NAME_BYTES_MAX} bytes");
        return Err(Refusal::new(RefusalCode::Protocol, message));
    }
    Ok(version)
}

impl<'a> Field<'a> for Role {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Client,
            1 => Self::Node,
            2 => Self::Master,
            3 => Self::Admin,
            value => return Err(DecodeError::BadValue { what: "a role", value: value.into() }),
        })
    }
}

impl<'a> Field<'a> for LinkKind {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let code = u8::take(from)?;
        Self::from_code(code)
            .ok_or(DecodeError::BadValue { what: "a kind of link", value: code.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_taken() {
        let mut hello = Hello::new(Role::Client, LinkKind::Control, "test");
        assert_eq!(agree(&hello, LinkKind::Control), Ok(VERSION_MAX));
        hello.version_max = 200;
        assert_eq!(agree(&hello, LinkKind::Control), Ok(VERSION_MAX));
        hello.version_min = 150;
        let refusal = agree(&hello, LinkKind::Control).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Version);
        assert!(refusal.message.contains("150 to 200"), "{refusal}");
        assert!(refusal.message.contains("this peer 8 to 8"), "{refusal}");
        // Earlier versions had other layouts: they are refused loudly.
        for old in [0, 1, 2, 3, 4, 5, 6, 7] {
            (hello.version_min, hello.version_max) = (old, old);
            let refusal = agree(&hello, LinkKind::Control).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Version);
        }
    }

    #[test]
    fn a_link_of_the_other_kind_is_refused() {
        let hello = Hello::new(Role::Client, LinkKind::Data, "test");
        assert_eq!(agree(&hello, LinkKind::Control).unwrap_err().code, RefusalCode::WrongLink);
    }
}
