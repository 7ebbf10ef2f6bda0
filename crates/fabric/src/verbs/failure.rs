//! What a bad completion means: its cause, whether the path may come back, and what to do about it.
//! Knows no queue.

use std::fmt;

use super::ibv::{self, sys};

/// The first thing that went wrong with a queue pair. What follows is flushed, and no cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Completion status; none where something else than a completion told of it.
    pub(super) status: Option<u32>,
    pub(super) vendor: u32,
    /// What was asked for: addresses and bytes.
    pub(super) request: String,
    /// Between which ends.
    pub(super) path: String,
}

pub(super) const FLUSHED: u32 = sys::IBV_WC_WR_FLUSH_ERR;
/// On Soft-RoCE also what a link that is down makes of every request.
const LOCAL_OPERATION: u32 = sys::IBV_WC_LOC_QP_OP_ERR;
const RESPONSE_TIMEOUT: u32 = sys::IBV_WC_RESP_TIMEOUT_ERR;
const RETRIES_EXCEEDED: u32 = sys::IBV_WC_RETRY_EXC_ERR;
const RECEIVER_NOT_READY: u32 = sys::IBV_WC_RNR_RETRY_EXC_ERR;

impl Failure {
    /// True where the same request may succeed on a queue pair that is built anew: the network or the
    /// receiver's readiness failed, not the request.
    pub(super) fn is_of_the_path(&self) -> bool {
        let path =
            [LOCAL_OPERATION, RESPONSE_TIMEOUT, RETRIES_EXCEEDED, RECEIVER_NOT_READY, FLUSHED];
        self.status.is_none_or(|status| path.contains(&status))
    }

    fn hint(&self) -> &'static str {
        match self.status {
            None | Some(FLUSHED) => {
                "the other end, or the device, ended the queue pair: see its log"
            }
            Some(sys::IBV_WC_LOC_LEN_ERR) => {
                "a message longer than its buffer: do all processes run the same version?"
            }
            Some(sys::IBV_WC_LOC_PROT_ERR) => {
                "local memory that is not registered (any more); this is a defect of tensorwire"
            }
            Some(sys::IBV_WC_REM_INV_REQ_ERR) => {
                "the receiver could not serve it: do both NICs have enough receive requests?"
            }
            Some(sys::IBV_WC_REM_ACCESS_ERR) => {
                "the peer's memory is not there (any more) or may not be accessed: did the peer free the region, or restart?"
            }
            Some(RETRIES_EXCEEDED | RESPONSE_TIMEOUT) => {
                "the peer's NIC does not answer: check cable, switch, GID (RoCE v2, routable), MTU along the path and firewalls (UDP 4791); tensorwire doctor --peer HOST tests the path"
            }
            Some(RECEIVER_NOT_READY) => "the peer's process takes no messages: is it stopped?",
            Some(_) => {
                "see the NIC's counters (/sys/class/infiniband/*/ports/*/hw_counters) and dmesg"
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { status, vendor, request, path } = self;
        match status {
            Some(status) => {
                let text = ibv::status_text(*status);
                write!(f, "{request} failed: {text} (status {status}, vendor code {vendor:#x})")?;
            }
            None => f.write_str(request)?,
        }
        write!(f, ", {path}; {}", self.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: Option<u32>) -> Failure {
        let (request, path) = ("a write of 8 bytes".into(), "from a to b".into());
        Failure { status, vendor: 0x81, request, path }
    }

    #[test]
    fn paths_come_back_and_bad_requests_do_not() {
        for status in [2, RETRIES_EXCEEDED, RECEIVER_NOT_READY, RESPONSE_TIMEOUT, FLUSHED] {
            assert!(failure(Some(status)).is_of_the_path(), "{status}");
        }
        for status in [1, 4, 9, 10, 11, 999] {
            assert!(!failure(Some(status)).is_of_the_path(), "{status}");
        }
        assert!(failure(None).is_of_the_path());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri loads no library")]
    fn any_status_has_words() {
        for status in (0..30).chain([u32::MAX]) {
            let text = failure(Some(status)).to_string();
            assert!(text.contains("vendor code 0x81") && text.contains("from a to b"), "{text}");
        }
    }
}
