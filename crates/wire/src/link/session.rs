//! A TLS session on a blocking socket: bytes in, bytes out, no waiting of its own. The channel does
//! the waiting, so encrypted links have the same deadlines as plain ones.

use crate::auth::Credential;
use crate::tls;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use socket2::Socket;
use std::io::{self, IoSlice, Read, Write};

/// Encrypted bytes read from the socket at a time. rustls itself would ask for 4 KiB.
const INBOX_BYTES: usize = 128 << 10;
/// Encrypted bytes that wait to be sent before the socket is tried.
const OUTBOX_BYTES: usize = 256 << 10;

/// One end of an encrypted connection.
pub(super) struct Session {
    connection: rustls::Connection,
    /// Encrypted bytes that have come, and which of them are still to be looked at.
    inbox: Vec<u8>,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    pub(super) fn new(mut connection: rustls::Connection) -> Box<Self> {
        connection.set_buffer_limit(Some(OUTBOX_BYTES));
        Box::new(Self { connection, inbox: vec![0; INBOX_BYTES], start: 0, end: 0 })
    }

    /// Whether the two sides have not agreed yet.
    pub(super) fn is_shaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether nothing has come that nobody has looked at.
    pub(super) fn is_quiet(&self) -> bool {
        self.start == self.end
    }

    /// What the peer's certificate says of it.
    pub(super) fn credentials(&self) -> Vec<Credential> {
        tls::credentials(self.connection.peer_certificates())
    }

    /// Decrypted bytes that are here; `None`: more must come first. 0: the peer has ended.
    pub(super) fn take(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(target) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Where encrypted bytes go; empty while some are not looked at.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start < self.end {
            return &mut [];
        }
        (self.start, self.end) = (0, 0);
        &mut self.inbox
    }

    /// `count` encrypted bytes came.
    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// Decrypts what came, as far as there is room for it.
    pub(super) fn digest(&mut self) -> Result<(), rustls::Error> {
        let mut rest = &self.inbox[self.start..self.end];
        while !rest.is_empty() && self.connection.wants_read() {
            // A slice never fails to be read; an error is a full buffer of decrypted bytes.
            if !matches!(self.connection.read_tls(&mut rest), Ok(1..)) {
                break;
            }
            self.connection.process_new_packets()?;
        }
        self.start = self.end - rest.len();
        Ok(())
    }

    /// Takes bytes to be sent; how many. 0: the socket must take some first.
    pub(super) fn give(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.writer().write(bytes)
    }

    /// Whether encrypted bytes wait to be sent.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Sends some of them.
    pub(super) fn write(&mut self, socket: &Socket) -> io::Result<usize> {
        self.connection.write_tls(&mut Raw(socket))
    }
}

/// The socket, without a signal when the peer is gone.
struct Raw<'a>(&'a Socket);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut none = SendAncillaryBuffer::default();
        Ok(sendmsg(self.0, parts, &mut none, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
