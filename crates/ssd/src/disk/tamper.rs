//! Where tests reach into a ring: shorter entries than were asked for, and waits that fail. The transfers
//! themselves are real. Outside of tests this is nothing.

#[cfg(not(test))]
use std::io;

#[cfg(test)]
pub(super) use real::Tamper;

/// Tampers with nothing.
#[cfg(not(test))]
#[derive(Debug, Default)]
pub(super) struct Tamper;

#[cfg(not(test))]
#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests put something here")]
impl Tamper {
    /// Bytes to ask for where `len` are wanted.
    #[inline]
    pub(super) fn cut(&self, len: usize) -> usize {
        len
    }

    /// Before the kernel is asked to take entries and to wait.
    #[inline]
    pub(super) fn before_wait(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod real {
    use crate::ALIGN;
    use mooncrate_core::rng::Rng;
    use mooncrate_lock::Mutex;
    use std::io;

    /// What is tampered with.
    #[derive(Debug, Default)]
    pub(in crate::disk) struct Tamper {
        /// Entries are cut at random whole blocks.
        pub shorts: Mutex<Option<Rng>>,
        /// The wait after so many more fails.
        pub fail_in: Mutex<Option<u32>>,
        /// The wait after so many more panics.
        pub panic_in: Mutex<Option<u32>>,
        /// Entries that were cut.
        pub cuts: Mutex<u64>,
    }

    impl Tamper {
        pub(in crate::disk) fn cut(&self, len: usize) -> usize {
            let blocks = len.div_ceil(ALIGN) as u64;
            if let Some(rng) = self.shorts.lock().as_mut()
                && blocks > 1
                && rng.chance(700)
            {
                *self.cuts.lock() += 1;
                return (1 + rng.below(blocks - 1)) as usize * ALIGN;
            }
            len
        }

        pub(in crate::disk) fn before_wait(&self) -> io::Result<()> {
            assert!(!strikes(&self.panic_in), "as asked");
            if strikes(&self.fail_in) {
                return Err(io::Error::other("as asked"));
            }
            Ok(())
        }
    }

    fn strikes(countdown: &Mutex<Option<u32>>) -> bool {
        let mut countdown = countdown.lock();
        match countdown.as_mut() {
            Some(0) => countdown.take().is_some(),
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}
