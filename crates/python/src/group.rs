//! Groups for `torch.distributed`: an end of a fabric that others find, and a communicator over it. Memory is named by its
//! address; whoever starts an operation gives the object along that keeps it alive.

mod memory;

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tensorwire::base::{Deadline, Incarnation, JobId, Rank};
use tensorwire::collectives::communicator::{
    CallKind, CommunicatorCall, CommunicatorOptions, Operation, Outcome,
};
use tensorwire::collectives::{Communicator, CommunicatorError, Group, GroupOptions, Reducer};
use tensorwire::fabric::handshake::random_bytes;
use tensorwire::fabric::{
    Backend, Fabric, FabricConfig, Identity, JobCredentials, PeerAddress, Secret, VerbsOptions,
    verbs_usable,
};
use tensorwire::kernels::{FoldElement, FoldKind};
use tensorwire::launch::Transport;
use tensorwire::memory::{Buffer, CopyPurpose};
use tensorwire::train::{VectorReducer, link_cost};

use memory::{PyMemory, buffer, parts};

create_exception!(tensorwire, GroupError, PyRuntimeError);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("GroupError", module.py().get_type::<GroupError>())?;
    module.add_class::<PyEndpoint>()?;
    module.add_class::<PyCommunicator>()?;
    module.add_class::<PyOperation>()?;
    module.add_class::<PyMemory>()?;
    module.add_function(wrap_pyfunction!(random, module)?)?;
    module.add_function(wrap_pyfunction!(verbs_offer, module)?)
}

/// Returns so many random bytes.
#[pyfunction]
fn random(py: Python<'_>, count: usize) -> Bound<'_, PyBytes> {
    let bytes: Vec<u8> = std::iter::repeat_with(random_bytes::<1>).take(count).flatten().collect();
    PyBytes::new(py, &bytes)
}

/// Returns what RDMA would go over here, or None with the reason why it cannot be used.
#[pyfunction]
fn verbs_offer(py: Python<'_>) -> (Option<String>, String) {
    match py.detach(|| verbs_usable(&VerbsOptions::default(), None)) {
        Ok(nic) => (Some(nic.to_string()), String::new()),
        Err(unusable) => (None, format!("{}; {}", unusable.reason, unusable.mend)),
    }
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    GroupError::new_err(error.to_string())
}

fn after(seconds: f64) -> PyResult<Deadline> {
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("a time-out of {seconds} seconds; give one from 0 on"))
    })?;
    Ok(Deadline::after(duration))
}

/// This process's end of a group, before it knows the others.
#[pyclass(name = "Endpoint", module = "tensorwire._native")]
struct PyEndpoint {
    fabric: Option<Fabric>,
    me: Identity,
    transport: Transport,
}

#[pymethods]
impl PyEndpoint {
    /// Opens it. `secret` is 40 bytes that all members know, and nobody else.
    #[new]
    fn new(
        py: Python<'_>,
        rank: u32,
        transport: &str,
        listen: Option<&str>,
        secret: &[u8],
    ) -> PyResult<PyEndpoint> {
        let transport = match transport {
            "shm" => Transport::Shm,
            "tcp" => Transport::Tcp,
            "verbs" => Transport::Verbs,
            other => {
                return Err(PyValueError::new_err(format!(
                    "there is no transport '{other}'; there are auto, shm, tcp and verbs"
                )));
            }
        };
        let parts = secret.split_first_chunk::<32>();
        let parts = parts.and_then(|(secret, id)| Some((*secret, *id.first_chunk::<8>()?)));
        let (secret, id) = parts.ok_or_else(|| PyValueError::new_err("a secret has 40 bytes"))?;
        let job = JobCredentials { job_id: JobId(u64::from_le_bytes(id)), secret: Secret(secret) };
        let incarnation = Incarnation(u64::from_le_bytes(random_bytes()));
        let me = Identity { rank: Rank(rank), incarnation };
        let mut config = FabricConfig::new(me, job);
        // a process may have many groups
        (config.completion_queues, config.queue_pairs_per_peer) = (1, 1);
        config.arrival_slots = ARRIVAL_SLOTS;
        if let Some(listen) = listen {
            let address: Result<SocketAddr, _> = listen.parse();
            config.endpoint = address.map_err(|_| {
                PyValueError::new_err(format!("'{listen}' is no ADDRESS:PORT to listen at"))
            })?;
        }
        let backend = match transport {
            Transport::Tcp => Backend::Tcp,
            Transport::Verbs => Backend::Verbs(VerbsOptions::default()),
            Transport::Shm | Transport::Auto => Backend::Shm,
        };
        let fabric = py.detach(|| Fabric::open(backend, config)).map_err(failed)?;
        Ok(PyEndpoint { fabric: Some(fabric), me, transport })
    }

    /// What others find it by.
    #[getter]
    fn address(&self) -> PyResult<String> {
        let fabric = self.fabric.as_ref().ok_or_else(|| failed("it is connected already"))?;
        Ok(format!("{} {}", self.me.incarnation.0, fabric.endpoint()))
    }

    /// Becomes a communicator of all whose addresses these are, by rank. `watch` is called now and then while one has not
    /// come; what it raises ends the wait.
    #[pyo3(signature = (addresses, names, timeout, spread, watch))]
    fn connect(
        &mut self,
        py: Python<'_>,
        addresses: Vec<String>,
        names: Vec<String>,
        timeout: f64,
        spread: bool,
        watch: Py<PyAny>,
    ) -> PyResult<PyCommunicator> {
        let fabric = self.fabric.take().ok_or_else(|| failed("it is connected already"))?;
        let (me, deadline, transport) = (self.me, after(timeout)?, self.transport);
        let mut peers = Vec::new();
        for (rank, address) in (0..).zip(&addresses) {
            if Rank(rank) != me.rank {
                peers.push(peer(Rank(rank), address)?);
            }
        }
        // fits: as many as there are addresses
        let ranks: Vec<Rank> = (0..addresses.len() as u32).map(Rank).collect();
        let interrupted = Mutex::new(None);
        let look_up = || {
            let seen = Python::attach(|py| {
                py.check_signals()?;
                watch.call0(py)
            });
            let goes_on = seen.is_ok();
            *interrupted.lock() = seen.err();
            goes_on
        };
        let connect = || -> Result<Communicator, String> {
            let connected = fabric.connect_while(&peers, deadline, &look_up);
            connected.map_err(|error| error.to_string())?;
            let link = link_cost(transport, spread);
            let options = GroupOptions {
                link,
                deterministic: true,
                segment_bytes: SEGMENT_BYTES,
                cores: std::thread::available_parallelism()
                    .ok()
                    .map(usize::from)
                    .filter(|_| !spread),
                ..GroupOptions::default()
            };
            let group = Group::open(fabric, &ranks, me.rank.index(), options, deadline);
            let options = CommunicatorOptions::default();
            group
                .and_then(|group| Communicator::new(group, names, &options, deadline))
                .map_err(|error| error.to_string())
        };
        let connected = py.detach(connect);
        if let Some(interrupt) = interrupted.into_inner() {
            return Err(interrupt);
        }
        let communicator = connected.map_err(failed)?;
        Ok(PyCommunicator { communicator, process: std::process::id(), transport })
    }
}

/// Signals of a group: for each of its seven vectors two from each other member, of 500 of them.
const ARRIVAL_SLOTS: usize = 8 << 10;
/// Bytes that are reduced while the next are on their way.
const SEGMENT_BYTES: usize = 256 << 10;

fn peer(rank: Rank, address: &str) -> PyResult<PeerAddress> {
    let wrong =
        || failed(format!("rank {rank} gave the address '{address}'; is its version the same?"));
    let (incarnation, endpoint) = address.split_once(' ').ok_or_else(wrong)?;
    let incarnation = Incarnation(incarnation.parse().map_err(|_| wrong())?);
    Ok(PeerAddress { rank, incarnation, endpoint: endpoint.parse().map_err(|_| wrong())? })
}

/// A group of processes that move and reduce memory.
#[pyclass(name = "Communicator", module = "tensorwire._native", frozen)]
struct PyCommunicator {
    communicator: Communicator,
    /// The process that made it: threads do not live on in a fork of it.
    process: u32,
    transport: Transport,
}

#[pymethods]
impl PyCommunicator {
    #[getter]
    fn size(&self) -> usize {
        self.communicator.size()
    }

    #[getter]
    fn rank(&self) -> usize {
        self.communicator.me()
    }

    #[getter]
    fn transport(&self) -> &'static str {
        self.transport.name()
    }

    /// Starts an operation. Memory is the address of all its parts, one behind the other, or a list with the address of
    /// each. `keep` keeps it alive. Without `wait` it moves by itself; else this returns when it is over.
    #[allow(clippy::too_many_arguments)] // as Python calls it, in one call
    fn start(
        &self,
        py: Python<'_>,
        kind: &str,
        root: usize,
        bytes: usize,
        element: &str,
        fold: Option<&str>,
        inputs: Option<&Bound<'_, PyAny>>,
        outputs: Option<&Bound<'_, PyAny>>,
        keep: Py<PyAny>,
        timeout: f64,
        wait: bool,
    ) -> PyResult<PyOperation> {
        self.check_process()?;
        let (kind, parts_in, parts_out) = self.kind(kind, root)?;
        let (elements, reducer) = match fold {
            None => (element.to_string(), None),
            Some(fold) => (format!("{element}, {fold}"), Some(reducer(element, fold)?)),
        };
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(keep);
        let call = CommunicatorCall {
            kind,
            bytes,
            reducer,
            elements,
            inputs: parts(inputs, bytes, parts_in, &keep)?,
            outputs: parts(outputs, bytes, parts_out, &keep)?,
        };
        let deadline = after(timeout)?;
        let communicator = &self.communicator;
        let operation = py.detach(|| {
            let operation = communicator.start(call, deadline)?;
            if !wait && !operation.is_over() {
                communicator.move_behind();
            }
            Ok(operation)
        });
        let operation = operation.map_err(|error: CommunicatorError| failed(error))?;
        let operation = PyOperation { operation, communicator: self.communicator.clone() };
        if wait {
            operation.wait(py, None)?;
        }
        Ok(operation)
    }

    /// Sends memory, by its address and its bytes, to a member.
    fn send(
        &self,
        py: Python<'_>,
        to: usize,
        tag: u64,
        memory: (usize, usize),
        keep: Py<PyAny>,
        timeout: f64,
    ) -> PyResult<PyOperation> {
        let deadline = after(timeout)?;
        self.mail(py, memory, keep, |communicator, buffer| {
            communicator.send(to, tag, buffer, deadline)
        })
    }

    /// Receives into memory, by its address and its bytes, from a member or from any.
    fn receive(
        &self,
        py: Python<'_>,
        from: Option<usize>,
        tag: u64,
        memory: (usize, usize),
        keep: Py<PyAny>,
        timeout: f64,
    ) -> PyResult<PyOperation> {
        let deadline = after(timeout)?;
        self.mail(py, memory, keep, |communicator, buffer| {
            communicator.receive(from, tag, buffer, deadline)
        })
    }

    /// Returns memory in which operations copy nothing, for `__dlpack__`.
    fn memory(&self, py: Python<'_>, bytes: usize) -> PyResult<PyMemory> {
        self.check_process()?;
        let buffer = py.detach(|| self.communicator.alloc(bytes)).map_err(failed)?;
        Ok(PyMemory { buffer })
    }

    /// Makes memory that this process shares by a file, and has mapped at `address`, memory without copies. The file is
    /// the communicator's from now on.
    fn adopt(&self, py: Python<'_>, file: i32, bytes: usize, address: usize) -> PyResult<()> {
        self.check_process()?;
        if file < 0 {
            return Err(PyValueError::new_err(format!("{file} is no file")));
        }
        // SAFETY: the caller gives the open descriptor away, and it is closed nowhere else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        py.detach(|| self.communicator.adopt(file, bytes, address)).map_err(failed)
    }

    /// Forgets what was adopted at an address.
    fn forget(&self, address: usize) {
        self.communicator.forget(address);
    }

    /// Returns counts.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.communicator.stats();
        let said = PyDict::new(py);
        said.set_item("operations", stats.operations)?;
        said.set_item("in_place", stats.in_place)?;
        said.set_item("messages", stats.messages)?;
        said.set_item("bytes_sent", stats.bytes_sent)?;
        said.set_item("registered_bytes", stats.registered_bytes)?;
        said.set_item("copied_bytes", copied(&stats.copies))?;
        Ok(said)
    }

    /// What it failed of, as PyTorch calls it; None if it has not.
    fn failure(&self) -> Option<&'static str> {
        Some(match self.communicator.failure()? {
            CommunicatorError::TimedOut { .. } => "TIMEOUT",
            CommunicatorError::Lost { .. } => "REMOTE_ERROR",
            _ => "COMM_ERROR",
        })
    }

    /// Ends all operations with an error.
    fn abort(&self, py: Python<'_>, why: &str) {
        if self.process == std::process::id() {
            py.detach(|| self.communicator.abort(why));
        }
    }

    /// Leaves in good order.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        let deadline = after(timeout)?;
        py.detach(|| self.communicator.close(deadline)).map_err(failed)
    }
}

/// Of all purposes: what the memory of a user is copied for, and results of reductions.
fn copied(copies: &tensorwire::memory::Copies) -> u64 {
    CopyPurpose::ALL.iter().map(|purpose| copies.of(*purpose)).sum()
}

impl PyCommunicator {
    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(failed(
            "this process is a fork of the one that is in the group; make a group in it, or start it by spawn",
        ))
    }

    /// The operation of a name, and the parts of its inputs and outputs here.
    fn kind(&self, name: &str, root: usize) -> PyResult<(CallKind, usize, usize)> {
        let size = self.communicator.size();
        let of_root = if root == self.communicator.me() { size } else { 0 };
        Ok(match name {
            "all_reduce" => (CallKind::AllReduce, 0, 1),
            "broadcast" => (CallKind::Broadcast { root }, 0, 1),
            "reduce" => (CallKind::Reduce { root }, 0, 1),
            "all_gather" => (CallKind::AllGather, 1, size),
            "gather" => (CallKind::Gather { root }, 1, of_root),
            "scatter" => (CallKind::Scatter { root }, of_root, 1),
            "reduce_scatter" => (CallKind::ReduceScatter, size, 1),
            "all_to_all" => (CallKind::AllToAll, size, size),
            "barrier" => (CallKind::Barrier, 0, 0),
            other => return Err(PyValueError::new_err(format!("there is no operation '{other}'"))),
        })
    }

    fn mail(
        &self,
        py: Python<'_>,
        (address, bytes): (usize, usize),
        keep: Py<PyAny>,
        begin: impl FnOnce(&Communicator, &Buffer) -> Result<Operation, CommunicatorError> + Send,
    ) -> PyResult<PyOperation> {
        self.check_process()?;
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(keep);
        let buffer = buffer(address, bytes, &keep)?;
        let begun = py.detach(|| {
            let operation = begin(&self.communicator, &buffer)?;
            if !operation.is_over() {
                self.communicator.move_behind();
            }
            Ok(operation)
        });
        let operation = begun.map_err(|error: CommunicatorError| failed(error))?;
        Ok(PyOperation { operation, communicator: self.communicator.clone() })
    }
}

impl Drop for PyCommunicator {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // its threads are not here: what waits for them would wait for ever
            std::mem::forget(self.communicator.clone());
            return;
        }
        let communicator = self.communicator.clone();
        // its thread may be about to tell Python something
        let dropped =
            Python::try_attach(|py| py.detach(|| communicator.abort("the group was dropped")));
        if dropped.is_none() {
            std::mem::forget(communicator);
        }
    }
}

/// An operation under way.
#[pyclass(name = "Operation", module = "tensorwire._native", frozen)]
struct PyOperation {
    operation: Operation,
    communicator: Communicator,
}

#[pymethods]
impl PyOperation {
    fn is_over(&self) -> bool {
        self.operation.is_over()
    }

    /// Why it failed; None while it is under way, and where it did not.
    fn error(&self) -> Option<String> {
        self.operation.outcome()?.err().map(|error| error.to_string())
    }

    /// Who sent what a receive got.
    fn source(&self) -> Option<usize> {
        self.operation.outcome()?.ok()?.received.map(|received| received.from)
    }

    /// Waits until it is over, its own deadline at most, and this one's.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = timeout.map(after).transpose()?;
        if let Some(outcome) = self.operation.outcome() {
            return outcome.map(drop).map_err(failed);
        }
        let interrupted = Mutex::new(None);
        let look_up = || {
            let signalled = Python::attach(|py| py.check_signals());
            let goes_on = signalled.is_ok();
            *interrupted.lock() = signalled.err();
            goes_on
        };
        let waited = py.detach(|| self.communicator.wait(&self.operation, deadline, look_up));
        match (waited, interrupted.into_inner()) {
            (_, Some(interrupt)) => Err(interrupt),
            (Ok(_), None) => Ok(()),
            (Err(error), None) => Err(failed(error)),
        }
    }

    /// Calls `listener` once, when it is over, with the error or None: at once if it is, else on another thread.
    fn on_over(&self, py: Python<'_>, listener: Py<PyAny>) {
        let tell = move |outcome: &Result<Outcome, CommunicatorError>| {
            let error = outcome.as_ref().err().map(|error| error.to_string());
            Python::try_attach(|py| {
                if let Err(error) = listener.call1(py, (error,)) {
                    error.write_unraisable(py, None);
                }
            });
        };
        py.detach(|| {
            self.operation.on_over(tell);
            if !self.operation.is_over() {
                self.communicator.move_behind();
            }
        });
    }
}

/// The reduction of elements by a name.
fn reducer(element: &str, fold: &str) -> PyResult<Arc<dyn Reducer>> {
    let unknown =
        |what: &str, name: &str| PyValueError::new_err(format!("there is no {what} '{name}'"));
    let kind = match fold {
        "sum" => FoldKind::Sum,
        "avg" => FoldKind::Mean,
        "product" => FoldKind::Product,
        "min" => FoldKind::Min,
        "max" => FoldKind::Max,
        "band" => FoldKind::BitAnd,
        "bor" => FoldKind::BitOr,
        "bxor" => FoldKind::BitXor,
        other => return Err(unknown("reduction", other)),
    };
    let element = match element {
        "f32" => FoldElement::F32,
        "f64" => FoldElement::F64,
        "f16" => FoldElement::F16,
        "bf16" => FoldElement::BF16,
        "i8" => FoldElement::I8,
        "u8" => FoldElement::U8,
        "i16" => FoldElement::I16,
        "i32" => FoldElement::I32,
        "i64" => FoldElement::I64,
        "bool" => FoldElement::Bool,
        other => return Err(unknown("type of elements that are reduced", other)),
    };
    let reducer = VectorReducer::new(element, kind);
    Ok(Arc::new(reducer.map_err(|error| PyValueError::new_err(error.to_string()))?))
}
