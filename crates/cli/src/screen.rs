//! A terminal that is painted over and over: the live screen of `top`.
//!
//! What must stay true: however the command ends, by a key, an error, a signal or a panic, the
//! terminal is as it was before. So everything that was changed is undone by `Drop`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, Write};
use std::time::Duration;

/// Another page of the terminal, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The page that was there before.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// When the terminal does not tell its size.
const SIZE: (usize, usize) = (100, 30);

/// The terminal, taken.
#[derive(Debug)]
pub(crate) struct Screen {
    /// How the keyboard was; `None`: there is none.
    before: Option<Termios>,
}

impl Screen {
    /// Takes the terminal: keys come at once and are not shown.
    pub(crate) fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin()).ok();
        let screen = Self { before };
        if let Some(before) = &screen.before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // Stopping in the middle of a picture would leave the terminal as it is.
            keys.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        }
        put(ENTER)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(crate) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => SIZE,
        }
    }

    /// Paints lines from the top, each cut by the terminal's edge, and clears the rest.
    pub(crate) fn paint(lines: &[String]) -> io::Result<()> {
        let mut picture = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            picture.push_str(if index == 0 { "" } else { "\r\n" });
            picture.push_str(line);
            picture.push_str("\x1b[K");
        }
        picture.push_str("\x1b[J");
        put(&picture)
    }

    /// Waits for a key, at most this long. Without a keyboard it only waits.
    pub(crate) fn key(&self, most: Duration) -> io::Result<Option<u8>> {
        if self.before.is_none() {
            std::thread::sleep(most);
            return Ok(None);
        }
        let stdin = io::stdin();
        let wait = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(_) => {
                let mut key = [0];
                let read = rustix::io::read(&stdin, &mut key)?;
                // A closed terminal is as good as a wish to end.
                Ok(Some(if read == 0 { b'q' } else { key[0] }))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to tell when the terminal is gone.
        let _ = put(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
