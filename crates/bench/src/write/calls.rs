//! Calls of gRPC beside the writes: who calls, and who is called.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tensorwire_base::{Clock, Deadline};
use tensorwire_baselines::Bytes;
use tensorwire_baselines::grpc::{GrpcClient, GrpcServer};

use super::member::{PATIENCE, WriteError};
use super::sender::{Run, pace};
use super::{WriteSpec, payload};

pub(super) use tensorwire_baselines::RpcError as CallError;

/// This build has gRPC.
pub(super) const BUILT_IN: bool = true;

/// Takes calls, and looks at what they bring.
pub(super) struct Server {
    server: GrpcServer,
    calls: Arc<Calls>,
}

impl Server {
    /// Starts to listen at `at` for calls of `bytes` bytes.
    pub(super) fn start(at: SocketAddr, bytes: usize) -> Result<Server, WriteError> {
        let calls = Arc::new(Calls::new(bytes));
        let taken = calls.clone();
        let server = GrpcServer::start(at, bytes, move |tensor| taken.take(tensor))?;
        Ok(Server { server, calls })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Stops; returns how many calls were compared whole, if nothing was ever wrong.
    pub(super) fn stop(self, deadline: Deadline) -> Result<u64, WriteError> {
        self.server.stop(deadline)?;
        self.calls.verdict()
    }
}

/// Calls the receiver's gRPC server, with what a write would carry.
pub(super) struct Caller<'a> {
    client: GrpcClient,
    spec: &'a WriteSpec,
    content: Vec<u8>,
    /// Of measurements.
    number: u32,
}

impl Caller<'_> {
    pub(super) fn connect(at: SocketAddr, spec: &WriteSpec) -> Result<Caller<'_>, WriteError> {
        let client = GrpcClient::connect(at, Deadline::after(PATIENCE))?;
        let mut content = vec![0; spec.bytes];
        payload::fill(&mut content);
        Ok(Caller { client, spec, content, number: 0 })
    }

    pub(super) fn round_trips(&mut self) -> Result<Vec<f64>, WriteError> {
        let content = self.begin()?;
        let mut times = Vec::new();
        let pace = pace(self.spec);
        while pace.goes_on(times.len() as u64) {
            let start_ns = Clock::now_ns();
            self.client.push(content.clone(), Deadline::after(PATIENCE))?;
            // fits: durations far below 2^53
            times.push(Clock::now_ns().saturating_sub(start_ns) as f64);
        }
        Ok(times)
    }

    pub(super) fn throughput(&mut self) -> Result<Run, WriteError> {
        let content = self.begin()?;
        let mut calls = self.client.calls();
        let mut begun = 0;
        let pace = pace(self.spec);
        while pace.goes_on(begun) {
            if calls.pending() >= self.spec.window {
                calls.finish_one().transpose()?;
            }
            calls.begin(content.clone(), Deadline::after(PATIENCE));
            begun += 1;
        }
        while let Some(done) = calls.finish_one() {
            done?;
        }
        Ok(Run::new(begun, pace, self.spec))
    }

    /// What the calls of the next measurement carry. The first of them, which the server compares whole,
    /// is not measured.
    fn begin(&mut self) -> Result<Bytes, WriteError> {
        self.number += 1;
        payload::stamp(&mut self.content, self.number);
        let content = Bytes::copy_from_slice(&self.content);
        self.client.push(content.clone(), Deadline::after(PATIENCE))?;
        Ok(content)
    }
}

/// What calls bring. All calls of a measurement carry one number; the first, which nobody times, is
/// compared whole, the others at both ends.
struct Calls {
    bytes: usize,
    number: AtomicU32,
    verified: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Calls {
    fn new(bytes: usize) -> Calls {
        let (number, verified) = (AtomicU32::new(0), AtomicU64::new(0));
        Calls { bytes, number, verified, wrong: Mutex::new(None) }
    }

    fn take(&self, tensor: &[u8]) {
        let wrong = match payload::number(tensor) {
            _ if tensor.len() != self.bytes => Some(format!("{} bytes", tensor.len())),
            Some(number) if self.number.swap(number, Ordering::Relaxed) != number => {
                self.verified.fetch_add(1, Ordering::Relaxed);
                let at = payload::first_difference(tensor, number);
                at.map(|at| format!("byte {at} is not what was sent"))
            }
            Some(number) if !tensor.ends_with(&number.to_le_bytes()) => {
                Some("its end is of another call".to_string())
            }
            _ => None,
        };
        if wrong.is_some() {
            *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = wrong;
        }
    }

    /// How many were compared whole, if nothing was ever wrong.
    fn verdict(&self) -> Result<u64, WriteError> {
        match self.wrong.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(what) => Err(WriteError::WrongCall { what }),
            None => Ok(self.verified.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        payload::fill(&mut bytes);
        payload::stamp(&mut bytes, number);
        bytes
    }

    #[test]
    fn the_first_call_of_each_number_is_compared_whole() {
        let calls = Calls::new(8192);
        for number in [1, 1, 2, 2] {
            calls.take(&call(number));
        }
        assert_eq!(calls.verdict().unwrap(), 2);
    }

    #[test]
    fn wrong_calls_are_found() {
        let mut torn = call(1);
        torn[5000] ^= 1;
        let mut half = call(1);
        half[8188..].copy_from_slice(&[0; 4]);
        for wrong in [torn, half, call(1)[..4096].to_vec(), Vec::new()] {
            let calls = Calls::new(8192);
            calls.take(&wrong);
            calls.verdict().unwrap_err();
        }
        let calls = Calls::new(8192);
        calls.take(&call(1));
        let mut half = call(1);
        half[8188..].copy_from_slice(&[0; 4]);
        calls.take(&half);
        calls.verdict().unwrap_err();
    }
}
