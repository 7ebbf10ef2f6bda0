//! libibverbs with owners: every object holds its parents, is destroyed once, and turns what the
//! driver says into values. All calls of the library are here. Knows no peer and no protocol.

mod queue_pair;
pub(super) mod sys;

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use tensorwire_memory::DmaBuf;

use super::PathChoice;
use crate::mapping::Mapping;

pub(super) use sys::{Library, load};

/// Requests that one doorbell announces at most.
pub(super) const CHAIN_MAX: usize = 4;
/// Entries of GID tables that are looked at.
const GIDS_MAX: usize = 1024;
/// Completions taken from a queue at a time.
pub(super) const POLL_MAX: usize = 32;

/// An open NIC.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
    library: &'static Library,
}

#[derive(Debug)]
pub(super) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

/// Memory that the NIC may access.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

#[derive(Debug)]
pub(super) struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Arc<Context>,
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: CompletionChannel,
}

/// A reliable connected queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    inline_bytes_max: u32,
    _completions: Arc<CompletionQueue>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: for all of these, libibverbs objects belong to the process, not to a thread, and the library
// locks internally (ibv_post_send, ibv_poll_cq and the rest are thread-safe by its manual). Each value
// owns its object alone and destroys it once, in `drop`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}
// SAFETY: as above.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}
// SAFETY: as above.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// One end of a connection, as the other must know it to address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) queue_pair: u32,
    /// First packet sequence number that this end sends.
    pub(super) first_packet: u32,
}

/// What both ends agreed upon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) port: u8,
    pub(super) gid_index: u8,
    /// InfiniBand's own addressing (LID); RoCE has GIDs alone.
    pub(super) by_lid: bool,
    pub(super) mtu: u32,
    /// Reads that may be outstanding, here and at the peer.
    pub(super) reads_max: u8,
    pub(super) timeout: u8,
    pub(super) choice: PathChoice,
}

/// One request to the NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) kind: Kind,
    /// Local bytes: the payload, and an epoch behind it.
    pub(super) segments: [Option<Segment>; 2],
    /// Copy the bytes into the request itself: they need no registration and may change at once.
    pub(super) inline: bool,
    pub(super) remote: Remote,
    /// Wait for earlier reads.
    pub(super) fence: bool,
    /// Tell of success too; failure is always told.
    pub(super) signaled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    WriteWithImmediate(u32),
    Read,
    Send,
}

/// Local memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
}

/// The peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkCompletion {
    pub(super) id: u64,
    pub(super) queue_pair: u32,
    pub(super) status: u32,
    pub(super) vendor: u32,
    /// Came with the peer's message.
    pub(super) immediate: Option<u32>,
    pub(super) bytes: u32,
}

/// What concerns more than one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncEvent {
    DeviceFatal,
    PortDown,
    PortUp,
    Other(u32),
}

/// Calls `look` with the name of every RDMA device and a way to open it.
pub(super) fn each_device(
    library: &'static Library,
    mut look: impl FnMut(&str, io::Result<Context>),
) -> io::Result<()> {
    let mut count = 0;
    // SAFETY: `count` is a valid place; the list is freed below and not used after.
    let list = unsafe { library.ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, and lives until it is freed below; a device's name is a
        // terminated string that lives as long.
        let (device, name) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr(library.ibv_get_device_name(device)))
        };
        // SAFETY: a device of the living list.
        let opened = unsafe { library.ibv_open_device(device) };
        let opened = NonNull::new(opened)
            .map(|raw| Context { raw, library })
            .ok_or_else(io::Error::last_os_error);
        look(&name.to_string_lossy(), opened);
    }
    // SAFETY: got from ibv_get_device_list, freed once; open contexts survive it, as the manual says.
    unsafe { library.ibv_free_device_list(list) };
    Ok(())
}

/// The interface of that index.
pub(super) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has IF_NAMESIZE bytes, as the call demands.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    (!found.is_null())
        .then(|| CStr::from_bytes_until_nul(&name).ok())
        .flatten()
        .map(|name| name.to_string_lossy().into_owned())
}

/// The address that a GID stands for: an IPv4 address where it is mapped.
pub(super) fn address_of(gid: [u8; 16]) -> IpAddr {
    let address = Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

impl Context {
    pub(super) fn device(&self) -> io::Result<sys::ibv_device_attr> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the place valid.
        check(unsafe { self.library.ibv_query_device(self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    pub(super) fn port(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the place valid.
        check(unsafe { self.library.query_port(self.raw.as_ptr(), number, &mut attributes) })?;
        Ok(attributes)
    }

    /// The GIDs of all ports, without the empty entries of their tables.
    pub(super) fn gids(&self) -> io::Result<Vec<sys::ibv_gid_entry>> {
        let mut entries: Vec<sys::ibv_gid_entry> = Vec::with_capacity(GIDS_MAX);
        // SAFETY: the context is open, and there is room for GIDS_MAX entries. One call: asking for each
        // index is a system call for each of hundreds of empty ones.
        let count = unsafe {
            let (context, room) = (self.raw.as_ptr(), entries.as_mut_ptr());
            self.library.query_gid_table(context, room, GIDS_MAX)
        };
        // a negative count is a negative errno
        let count = usize::try_from(count).map_err(|_| {
            io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO))
        })?;
        // SAFETY: the call has filled so many entries, within the capacity.
        unsafe { entries.set_len(count.min(GIDS_MAX)) };
        Ok(entries)
    }

    /// Readable when an asynchronous event is there.
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor with it, for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// Takes an asynchronous event if there is one now.
    pub(super) fn next_event(&self) -> Option<AsyncEvent> {
        if !readable(self.events_fd()) {
            return None;
        }
        // SAFETY: a C struct of integers and pointers, for which zero is a value.
        let mut event: sys::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the place valid.
        if unsafe { self.library.ibv_get_async_event(self.raw.as_ptr(), &mut event) } != 0 {
            return None;
        }
        // SAFETY: acknowledges the event that was just taken, once.
        unsafe { self.library.ibv_ack_async_event(&mut event) };
        Some(match event.event_type {
            sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp,
            sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown,
            other => AsyncEvent::Other(other),
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by this value, closed once; everything made of it holds it.
        unsafe { self.library.ibv_close_device(self.raw.as_ptr()) };
    }
}

/// What peers may do with registered memory.
fn access(relaxed: bool) -> sys::ibv_access_flags {
    let access =
        sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
    // optional: left out by the library where the kernel does not know it
    access | if relaxed { sys::IBV_ACCESS_RELAXED_ORDERING } else { 0 }
}

impl ProtectionDomain {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Arc<ProtectionDomain>> {
        // SAFETY: the context is open, and is held by the domain.
        let raw = unsafe { context.library.ibv_alloc_pd(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(ProtectionDomain { raw, context: context.clone() }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn library(&self) -> &'static Library {
        self.context.library
    }

    /// Lets the NIC, and peers who know the key, read and write a mapping's bytes.
    pub(super) fn register(
        self: &Arc<Self>,
        memory: &Mapping,
        relaxed: bool,
    ) -> io::Result<MemoryRegion> {
        let access = access(relaxed);
        // fits: what is mapped fits the address space. A region without bytes cannot be registered, and
        // a mapping has a page at least.
        let bytes = memory.bytes().max(1) as usize;
        let start = memory.start().as_ptr().cast();
        // SAFETY: the range is mapped, readable and writable, and stays so until the registration is
        // dropped: whoever owns both drops it before the mapping (RegionMemory, Control memory). The NIC
        // writes only plain bytes there, to which Rust has no reference: see `mapping`.
        let raw = unsafe { self.library().reg_mr(self.raw.as_ptr(), start, bytes, access) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(MemoryRegion { raw, domain: self.clone() })
    }

    /// As [`ProtectionDomain::register`], memory of a device by the dma-buf that its driver gave.
    pub(super) fn register_dma_buf(
        self: &Arc<Self>,
        memory: &Mapping,
        shown: &DmaBuf,
        relaxed: bool,
    ) -> io::Result<MemoryRegion> {
        // fits: what is mapped fits the address space
        let bytes = memory.bytes().max(1) as usize;
        let address = memory.start().as_ptr().addr() as u64;
        // SAFETY: the kernel keeps what a dma-buf shows for as long as it is registered, and writes only what lies in it.
        // Whoever owns the registration drops it before the memory (RegionMemory).
        let raw = unsafe {
            let fd = (shown.fd.as_raw_fd(), shown.offset);
            let domain = self.raw.as_ptr();
            self.library().reg_dmabuf_mr(domain, fd, (address, bytes), access(relaxed))
        }?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(MemoryRegion { raw, domain: self.clone() })
    }

    pub(super) fn create_queue_pair(
        self: &Arc<Self>,
        completions: &Arc<CompletionQueue>,
        sends_max: u32,
        receives_max: u32,
        inline_bytes: u32,
    ) -> io::Result<QueuePair> {
        // SAFETY: a C struct of integers and pointers, for which zero means "none".
        let mut wanted: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = completions.raw.as_ptr();
        wanted.recv_cq = completions.raw.as_ptr();
        wanted.qp_type = sys::IBV_QPT_RC;
        wanted.cap = sys::ibv_qp_cap {
            max_send_wr: sends_max,
            max_recv_wr: receives_max,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        };
        // SAFETY: domain and completion queue are alive and held by the queue pair.
        let raw = unsafe { self.library().ibv_create_qp(self.raw.as_ptr(), &mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(QueuePair {
            raw,
            inline_bytes_max: wanted.cap.max_inline_data,
            _completions: completions.clone(),
            domain: self.clone(),
        })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: allocated by this value, freed once; everything made of it holds it.
        unsafe { self.library().ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

impl MemoryRegion {
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered while `self` lives.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered while `self` lives.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered by this value, deregistered once. Requests in flight hold their region, so
        // none of this process's names it any more; a peer's is refused by the NIC from now on.
        unsafe { self.domain.library().ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

/// Which of a device's interrupts a queue has; a device has at least one.
fn vector_of(number: usize, vectors: i32) -> i32 {
    // fits: less than what is an i32
    usize::try_from(vectors).map_or(0, |vectors| number % vectors.max(1)) as i32
}

impl CompletionQueue {
    /// The queue that is so manieth of this process. Processes, and their queues, have interrupts of different cores.
    pub(super) fn new(
        context: &Arc<Context>,
        entries: u32,
        nth: usize,
    ) -> io::Result<Arc<CompletionQueue>> {
        // SAFETY: the context is open, and is held by the channel.
        let raw = unsafe { context.library.ibv_create_comp_channel(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = CompletionChannel { raw, context: context.clone() };
        // SAFETY: a descriptor of the living channel.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.fd()) };
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        // fits: the caller keeps it under the device's limit, which is an i32
        let entries = entries as i32;
        // SAFETY: the context is open.
        let vectors = unsafe { (*context.raw.as_ptr()).num_comp_vectors };
        let vector = vector_of(std::process::id() as usize + nth, vectors);
        // SAFETY: context and channel are alive, the channel is held by the queue; the device has that vector.
        let raw = unsafe {
            context.library.ibv_create_cq(
                context.raw.as_ptr(),
                entries,
                std::ptr::null_mut(),
                channel.raw.as_ptr(),
                vector,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(CompletionQueue { raw, channel }))
    }

    /// Readable when a completion has come since [`CompletionQueue::arm`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and its descriptor with it, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }

    /// Asks to be told of the next completion.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        check(unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes what has been told, so that the descriptor is readable no more.
    pub(super) fn take_events(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (library, channel) = (self.channel.context.library, self.channel.raw.as_ptr());
        // SAFETY: the channel is alive and does not block, the places are valid; each event that was
        // taken is acknowledged once.
        unsafe {
            while library.ibv_get_cq_event(channel, &mut queue, &mut context) == 0 {
                library.ibv_ack_cq_events(queue, 1);
            }
        }
    }

    /// Moves at most [`POLL_MAX`] completions to the end of `found`; returns how many.
    pub(super) fn poll(&self, found: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        // SAFETY: an array of C structs of integers, for which zero is a value.
        let mut raw: [sys::ibv_wc; POLL_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is alive, the array has POLL_MAX places.
        let count =
            unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), POLL_MAX as i32, raw.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        found.extend(raw.iter().take(count).map(|wc| {
            let with_immediate = wc.wc_flags & sys::IBV_WC_WITH_IMM != 0;
            // SAFETY: both fields of the union are a u32, and any bits are one.
            let immediate = unsafe { wc.data.imm_data };
            let success = wc.status == sys::IBV_WC_SUCCESS;
            WorkCompletion {
                id: wc.wr_id,
                queue_pair: wc.qp_num,
                status: wc.status,
                vendor: wc.vendor_err,
                immediate: (with_immediate && success).then(|| u32::from_be(immediate)),
                bytes: if success { wc.byte_len } else { 0 },
            }
        }));
        Ok(count)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by this value, destroyed once; its queue pairs hold it, and every event that
        // was taken has been acknowledged. The channel goes after it.
        unsafe { self.channel.context.library.ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

impl CompletionChannel {
    fn fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: created by this value, destroyed once, after the queue that used it.
        unsafe { self.context.library.ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// The bytes of an MTU's code; 0 where there is no such code.
pub(super) fn mtu_bytes(code: u32) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// What libibverbs calls a status.
pub(super) fn status_text(status: u32) -> String {
    // SAFETY: answers any number with a constant, terminated string, or NULL.
    let text = load().map(|library| unsafe { library.ibv_wc_status_str(status) });
    let text = text.unwrap_or(std::ptr::null());
    match text.is_null() {
        true => format!("status {status}"),
        // SAFETY: not null, so a terminated string that lives forever.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
        && polled[0].revents().contains(PollFlags::IN)
}

/// libibverbs returns an errno, or -1 with errno set.
fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
