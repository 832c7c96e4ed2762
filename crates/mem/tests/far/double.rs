//! A device for tests: its memory is host memory that only copies reach. It can be told to fail, to tear
//! what it copies, and to stand still.

use mooncrate_core::Extent;
use mooncrate_mem::{Far, FarShare, Room};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long somebody waits for a room.
const ROOM_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Device {
    state: Mutex<State>,
    changed: Condvar,
    room_bytes: usize,
}

#[derive(Debug)]
struct State {
    memory: Vec<u8>,
    free_rooms: usize,
    /// The copy that fails, counted from now; 0: none.
    fails_at: usize,
    /// Copies wait.
    holds: bool,
    /// How many do.
    held: usize,
    copies: usize,
}

impl Device {
    pub(crate) fn new(bytes: usize, rooms: usize, room_bytes: usize) -> Arc<Self> {
        let state = State {
            // What a GPU holds at first is whatever was there before.
            memory: vec![0xdd; bytes],
            free_rooms: rooms,
            fails_at: 0,
            holds: false,
            held: 0,
            copies: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), room_bytes })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The `n`-th copy from now on fails, and leaves half of its bytes behind.
    pub(crate) fn fail_at(&self, n: usize) {
        self.lock().fails_at = n;
    }

    /// From now on copies wait, or go on.
    pub(crate) fn hold(&self, holds: bool) {
        self.lock().holds = holds;
        self.changed.notify_all();
    }

    /// Waits until a copy waits.
    pub(crate) fn wait_until_held(&self) {
        let limit = Duration::from_secs(20);
        let state = self.lock();
        let (state, over) =
            self.changed.wait_timeout_while(state, limit, |state| state.held == 0).unwrap();
        assert!(!over.timed_out() && state.held > 0, "no copy came");
    }

    pub(crate) fn free_rooms(&self) -> usize {
        self.lock().free_rooms
    }

    pub(crate) fn copies(&self) -> usize {
        self.lock().copies
    }

    /// The memory as it is.
    pub(crate) fn peek(&self, at: usize, len: usize) -> Vec<u8> {
        self.lock().memory[at..][..len].to_vec()
    }

    /// Changes the memory behind everybody's back.
    pub(crate) fn poke(&self, at: usize, bytes: &[u8]) {
        self.lock().memory[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// One copy: `go` is given how many of `len` bytes it may move.
    fn copy(&self, len: usize, go: impl FnOnce(&mut Vec<u8>, usize)) -> io::Result<()> {
        let mut state = self.lock();
        state.copies += 1;
        state.held += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.holds).unwrap();
        state.held -= 1;
        let fails = state.fails_at == 1;
        state.fails_at = state.fails_at.saturating_sub(1);
        go(&mut state.memory, if fails { len / 2 } else { len });
        if fails { Err(io::Error::other("told to fail")) } else { Ok(()) }
    }
}

/// What a segment sees of it.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Arc<Device>);

impl Far for Memory {
    fn room(&self) -> Option<Box<dyn Room>> {
        let (none, changed) = (|state: &mut State| state.free_rooms == 0, &self.0.changed);
        let mut state = changed.wait_timeout_while(self.0.lock(), ROOM_WAIT, none).unwrap().0;
        state.free_rooms = state.free_rooms.checked_sub(1)?;
        // As left by whoever had it before.
        Some(Box::new(HostRoom {
            device: Arc::clone(&self.0),
            bytes: vec![0xaa; self.0.room_bytes],
        }))
    }

    fn zero(&self, extent: Extent) -> io::Result<()> {
        let at = extent.offset() as usize;
        self.0.copy(extent.len() as usize, |memory, len| memory[at..][..len].fill(0))
    }

    fn share(&self) -> io::Result<Option<FarShare>> {
        let memory = std::fs::File::open("/dev/null")?.into();
        let memory_bytes = self.0.lock().memory.len() as u64;
        Ok(Some(FarShare { memory, memory_bytes, device: [7; 16] }))
    }
}

#[derive(Debug)]
struct HostRoom {
    device: Arc<Device>,
    bytes: Vec<u8>,
}

impl Room for HostRoom {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn store(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let (at, bytes) = (offset as usize, &self.bytes[..len]);
        self.device.copy(len, |memory, len| memory[at..][..len].copy_from_slice(&bytes[..len]))
    }

    fn load(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let (at, bytes) = (offset as usize, &mut self.bytes[..len]);
        self.device.copy(len, |memory, len| bytes[..len].copy_from_slice(&memory[at..][..len]))
    }
}

impl Drop for HostRoom {
    fn drop(&mut self) {
        self.device.lock().free_rooms += 1;
        self.device.changed.notify_all();
    }
}
