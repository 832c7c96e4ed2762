//! A TCP proxy that spoils what passes: it delays, flips bits, cuts off, repeats, slows down or forgets.
//! Seeded, so that the same bytes meet the same fate in the same order of reads.
//!
//! What must stay true: in [`Mode::Pass`] it changes nothing; every thread ends soon after its connection
//! does or the proxy is dropped.

use crate::chaos::dice::Dice;
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

/// How often a waiting thread looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);
const CHUNK: usize = 16 << 10;

/// What happens to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Pass,
    /// Each read waits up to this long.
    Delay(Duration),
    /// One bit in each of so many reads is flipped.
    Flip(u64),
    /// The connection is cut in the middle of one of so many reads.
    Truncate(u64),
    /// One of so many reads is passed on twice.
    Repeat(u64),
    /// So many bytes a second.
    Slow(u64),
    /// Connections stay open and nothing passes any more, in either direction.
    Silence,
    /// Requests pass, replies do not.
    SilenceReplies,
}

#[derive(Debug)]
struct State {
    mode: Mutex<Mode>,
    /// Grows when all connections are to be cut.
    round: AtomicU64,
    ended: AtomicBool,
    spoiled: AtomicU64,
    connections: AtomicU64,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    state: Arc<State>,
    pub(crate) address: SocketAddr,
}

impl Proxy {
    /// Listens at `listen` and passes on to `target`, with the network of the calling thread.
    pub(crate) fn start(listen: SocketAddr, target: SocketAddr, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind(listen).with_context(|| format!("proxy at {listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            mode: Mutex::new(Mode::Pass),
            round: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            spoiled: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        Builder::new().name("proxy".into()).spawn(move || {
            let mut count = 0_u64;
            while !shared.ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        count += 1;
                        let dice = Dice::new(seed).stream(&format!("connection {count}"));
                        // A target that is down refuses: the client sees its connection closed.
                        let _ = join(&shared, client, target, &dice);
                    }
                    Err(_) => std::thread::sleep(LOOK / 10),
                }
            }
        })?;
        Ok(Self { state, address })
    }

    /// Changes what happens, and cuts what is connected: a stream that was spoiled is of no use.
    pub(crate) fn set(&self, mode: Mode) {
        *self.state.mode.lock().expect("no holder panics") = mode;
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.state.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads that were changed, delayed, repeated, cut off or swallowed.
    pub(crate) fn spoiled(&self) -> u64 {
        self.state.spoiled.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        self.cut();
    }
}

/// Two threads pass bytes, one in each direction.
fn join(
    state: &Arc<State>,
    client: TcpStream,
    target: SocketAddr,
    dice: &Dice,
) -> std::io::Result<()> {
    let server = TcpStream::connect_timeout(&target, Duration::from_secs(1))?;
    for stream in [&client, &server] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    }
    state.connections.fetch_add(1, Ordering::Relaxed);
    let round = state.round.load(Ordering::Relaxed);
    for (from, to, replies) in
        [(client.try_clone()?, server.try_clone()?, false), (server, client, true)]
    {
        let (state, dice) =
            (Arc::clone(state), dice.stream(if replies { "back" } else { "forth" }));
        Builder::new().name("proxied".into()).spawn(move || {
            let _ = pass(&state, round, &from, &to, replies, dice);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        })?;
    }
    Ok(())
}

/// Passes bytes until somebody hangs up.
fn pass(
    state: &State,
    round: u64,
    mut from: &TcpStream,
    mut to: &TcpStream,
    replies: bool,
    mut dice: Dice,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    while state.round.load(Ordering::Relaxed) == round {
        let mode = *state.mode.lock().expect("no holder panics");
        if mode == Mode::Silence || (mode == Mode::SilenceReplies && replies) {
            // Not read either: the kernel goes on acknowledging until its buffers are full.
            state.spoiled.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(LOOK);
            continue;
        }
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        let bytes = &mut buffer[..read];
        let spoil = |one_of: u64, dice: &mut Dice| one_of > 0 && dice.below(one_of) == 0;
        let mut spoiled = true;
        match mode {
            Mode::Delay(most) => std::thread::sleep(dice.part_of(most)),
            Mode::Slow(bytes_per_second) => {
                std::thread::sleep(Duration::from_micros(
                    read as u64 * 1_000_000 / bytes_per_second,
                ));
            }
            Mode::Flip(one_of) if spoil(one_of, &mut dice) => {
                let at = dice.below(read as u64) as usize;
                bytes[at] ^= 1 << dice.below(8);
            }
            Mode::Truncate(one_of) if spoil(one_of, &mut dice) => {
                state.spoiled.fetch_add(1, Ordering::Relaxed);
                return to.write_all(&bytes[..dice.below(read as u64) as usize]);
            }
            Mode::Repeat(one_of) if spoil(one_of, &mut dice) => to.write_all(bytes)?,
            _ => spoiled = false,
        }
        state.spoiled.fetch_add(u64::from(spoiled), Ordering::Relaxed);
        to.write_all(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo behind a proxy; what came back of `sent`, and how often the proxy spoiled.
    fn echoed(mode: Mode, sent: &[u8]) -> (Vec<u8>, u64) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let proxy = Proxy::start(any, server.local_addr().unwrap(), 7).unwrap();
        proxy.set(mode);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = server.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
            });
            let mut client = TcpStream::connect(proxy.address).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            client.write_all(sent).unwrap();
            let mut back = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = client.read(&mut buffer) {
                back.extend_from_slice(&buffer[..read]);
            }
            drop(client);
            (back, proxy.spoiled())
        })
    }

    #[test]
    fn a_proxy_spoils_only_what_it_is_told_to() {
        let sent = [0x55; 1000];
        assert_eq!(echoed(Mode::Pass, &sent), (sent.to_vec(), 0));
        let (back, spoiled) = echoed(Mode::Flip(1), &sent);
        let flipped: u32 = back.iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
        assert!(back.len() == 1000 && u64::from(flipped) == spoiled && spoiled >= 2, "{flipped}");
        let (back, spoiled) = echoed(Mode::Repeat(1), &sent);
        assert!(back.len() >= 2000 && spoiled >= 1, "{}", back.len());
        let (back, spoiled) = echoed(Mode::Truncate(1), &sent);
        assert!(back.len() < 1000 && spoiled >= 1, "{}", back.len());
        let (back, spoiled) = echoed(Mode::Silence, &sent);
        assert!(back.is_empty() && spoiled >= 1);
        let (back, _) = echoed(Mode::SilenceReplies, &sent);
        assert!(back.is_empty());
    }
}
