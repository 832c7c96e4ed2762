//! Descriptors over Unix sockets (`SCM_RIGHTS`). They travel with bytes of a frame, so the receiver
//! must read those bytes here, not with a plain read, which would drop them.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most descriptors in one message; a segment has two.
pub const FDS_MAX: usize = 4;

/// Sends `bytes`, or a part of them, with `fds`; returns how many bytes went. The descriptors went
/// with the first one, so the rest is sent without them.
pub fn send_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > FDS_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "at least one byte, and at most four descriptors, travel in one message",
        ));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "the buffer has room for {FDS_MAX} descriptors");
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(sent)
}

/// Reads into `target` and appends the descriptors that came along; 0 is the end of the stream.
/// Every descriptor is closed on exec. When more came than fit, that is an error.
pub fn recv_fds(socket: impl AsFd, target: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(target)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors came"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"through").unwrap();
        assert_eq!(send_fds(&here, b"frame", &[file.as_fd()]).unwrap(), 5);
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        assert_eq!(recv_fds(&there, &mut bytes, &mut fds).unwrap(), 5);
        let mut copy = std::fs::File::from(fds.pop().unwrap());
        copy.rewind().unwrap();
        let mut text = String::new();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!((&bytes[..5], text.as_str()), (&b"frame"[..], "through"));
    }

    #[test]
    fn too_many_descriptors_are_refused_on_both_sides() {
        let (here, there) = UnixStream::pair().unwrap();
        assert!(send_fds(&here, b"x", &[here.as_fd(); FDS_MAX + 1]).is_err());
        assert!(send_fds(&here, b"", &[here.as_fd()]).is_err());
        send_fds(&here, b"x", &[here.as_fd(); FDS_MAX]).unwrap();
        send_fds(&here, b"y", &[here.as_fd(); FDS_MAX]).unwrap();
        let mut fds = Vec::new();
        recv_fds(&there, &mut [0; 1], &mut fds).unwrap();
        assert_eq!(fds.len(), FDS_MAX);
        // A peer cannot pile them up: what was not taken counts.
        assert!(recv_fds(&there, &mut [0; 1], &mut fds).is_err());
    }
}
