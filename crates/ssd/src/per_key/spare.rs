//! Spare files of this backend: of the length of a record, as another would have to be cut or to grow, which is what
//! a spare saves.
//!
//! ```text
//!   a/b/<a record> ──delete──► free/<serial> ──keep──► c/d/<another record>
//! ```

use super::{Shared, State};
use crate::config::Config;
use crate::disk::Disk;
use crate::spare::{HasSpares, Spares};
use mooncrate_lock::{Condvar, Mutex};
use std::path::PathBuf;

/// Where they lie.
pub(super) const DIR: &str = "free";

impl HasSpares for Shared {
    type State = State;

    fn parts(&self) -> (&dyn Disk, &Config, &Mutex<State>, &Condvar) {
        (self.disk.as_ref(), &self.config, &self.state, &self.pause)
    }

    fn spares(state: &mut State) -> (&mut Spares, u64) {
        let taken = state.taken();
        (&mut state.spares, taken)
    }

    fn path(serial: u64) -> PathBuf {
        format!("{DIR}/{serial:016x}").into()
    }
}

impl Shared {
    /// Makes place for one more, if so many are allowed only.
    pub(super) fn make_place(&self, len: u64) {
        let mut state = self.state.lock();
        let other = if state.spares.is_full() { state.spares.pop_for(len) } else { None };
        drop(state);
        if let Some((len, serial)) = other {
            self.delete_spare(len, serial);
        }
    }
}
