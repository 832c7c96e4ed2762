//! Work whose callers have gone on: it is kept until it has ended, and with it what nobody else may have meanwhile.
//!
//! ```text
//! lane   the flight itself     plan   given up afterwards     memory of the caller   let go afterwards
//! ```

use crate::cache::Shared;
use crate::error::NanoError;
use crate::plan::WritePlan;
use crate::reach::{Flight, NAP, Stepped, When, wait_until};
use std::any::Any;
use std::thread::sleep;

/// What keeps memory of the caller, such as a tensor. It may be dropped by any thread.
pub type Held = Box<dyn Any + Send>;

/// Asked for what keeps the memory of a call, if the call is late.
pub type Hold<'a> = &'a mut dyn FnMut() -> Held;

/// Work that has not ended in time.
#[derive(Debug)]
pub(crate) struct Late {
    flight: Box<dyn Flight>,
    /// What is given up when it has ended.
    plan: Option<(Vec<u8>, WritePlan)>,
    /// What it reads or writes; dropped after the flight, which waits for its end.
    _held: Option<Held>,
}

impl Shared {
    /// Waits for work of this call. If it does not end in time it is kept, with the memory that it uses; `plan` is given
    /// up when it has.
    pub(crate) fn land(
        &self,
        mut flight: Box<dyn Flight>,
        when: When,
        plan: Option<(&[u8], &WritePlan)>,
        hold: Option<Hold<'_>>,
    ) -> Result<Stepped, NanoError> {
        if let Some(stepped) = wait_until(when.until, || flight.look())? {
            return Ok(stepped);
        }
        let plan = plan.map(|(key, plan)| (key.to_vec(), *plan));
        self.late.lock().push(Late { flight, plan, _held: hold.map(|hold| hold()) });
        Err(NanoError::Late)
    }

    /// Ends what was late and has come to its end.
    pub(crate) fn tend_late(&self) {
        let over: Vec<Late> = {
            let mut late = self.late.lock();
            late.extract_if(.., |late| !matches!(late.flight.look(), Ok(None))).collect()
        };
        for late in over {
            self.let_go(late);
        }
    }

    /// Waits for all that is late: it has its memory until it has ended.
    pub(crate) fn end_late(&self) {
        let all = std::mem::take(&mut *self.late.lock());
        for late in all {
            self.let_go(late);
        }
    }

    fn let_go(&self, late: Late) {
        let Late { flight, plan, _held } = late;
        drop(flight);
        if let Some((key, plan)) = plan {
            self.give_up(&key, &plan);
        }
    }
}

/// Waits for work on a stream of the rank's own, however long it takes: nothing of the caller delays it, and the caller has
/// no other way to learn when its memory is its own again.
pub(crate) fn outlast(mut flight: Box<dyn Flight>, when: When) -> Result<Stepped, NanoError> {
    loop {
        if let Some(stepped) = wait_until(when.until, || flight.look())? {
            return Ok(stepped);
        }
        sleep(NAP);
    }
}
