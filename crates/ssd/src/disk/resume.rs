//! The loop that turns a system call which may move fewer bytes than asked into all or an error.
//!
//! What must stay true: `Ok` means that every byte was moved (S10). A call that moves nothing ends the loop
//! with an error, so that it cannot spin. Every disk that has such a call uses this loop, the simulated one
//! too: what is tried there is what runs elsewhere.

use std::io::{self, IoSlice};

/// Interruptions in a row after which a call has failed.
const INTERRUPTIONS_MAX: u32 = 1000;

/// Fills `into` from `offset` on. `read` gives the number of bytes that it filled, as `pread` does.
pub fn read_all(
    mut into: &mut [u8],
    mut offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut interruptions = 0;
    while !into.is_empty() {
        match read(into, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => {
                into = into.split_at_mut(moved).1;
                offset += moved as u64;
                interruptions = 0;
            }
            Err(error) => interrupted(error, &mut interruptions)?,
        }
    }
    Ok(())
}

/// Writes all pieces, one after the other, from `offset` on. `write` gives the number of bytes that it
/// took, as `pwritev` does.
pub fn write_all(
    mut pieces: &mut [IoSlice<'_>],
    mut offset: u64,
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut interruptions = 0;
    // Empty pieces at the front must go, or a call that has nothing to move would look like a full disk.
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match write(pieces, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => {
                IoSlice::advance_slices(&mut pieces, moved);
                offset += moved as u64;
                interruptions = 0;
            }
            Err(error) => interrupted(error, &mut interruptions)?,
        }
    }
    Ok(())
}

fn interrupted(error: io::Error, times: &mut u32) -> io::Result<()> {
    *times += 1;
    if error.kind() == io::ErrorKind::Interrupted && *times < INTERRUPTIONS_MAX {
        return Ok(());
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves S10: short results and interruptions are resumed where they stopped.
    #[test]
    fn short_results_are_resumed() {
        let file: Vec<u8> = (0..100).collect();
        let (mut into, mut calls) = ([0; 50], 0_usize);
        let read = |target: &mut [u8], offset: u64| {
            calls += 1;
            if calls.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let (from, take) = (offset as usize, calls.min(target.len()));
            target[..take].copy_from_slice(&file[from..from + take]);
            Ok(take)
        };
        read_all(&mut into, 10, read).unwrap();
        assert_eq!(into, file[10..60]);

        let mut to = [0; 100];
        let parts = [&file[..0], &file[..7], &file[7..7], &file[7..90]];
        let mut pieces = parts.map(IoSlice::new);
        let write = |pieces: &[IoSlice<'_>], offset: u64| {
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            let take = all.len().min(9);
            to[offset as usize..][..take].copy_from_slice(&all[..take]);
            Ok(take)
        };
        write_all(&mut pieces, 3, write).unwrap();
        assert_eq!(to[3..93], file[..90]);
    }

    #[test]
    fn no_progress_is_an_error() {
        let end = read_all(&mut [0; 4], 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        let full = write_all(&mut [IoSlice::new(b"x")], 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WriteZero);
        let error = || io::Error::from(io::ErrorKind::Interrupted);
        let endless = read_all(&mut [0; 4], 0, |_, _| Err(error())).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::Interrupted);
        write_all(&mut [IoSlice::new(b"")], 0, |_, _| Ok(0)).unwrap();
    }
}
