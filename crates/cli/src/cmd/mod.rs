//! The commands. Each reads its arguments, asks the store, and hands the answer to `render`.

pub(crate) mod bench;
pub(crate) mod doctor;
mod drain;
mod get;
pub(crate) mod look;
mod ls;
mod notify;
mod put;
mod quota;
pub(crate) mod replay;
mod rm;
pub(crate) mod serve;
mod signals;
mod stat;
mod state_file;
pub(crate) mod token;
pub(crate) mod top;
mod windows;

use crate::args::{Command, KeyFlags};
use crate::config::Settings;
use crate::failure::{Failure, hint_of};
use crate::render::Output;
use mooncrate::{ClientConfig, ConnectOptions, Store};
use mooncrate_core::key;
use mooncrate_wire::{LinkConfig, PoolConfig};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Everything that runs to its end: what asks a running cluster, and what needs none.
pub(crate) fn ask(command: &Command, settings: &Settings, out: Output) -> Result<(), Failure> {
    match command {
        Command::Put(args) => put::run(args, settings, out),
        Command::Get(args) => get::run(args, settings, out),
        Command::Rm(args) => rm::run(args, settings, out),
        Command::Ls(args) => ls::run(args, settings, out),
        Command::Stat(args) => stat::run(args, settings, out),
        Command::Top(args) => top::run(args, settings, out),
        Command::Quota(args) => quota::run(args, settings, out),
        Command::Drain(args) => drain::run(args, settings, out),
        Command::Undrain(args) => drain::undo(args, settings, out),
        Command::Bench(args) => bench::run(args, settings, out),
        Command::Doctor(_) => doctor::run(out),
        Command::Replay(args) => replay::run(args, out),
        Command::Serve(_) | Command::Master(_) | Command::Node(_) | Command::Token(_) => {
            unreachable!("main does these itself")
        }
    }
}

/// A client of the configured cluster.
fn connect(settings: &Settings) -> Result<Store, Failure> {
    connect_as(settings, false)
}

/// The same, perhaps as an administrator.
fn connect_as(settings: &Settings, admin: bool) -> Result<Store, Failure> {
    let access = settings.credentials.access().map_err(|e| Failure::usage(e.to_string()))?;
    let link = LinkConfig { access, ..LinkConfig::default() };
    let options = ConnectOptions {
        master: settings.master.clone(),
        shared_memory: settings.shared_memory,
        admin,
        host: settings.host.clone(),
        zone: settings.zone.clone(),
        client: ClientConfig { call_time: settings.deadline, ..ClientConfig::default() },
        links: PoolConfig { link, ..PoolConfig::default() },
        ..ConnectOptions::default()
    };
    Store::connect(options).map_err(|error| {
        let message = format!("cannot reach the master at {}: {error}", settings.master);
        let failure = Failure::failed(message);
        if error.is_denied() {
            // It was reached; its own words name the way out.
            return failure;
        }
        failure.hint("`mooncrate serve` starts one; --master HOST:PORT finds one elsewhere")
    })
}

/// An error of the store, with what to do about it.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
fn failed(error: mooncrate::Error) -> Failure {
    Failure { hint: hint_of(error.advice()), ..Failure::failed(error.to_string()) }
}

/// The bytes of a key that was typed.
fn typed_key(text: &OsStr, flags: KeyFlags) -> Result<Vec<u8>, Failure> {
    let bytes = typed_bytes(text, flags)?;
    key::check(&bytes).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(bytes)
}

/// The bytes of a key, or of the beginning of one.
fn typed_bytes(text: &OsStr, flags: KeyFlags) -> Result<Vec<u8>, Failure> {
    if !flags.key_hex {
        return Ok(text.as_bytes().to_vec());
    }
    unhex(text.as_bytes()).ok_or_else(|| {
        let shown = key::show(text.as_bytes());
        Failure::usage(format!("--key-hex: `{shown}` is not pairs of hexadecimal digits"))
    })
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_typed_as_text_or_as_digits() {
        let (text, hex) = (KeyFlags { key_hex: false }, KeyFlags { key_hex: true });
        let raw = OsStr::from_bytes(b"\xff\x01");
        assert_eq!(typed_key(raw, text).unwrap(), b"\xff\x01");
        assert_eq!(typed_key("00fF".as_ref(), hex).unwrap(), [0, 0xff]);
        for bad in ["abc", "zz", "+1", " 1"] {
            let error = typed_key(bad.as_ref(), hex).unwrap_err();
            assert!(error.to_string().contains("--key-hex"), "{bad}: {error}");
        }
        let error = typed_key("".as_ref(), text).unwrap_err();
        assert!(error.to_string().contains("empty"), "{error}");
        assert_eq!(typed_bytes("".as_ref(), hex).unwrap(), b"", "a prefix may be empty");
        let long = "x".repeat(8193);
        assert!(typed_key(long.as_ref(), text).unwrap_err().to_string().contains("8193"));
    }
}
