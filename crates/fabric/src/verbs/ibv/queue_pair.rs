//! Queue pairs: their states, and posting to them.

use std::io;

use super::sys;
use super::{Address, CHAIN_MAX, Kind, Path, QueuePair, Request, Segment, check};

impl QueuePair {
    pub(in crate::verbs) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(in crate::verbs) fn inline_bytes_max(&self) -> u32 {
        self.inline_bytes_max
    }

    pub(in crate::verbs) fn reset_to_init(&self, port: u8, partition: u16) -> io::Result<()> {
        let mut wanted = zeroed_attributes(sys::IBV_QPS_INIT);
        wanted.port_num = port;
        wanted.pkey_index = partition;
        wanted.qp_access_flags = sys::IBV_ACCESS_LOCAL_WRITE
            | sys::IBV_ACCESS_REMOTE_WRITE
            | sys::IBV_ACCESS_REMOTE_READ;
        self.modify(
            wanted,
            sys::IBV_QP_STATE
                | sys::IBV_QP_PKEY_INDEX
                | sys::IBV_QP_PORT
                | sys::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// Ready to receive from `peer`.
    pub(in crate::verbs) fn init_to_rtr(&self, peer: &Address, path: &Path) -> io::Result<()> {
        let mut wanted = zeroed_attributes(sys::IBV_QPS_RTR);
        wanted.path_mtu = mtu_code(path.mtu);
        wanted.dest_qp_num = peer.queue_pair;
        wanted.rq_psn = peer.first_packet;
        wanted.max_dest_rd_atomic = path.reads_max;
        wanted.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        wanted.ah_attr.port_num = path.port;
        wanted.ah_attr.dlid = if path.by_lid { peer.lid } else { 0 };
        wanted.ah_attr.sl = path.choice.service_level;
        wanted.ah_attr.is_global = 1;
        wanted.ah_attr.grh.dgid = sys::ibv_gid { raw: peer.gid };
        wanted.ah_attr.grh.sgid_index = path.gid_index;
        wanted.ah_attr.grh.hop_limit = 64;
        wanted.ah_attr.grh.traffic_class = path.choice.traffic_class;
        self.modify(
            wanted,
            sys::IBV_QP_STATE
                | sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER,
        )
    }

    /// Ready to send.
    pub(in crate::verbs) fn rtr_to_rts(&self, first_packet: u32, path: &Path) -> io::Result<()> {
        let mut wanted = zeroed_attributes(sys::IBV_QPS_RTS);
        wanted.sq_psn = first_packet;
        wanted.timeout = path.timeout;
        wanted.retry_cnt = RETRIES;
        wanted.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        wanted.max_rd_atomic = path.reads_max;
        self.modify(
            wanted,
            sys::IBV_QP_STATE
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Ends it: what is posted is flushed.
    pub(in crate::verbs) fn to_error(&self) -> io::Result<()> {
        let wanted = zeroed_attributes(sys::IBV_QPS_ERR);
        self.modify(wanted, sys::IBV_QP_STATE)
    }

    /// True if the device promises that the bytes of one incoming write become visible to this
    /// processor in ascending order. Valid once the queue pair is ready to send.
    pub(in crate::verbs) fn writes_land_in_order(&self) -> bool {
        let write = sys::IBV_WR_RDMA_WRITE;
        // SAFETY: the queue pair is alive.
        unsafe { self.domain.library().query_qp_data_in_order(self.raw.as_ptr(), write) == 1 }
    }

    /// Posts requests that take effect in order, with one doorbell. The error says how many of them
    /// were taken.
    ///
    /// The caller keeps the memory that the segments name registered and unmoved until the request's
    /// end is told (a request without a tale ends with the next one that has).
    pub(in crate::verbs) fn post(&self, requests: &[Request]) -> Result<(), (usize, io::Error)> {
        assert!(requests.len() <= CHAIN_MAX, "a chain of {} requests", requests.len());
        // SAFETY: arrays of C structs of integers and pointers, for which zero means "none".
        let (mut segments, mut raw): (
            [[sys::ibv_sge; 2]; CHAIN_MAX],
            [sys::ibv_send_wr; CHAIN_MAX],
        ) = unsafe { std::mem::zeroed() };
        for (index, request) in requests.iter().enumerate() {
            segments[index] = segments_of(request);
            raw[index] = send_request(request, &mut segments[index]);
        }
        for index in 1..requests.len() {
            let next = &raw mut raw[index];
            raw[index - 1].next = next;
        }
        let (Some(first), mut bad) = (raw[..requests.len()].first_mut(), std::ptr::null_mut())
        else {
            return Ok(());
        };
        let first: *mut sys::ibv_send_wr = first;
        // SAFETY: the chain and its segments live until the call returns, after which the provider needs
        // them no more; what the segments name is kept by the caller, as said above.
        let failed = unsafe { sys::ibv_post_send(self.raw.as_ptr(), first, &mut bad) };
        if failed == 0 {
            return Ok(());
        }
        let taken = (0..raw.len()).find(|&i| std::ptr::eq(&raw[i], bad)).unwrap_or(0);
        Err((taken, io::Error::from_raw_os_error(failed)))
    }

    /// Posts one receive into registered memory, kept as for [`QueuePair::post`].
    pub(in crate::verbs) fn post_receive(&self, id: u64, into: Segment) -> io::Result<()> {
        let mut segment = sge(&into);
        let mut request = sys::ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &mut segment,
            num_sge: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: request and segment live until the call returns; the memory is kept by the caller.
        check(unsafe { sys::ibv_post_recv(self.raw.as_ptr(), &mut request, &mut bad) })
    }

    fn modify(&self, mut wanted: sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is alive, the attributes valid for the mask.
        check(unsafe {
            self.domain.library().ibv_modify_qp(self.raw.as_ptr(), &mut wanted, mask as i32)
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by this value, destroyed once. After it the NIC accesses no memory for it.
        unsafe { self.domain.library().ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

/// About half a second at the default timeout before a path counts as dead. Not 7, the most there is:
/// Soft-RoCE takes that for ever.
const RETRIES: u8 = 6;
/// Finite (7 is for ever and hides a receiver that is gone): with the timer below about a second.
const RECEIVER_NOT_READY_RETRIES: u8 = 6;
/// 163.84 ms. Credits keep receivers ready; this is for when they fail.
const RECEIVER_NOT_READY_TIMER: u8 = 28;

fn zeroed_attributes(state: sys::ibv_qp_state) -> sys::ibv_qp_attr {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// The segments that are there, first ones first.
fn segments_of(request: &Request) -> [sys::ibv_sge; 2] {
    let mut there = request.segments.iter().flatten();
    let none = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
    std::array::from_fn(|_| there.next().map_or(none, sge))
}

fn sge(segment: &Segment) -> sys::ibv_sge {
    sys::ibv_sge { addr: segment.address, length: segment.bytes, lkey: segment.key }
}

fn send_request(request: &Request, segments: &mut [sys::ibv_sge; 2]) -> sys::ibv_send_wr {
    // SAFETY: a C struct of integers and pointers, for which zero means "none".
    let mut raw: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
    raw.wr_id = request.id;
    raw.sg_list = segments.as_mut_ptr();
    raw.num_sge = request.segments.iter().flatten().count() as i32; // fits: at most 2
    raw.opcode = match request.kind {
        Kind::Write => sys::IBV_WR_RDMA_WRITE,
        Kind::WriteWithImmediate(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
        Kind::Read => sys::IBV_WR_RDMA_READ,
        Kind::Send => sys::IBV_WR_SEND,
    };
    if let Kind::WriteWithImmediate(immediate) = request.kind {
        raw.data.imm_data = immediate.to_be();
    }
    let flag = |set: bool, flag: sys::ibv_send_flags| if set { flag } else { 0 };
    raw.send_flags = flag(request.fence, sys::IBV_SEND_FENCE)
        | flag(request.signaled, sys::IBV_SEND_SIGNALED)
        | flag(request.inline, sys::IBV_SEND_INLINE);
    raw.wr.rdma =
        sys::ibv_send_wr_rdma { remote_addr: request.remote.address, rkey: request.remote.key };
    raw
}

/// The code of an MTU in bytes.
fn mtu_code(bytes: u32) -> sys::ibv_mtu {
    match bytes {
        ..512 => sys::IBV_MTU_256,
        512..1024 => sys::IBV_MTU_512,
        1024..2048 => sys::IBV_MTU_1024,
        2048..4096 => sys::IBV_MTU_2048,
        4096.. => sys::IBV_MTU_4096,
    }
}
