//! Socket I/O straight from and into region memory. Uses raw pointers instead of slices: peers and
//! other threads may access the same bytes, so no reference to them may exist. Non-blocking.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::mapping::Mapping;

/// Bytes of a mapping, checked to lie inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    mapping: &'a Mapping,
    offset: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    /// # Panics
    /// If the span leaves the mapping: ranges from a wire are checked before they come here.
    pub(crate) fn new(mapping: &'a Mapping, offset: u64, bytes: u64) -> Span<'a> {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= mapping.bytes()), "a span leaves its mapping");
        Span { mapping, offset, bytes }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Copies its bytes.
    pub(crate) fn read(self, into: &mut Vec<u8>) {
        let (at, bytes) = (into.len(), self.bytes as usize); // fits: as below
        into.resize(at + bytes, 0);
        // SAFETY: the span was checked to lie in a mapping that is borrowed, and `into` has room for it, which is its own.
        // Whoever posted lent the bytes until this is done; no reference to them exists.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.mapping.at(self.offset).cast_const().cast::<u8>(),
                into[at..].as_mut_ptr(),
                bytes,
            );
        }
    }

    /// Overwrites its bytes.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn write(self, from: &[u8]) {
        assert_eq!(from.len() as u64, self.bytes, "all of a span is written");
        // SAFETY: as in `read`, in the other direction; a mapping is writable.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.mapping.at(self.offset).cast::<u8>(),
                from.len(),
            );
        }
    }

    fn iovec(self) -> libc::iovec {
        // fits: a mapping's length fits the address space
        libc::iovec { iov_base: self.mapping.at(self.offset).cast(), iov_len: self.bytes as usize }
    }
}

/// Gives a socket of TCP room for so many bytes that nobody has received yet, or for as many as the system lets it (`tcp_rmem`). It may
/// have more later.
pub(crate) fn make_room(socket: &OwnedFd, bytes: usize) {
    // a socket that is to wait for so many makes room for them, and keeps it
    set_receive_low_water(socket, bytes);
    set_receive_low_water(socket, 1);
}

/// Has epoll say that there is something only when there are so many bytes, or the end.
pub(crate) fn set_receive_low_water(socket: &OwnedFd, bytes: usize) {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: `value` is a c_int that lives through the call, and its size is given. A refusal leaves the socket as
    // it was, which wakes earlier.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
}

/// Frames that go in one call, at most; far fewer parts than a system takes (`IOV_MAX`, 1024).
pub(crate) const FRAMES_MAX: usize = 16;

/// Sends `head`, then `payload`, as much as the socket takes.
pub(crate) fn send(
    socket: &OwnedFd,
    head: &[u8],
    payload: Option<Span<'_>>,
) -> Result<usize, Errno> {
    send_frames(socket, std::iter::once((head, payload)))
}

/// Sends heads, each with its payload behind it, as much as the socket takes of the first [`FRAMES_MAX`].
pub(crate) fn send_frames<'a>(
    socket: &OwnedFd,
    frames: impl Iterator<Item = (&'a [u8], Option<Span<'a>>)>,
) -> Result<usize, Errno> {
    let mut parts = [[EMPTY; 2]; FRAMES_MAX];
    let mut count = 0;
    for (parts, (head, payload)) in parts.iter_mut().zip(frames) {
        let head = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
        *parts = [head, payload.map_or(EMPTY, Span::iovec)];
        count += 1;
    }
    let message = message(parts[..count].as_flattened_mut());
    #[cfg(loom)]
    tensorwire_base::sync::step_outside();
    // SAFETY: all parts are readable for the whole call: the caller borrows heads for longer, and each payload was
    // checked to lie in a mapping that is borrowed as long. The kernel only reads them (so the cast of a
    // head to mutable is never used), and it may read bytes that others write.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    outcome(sent)
}

/// Receives into `payload` first, then into `tail`, as much as there is. 0: the peer hung up.
pub(crate) fn receive(
    socket: &OwnedFd,
    payload: Option<Span<'_>>,
    tail: &mut [u8],
) -> Result<usize, Errno> {
    let mut parts = [
        payload.map_or(EMPTY, Span::iovec),
        libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() },
    ];
    let mut message = message(&mut parts);
    #[cfg(loom)]
    tensorwire_base::sync::step_outside();
    // SAFETY: both parts are writable for the whole call: `tail` is borrowed mutably, and the payload
    // was checked to lie in a writable mapping that is borrowed and to which no reference exists.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    outcome(received)
}

/// Has the kernel repeat what a TCP socket sends at an even pace, for the first few times, instead of
/// waiting twice as long each time: after a short outage a word must not come seconds late.
pub(crate) fn retry_linearly(socket: &OwnedFd) -> Result<(), Errno> {
    let (on, bytes) = (1i32, size_of::<i32>() as u32); // fits: 4
    // SAFETY: the option is an int, read from a living place of that size; the socket is open.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_THIN_LINEAR_TIMEOUTS,
            (&raw const on).cast(),
            bytes,
        )
    };
    // 0, or -1
    outcome(result as isize).map(drop)
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr is a C struct of integers and pointers, for which zero means "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

fn outcome(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
