//! The best plain programs that move the same bytes: blocking sockets with the options that ours
//! have, one small header, vectored writes, reads of 256 KiB into a buffer that is used again. No
//! frames, no checksums, no states.
//!
//! One connection is one session. Its first message says what all others will be, so that neither
//! side has to look before it reads.

use crate::peer;
use crate::workload::Pool;
use anyhow::{Context, Result, bail, ensure};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, RwLock};
use std::thread;

/// Bytes of every header.
const HEAD_BYTES: usize = 32;
/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// The peer sends values of this size.
    Get { size: usize },
    /// The peer takes values of this size.
    Put { size: usize },
    /// So many bytes there, so many back.
    PingPong { there: usize, back: usize },
}

impl Session {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let words = match self {
            Self::Get { size } => [1, size, 0],
            Self::Put { size } => [2, size, 0],
            Self::PingPong { there, back } => [3, there, back],
        };
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&(word as u64).to_le_bytes());
        }
        head
    }

    fn decode(head: &[u8; HEAD_BYTES]) -> Result<Self> {
        let [what, a, b] = [0, 8, 16].map(|at| word(&head[at..]));
        Ok(match what {
            1 => Self::Get { size: a },
            2 => Self::Put { size: a },
            3 => Self::PingPong { there: a, back: b },
            other => bail!("no session has the number {other}"),
        })
    }
}

fn word(bytes: &[u8]) -> usize {
    let word = bytes.first_chunk().expect("heads are longer than a word");
    usize::try_from(u64::from_le_bytes(*word)).expect("64-bit targets only")
}

/// This side of a session.
#[derive(Debug)]
pub(crate) struct Plain {
    stream: TcpStream,
    session: Session,
    there: Vec<u8>,
    back: Vec<u8>,
}

impl Plain {
    pub(crate) fn connect(address: &str, session: Session) -> Result<Self> {
        let mut stream = TcpStream::connect(address).context("cannot reach the plain peer")?;
        stream.set_nodelay(true)?;
        stream.write_all(&session.encode())?;
        let (there, back) = match session {
            Session::PingPong { there, back } => (there, back),
            _ => (HEAD_BYTES, HEAD_BYTES),
        };
        Ok(Self { stream, session, there: vec![1; there], back: vec![0; back] })
    }

    /// Takes the value at a place.
    pub(crate) fn get(&mut self, at: usize, target: &mut [u8]) -> io::Result<()> {
        debug_assert_eq!(self.session, Session::Get { size: target.len() });
        self.there[..8].copy_from_slice(&(at as u64).to_le_bytes());
        self.stream.write_all(&self.there)?;
        read_both(&mut self.stream, &mut self.back, target)
    }

    /// Stores the value at a place.
    pub(crate) fn put(&mut self, at: usize, value: &[u8]) -> io::Result<()> {
        debug_assert_eq!(self.session, Session::Put { size: value.len() });
        self.there[..8].copy_from_slice(&(at as u64).to_le_bytes());
        write_both(&mut self.stream, &self.there, value)?;
        self.stream.read_exact(&mut self.back)
    }

    /// There and back.
    pub(crate) fn ping_pong(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.there)?;
        self.stream.read_exact(&mut self.back)
    }
}

/// Writes head and value in as few calls as the socket takes.
fn write_both(stream: &mut TcpStream, head: &[u8], value: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(value)];
    let mut parts = &mut parts[..];
    while !parts.is_empty() {
        match stream.write_vectored(parts)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => IoSlice::advance_slices(&mut parts, count),
        }
    }
    Ok(())
}

/// Reads head and value, the head together with the first bytes of the value.
fn read_both(stream: &mut TcpStream, head: &mut [u8], value: &mut [u8]) -> io::Result<()> {
    let first = value.len().min(READ_BYTES);
    let mut parts = [IoSliceMut::new(head), IoSliceMut::new(&mut value[..first])];
    let came = stream.read_vectored(&mut parts)?;
    let mut at = came.saturating_sub(head.len());
    if came < head.len() {
        stream.read_exact(&mut head[came..])?;
        at = 0;
    }
    while at < value.len() {
        let end = value.len().min(at + READ_BYTES);
        match stream.read(&mut value[at..end])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

/// The other side, as a process of its own; `bytes` is what its values are taken from.
pub(crate) fn serve(bytes: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let memory = Arc::new(Memory::new(bytes));
    // Neither it nor its sessions are joined: the process ends when its parent does.
    thread::Builder::new().name("accept".into()).spawn(move || accept(&listener, &memory))?;
    peer::until_the_end(&address.to_string())
}

/// Where values come from and go to.
struct Memory {
    bytes: usize,
    pool: RwLock<Pool>,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        Self { bytes, pool: RwLock::new(Pool::new(bytes)) }
    }
}

fn accept(listener: &TcpListener, memory: &Arc<Memory>) {
    for stream in listener.incoming() {
        let memory = Arc::clone(memory);
        let session = move || {
            // A session ends with an error when its caller hangs up.
            let _ = stream.map_err(anyhow::Error::from).and_then(|stream| answer(stream, &memory));
        };
        let started = thread::Builder::new().name("session".into()).spawn(session);
        started.expect("a bench needs nine threads");
    }
}

fn answer(mut stream: TcpStream, memory: &Memory) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    match Session::decode(&head)? {
        Session::Get { size } => {
            let pool = memory.pool.read().expect("sessions do not panic");
            ensure!(pool.places(size) > 0, "no value of {size} bytes fits");
            loop {
                stream.read_exact(&mut head)?;
                let value = pool.place(size, word(&head) % pool.places(size));
                write_both(&mut stream, &head, value)?;
            }
        }
        Session::Put { size } => {
            let (mut first, mut own);
            let pool: &mut Pool = if let Ok(shared) = memory.pool.try_write() {
                first = shared;
                &mut first
            } else {
                // Sessions run side by side: a second one that puts has memory of its own.
                own = Pool::new(memory.bytes);
                &mut own
            };
            ensure!(pool.places(size) > 0, "no value of {size} bytes fits");
            // A value goes where the one before said: its own head comes with it, and looking first
            // would cost a system call. The first one goes to the first place.
            let mut place = 0;
            loop {
                let at = place % pool.places(size);
                read_both(&mut stream, &mut head, pool.place_mut(size, at))?;
                place = word(&head);
                stream.write_all(&head)?;
            }
        }
        Session::PingPong { there, back } => {
            let (mut there, back) = (vec![0; there], vec![2; back]);
            loop {
                stream.read_exact(&mut there)?;
                stream.write_all(&back)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side in this process, without a pipe to wait on.
    fn here(bytes: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let memory = Arc::new(Memory::new(bytes));
        thread::Builder::new().spawn(move || accept(&listener, &memory)).unwrap();
        address
    }

    #[test]
    fn sessions_are_told_apart() {
        for session in [
            Session::Get { size: 7 },
            Session::Put { size: 1 << 24 },
            Session::PingPong { there: 40, back: 33 },
        ] {
            assert_eq!(Session::decode(&session.encode()).unwrap(), session);
        }
        assert!(Session::decode(&[9; HEAD_BYTES]).is_err());
    }

    #[test]
    fn values_go_there_and_come_back() {
        let size = READ_BYTES + 4321;
        let address = here(2 * size);
        let mut put = Plain::connect(&address, Session::Put { size }).unwrap();
        // Each value goes where the one before said.
        for (next, byte) in [(1, 5), (0, 6), (0, 7)] {
            put.put(next, &vec![byte; size]).unwrap();
        }
        drop(put);
        let mut get = Plain::connect(&address, Session::Get { size }).unwrap();
        let mut target = vec![0; size];
        get.get(0, &mut target).unwrap();
        assert_eq!(target, vec![7; size]);
        get.get(1, &mut target).unwrap();
        assert_eq!(target, vec![6; size]);
    }

    #[test]
    fn ping_pong_moves_the_bytes_it_was_told() {
        let address = here(64);
        let session = Session::PingPong { there: 100, back: 7000 };
        let mut plain = Plain::connect(&address, session).unwrap();
        for _ in 0..3 {
            plain.ping_pong().unwrap();
        }
        assert_eq!(plain.back, vec![2; 7000]);
    }
}
