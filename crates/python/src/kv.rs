//! The key-value store, as `tensorwire.kv` calls it: tensors of Python in, pushes and pulls out. What lies in memory that the
//! store gave is pushed and pulled where it lies; everything else is copied there and back, and counted.

mod compression;
mod end;
mod errors;
mod names;
mod rules;
mod tensors;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorwire::base::Deadline;
use tensorwire::kvstore::Key;
use tensorwire::kvstore::proto::Mode;
use tensorwire::launch::Transport;
use tensorwire::memory::{Buffer, Copies, CopyPurpose};
use tensorwire::store::{OpenStore, OpenedStore, StoreFailure, StoreMember};
use tensorwire::tensor::DType;
use tensorwire::train::{GradientCompression, StoreRules};

use crate::dlpack::Borrowed;
use compression::{compression_named, push_less};
use end::{WorkerEnd, interruptibly};
use errors::{StoreError, exception, key_of};
use names::{Name, key, said, same_key};
use rules::{Named, rule};
use tensors::{
    NAMES, Place, Tensor, dtype_named, kind, named, rooms, spec, stage, unstage, writable,
};

/// The longest time that a deadline can say.
const LONGEST_S: f64 = 1e9;

/// Adds the store to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Store>()?;
    module.add_class::<Tensor>()?;
    module.add_function(wrap_pyfunction!(open_store, module)?)?;
    module.add_function(wrap_pyfunction!(serve_store, module)?)?;
    module.add_function(wrap_pyfunction!(local_store, module)?)?;
    module.add("StoreError", module.py().get_type::<StoreError>())
}

/// A worker's end of a store.
#[pyclass(frozen, module = "tensorwire._native")]
struct Store {
    end: WorkerEnd,
    rank: u32,
    workers: u32,
    known: Mutex<Known>,
    /// Less crosses of what is pushed; none: all of it.
    compression: Mutex<Option<GradientCompression>>,
}

/// What this process knows of the values that it uses.
#[derive(Default)]
struct Known {
    values: HashMap<Key, Value>,
    /// By the address of their first byte: what the store gave and is still in use.
    given: HashMap<usize, Weak<Buffer>>,
    copies: Copies,
}

#[derive(Clone)]
struct Value {
    name: Name,
    shape: Vec<usize>,
    dtype: DType,
}

/// How a store is opened, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    mode: String,
    servers: u32,
    max_delay: Option<u64>,
    big_elements: usize,
    elastic: bool,
    transport: String,
    server: (PathBuf, Vec<String>),
}

impl Options {
    fn checked(self) -> PyResult<OpenStore> {
        let Options { servers, big_elements, elastic, max_delay, .. } = self;
        let mode = match self.mode.as_str() {
            "sync" => Mode::Sync,
            "async" => Mode::Async { max_delay },
            other => {
                return Err(PyValueError::new_err(format!("mode is sync or async, not '{other}'")));
            }
        };
        let all = [Transport::Auto, Transport::Shm, Transport::Tcp, Transport::Verbs];
        let transport = all.into_iter().find(|known| known.name() == self.transport);
        let transport = transport.ok_or_else(|| {
            let found = &self.transport;
            PyValueError::new_err(format!("transport is auto, shm, tcp or verbs, not '{found}'"))
        })?;
        let server = Some(self.server);
        Ok(OpenStore { mode, servers, big_elements, elastic, transport, server })
    }
}

/// Returns a worker's end of a store, or None in a server or a scheduler whose job is over.
#[pyfunction]
fn open_store(py: Python<'_>, options: Options) -> PyResult<Option<Store>> {
    let options = options.checked()?;
    match interruptibly(py, |go_on| options.open_while(go_on))?.map_err(exception)? {
        OpenedStore::Worker(member) => Ok(Some(Store::new(*member))),
        OpenedStore::Served => Ok(None),
    }
}

/// Serves, in a process that rank 0 of a store started as a server: what it is to do comes from there.
#[pyfunction]
fn serve_store(py: Python<'_>) -> PyResult<()> {
    py.detach(|| OpenStore::default().open()).map(drop).map_err(exception)
}

/// Returns the store of one process.
#[pyfunction]
fn local_store() -> PyResult<Store> {
    Ok(Store::new(OpenStore::alone().map_err(exception)?))
}

impl Store {
    fn new(member: StoreMember) -> Store {
        let (rank, workers) = (member.rank(), member.workers());
        let (known, compression) = Default::default();
        Store { end: WorkerEnd::new(member), rank, workers, known, compression }
    }

    /// Returns until when a call may wait that begins now.
    fn begin(&self, timeout: f64) -> PyResult<Deadline> {
        self.end.check_process()?;
        deadline(timeout)
    }

    /// Does something with the worker's end, without Python's lock. `work` is told whom to ask whether to go on.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        work: impl FnOnce(&mut StoreMember, &mut dyn FnMut() -> bool) -> Result<T, StoreFailure> + Send,
    ) -> PyResult<T> {
        let done = self.end.with(py, deadline, |member, go_on| {
            member.as_mut().map(|member| work(member, go_on)).transpose()
        })?;
        let closed = || StoreError::new_err("the store is closed; create another");
        done.map_err(|failure| self.exception(failure))?.ok_or_else(closed)
    }

    /// Takes the worker's end for good; true if there was one. A fork has none.
    fn leave(
        &self,
        py: Python<'_>,
        timeout: f64,
        leave: impl FnOnce(StoreMember, Deadline, &mut dyn FnMut() -> bool) -> Result<(), StoreFailure>
        + Send,
    ) -> PyResult<bool> {
        if self.end.is_fork() {
            return Ok(false);
        }
        let deadline = deadline(timeout)?;
        let left = self.end.with(py, deadline, |member, go_on| {
            member.take().map(|member| leave(member, deadline, go_on)).transpose()
        })?;
        left.map(|left| left.is_some()).map_err(exception)
    }

    /// As [`exception`], with keys as the user has them.
    fn exception(&self, failure: StoreFailure) -> PyErr {
        let Some(key) = key_of(&failure) else { return exception(failure) };
        let known = self.known.lock();
        let Some(Value { name: Name::Text(name), .. }) = known.values.get(&key) else {
            return exception(failure);
        };
        let said = failure.to_string().replace(&key.to_string(), &format!("key '{name}'"));
        PyValueError::new_err(said)
    }

    /// What a value was initialised as.
    fn value(&self, name: &Name) -> PyResult<(Key, Value)> {
        let key = key(name)?;
        let known = self.known.lock();
        let value = known.values.get(&key).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{} was never initialised here; call init first, on every worker",
                said(name)
            ))
        })?;
        if value.name != *name {
            return Err(same_key(&value.name, name));
        }
        Ok((key, value.clone()))
    }

    /// Where a tensor lies that is to be `rows` of a value, or all of it.
    fn place(
        &self,
        tensor: &Bound<'_, PyAny>,
        value: &Value,
        rows: Option<usize>,
    ) -> PyResult<Place> {
        let tensor = Borrowed::of(tensor)?;
        let mut wanted = value.shape.clone();
        if let (Some(rows), Some(first)) = (rows, wanted.first_mut()) {
            *first = rows;
        }
        if tensor.shape() != wanted || tensor.dtype().dtype() != Some(value.dtype) {
            return Err(PyValueError::new_err(format!(
                "{} is {} of shape {:?}, and the tensor is {} of shape {:?}",
                said(&value.name),
                named(value.dtype),
                wanted,
                kind(tensor.dtype()),
                tensor.shape(),
            )));
        }
        let given = self.known.lock().given.get(&tensor.address()).and_then(Weak::upgrade);
        match given.filter(|buffer| buffer.bytes() == tensor.bytes()) {
            Some(buffer) => Ok(Place::Given(buffer)),
            None => Ok(Place::Elsewhere(tensor)),
        }
    }

    fn places(
        &self,
        names: &[Name],
        tensors: &[Vec<Bound<'_, PyAny>>],
        written: bool,
    ) -> PyResult<(Vec<Key>, Vec<Vec<Place>>)> {
        if names.len() != tensors.len() {
            let (keys, found) = (names.len(), tensors.len());
            return Err(PyValueError::new_err(format!("{keys} keys, but tensors for {found}")));
        }
        let (mut keys, mut places) = (Vec::new(), Vec::new());
        for (name, devices) in names.iter().zip(tensors) {
            let (key, value) = self.value(name)?;
            let all: PyResult<Vec<Place>> = devices
                .iter()
                .map(|tensor| {
                    let place = self.place(tensor, &value, None)?;
                    if written { writable(place, name) } else { Ok(place) }
                })
                .collect();
            keys.push(key);
            places.push(all?);
        }
        Ok((keys, places))
    }
}

#[pymethods]
impl Store {
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn num_workers(&self) -> u32 {
        self.workers
    }

    /// Returns memory that servers reach, as a tensor whose elements are anything.
    fn empty(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &str,
        timeout: f64,
    ) -> PyResult<Tensor> {
        let deadline = self.begin(timeout)?;
        let dtype = dtype_named(dtype)?;
        let spec = spec(&shape, dtype)?;
        let buffer = self.with(py, deadline, |member, _| Ok(member.store().alloc(&spec)?))?;
        let buffer = Arc::new(buffer);
        let mut known = self.known.lock();
        known.given.retain(|_, buffer| buffer.strong_count() > 0);
        known.given.insert(buffer.address(), Arc::downgrade(&buffer));
        Ok(Tensor { buffer, shape, dtype })
    }

    /// As `empty`, all zero.
    fn zeros(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &str,
        timeout: f64,
    ) -> PyResult<Tensor> {
        let tensor = self.empty(py, shape, dtype, timeout)?;
        let mut bytes =
            tensor.buffer.write().map_err(|error| StoreError::new_err(error.to_string()))?;
        bytes.fill(0);
        drop(bytes);
        Ok(tensor)
    }

    /// Makes values known; those of rank 0 become the first ones.
    fn init(
        &self,
        py: Python<'_>,
        names: Vec<Name>,
        tensors: Vec<Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        if names.len() != tensors.len() {
            let (keys, found) = (names.len(), tensors.len());
            return Err(PyValueError::new_err(format!("{keys} keys, but tensors for {found}")));
        }
        let (mut specs, mut places, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (name, tensor) in names.iter().zip(&tensors) {
            let key = key(name)?;
            let first = Borrowed::of(tensor)?;
            let dtype = first.dtype().dtype().ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "{}: a store has no values of {}; it has {}",
                    said(name),
                    kind(first.dtype()),
                    NAMES.map(|(name, _)| name).join(", ")
                ))
            })?;
            let value = Value { name: name.clone(), shape: first.shape().to_vec(), dtype };
            if let Some(before) = self.known.lock().values.get(&key)
                && before.name != value.name
            {
                return Err(same_key(&before.name, name));
            }
            specs.push((key, spec(&value.shape, dtype)?));
            places.push(vec![self.place(tensor, &value, None)?]);
            values.push((key, value));
        }
        let gives = self.rank == 0;
        let copies = self.with(py, deadline, |member, go_on| {
            let mut staged = Copies::default();
            let places = if gives { places } else { Vec::new() };
            let first = stage(member.store(), &places, &mut staged)?;
            let first: Vec<Buffer> = first.into_iter().flatten().collect();
            let handle = member.store().init(&specs, gives.then_some(&first))?;
            member.wait(handle, deadline, go_on)?;
            Ok(staged)
        })?;
        let mut known = self.known.lock();
        known.values.extend(values);
        known.copies.merge(&copies);
        Ok(())
    }

    /// Pushes the sum of each value's tensors; returns when they may be written again.
    fn push(
        &self,
        py: Python<'_>,
        names: Vec<Name>,
        tensors: Vec<Vec<Bound<'_, PyAny>>>,
        priority: i32,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let (keys, places) = self.places(&names, &tensors, false)?;
        let copies = self.with(py, deadline, |member, go_on| {
            let mut staged = Copies::default();
            let from = stage(member.store(), &places, &mut staged)?;
            let pushed = match &mut *self.compression.lock() {
                None => vec![member.store().push(&keys, &from, priority)?],
                Some(less) => push_less(less, member.store(), &keys, &from, priority)?,
            };
            for handle in pushed {
                member.wait_sent(handle, deadline, go_on)?;
            }
            Ok(staged)
        })?;
        self.known.lock().copies.merge(&copies);
        Ok(())
    }

    /// Pulls values into tensors; returns when they are there.
    fn pull(
        &self,
        py: Python<'_>,
        names: Vec<Name>,
        tensors: Vec<Vec<Bound<'_, PyAny>>>,
        priority: i32,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let (keys, places) = self.places(&names, &tensors, true)?;
        let copies = self.with(py, deadline, |member, go_on| {
            let into = rooms(member.store(), &places)?;
            let handle = member.store().pull(&keys, &into, priority)?;
            member.wait(handle, deadline, go_on)?;
            unstage(&into, &places)
        })?;
        self.known.lock().copies.merge(&copies);
        Ok(())
    }

    /// A push and a pull of each value, in the same messages.
    fn pushpull(
        &self,
        py: Python<'_>,
        names: Vec<Name>,
        pushed: Vec<Vec<Bound<'_, PyAny>>>,
        pulled: Vec<Vec<Bound<'_, PyAny>>>,
        priority: i32,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let (keys, pushed) = self.places(&names, &pushed, false)?;
        let (_, pulled) = self.places(&names, &pulled, true)?;
        let copies = self.with(py, deadline, |member, go_on| {
            let mut copies = Copies::default();
            let from = stage(member.store(), &pushed, &mut copies)?;
            let into = rooms(member.store(), &pulled)?;
            let asked = match &mut *self.compression.lock() {
                None => vec![member.store().pushpull(&keys, &from, &into, priority)?],
                Some(less) => {
                    let mut asked = push_less(less, member.store(), &keys, &from, priority)?;
                    asked.push(member.store().pull(&keys, &into, priority)?);
                    asked
                }
            };
            for handle in asked {
                member.wait(handle, deadline, go_on)?;
            }
            copies.merge(&unstage(&into, &pulled)?);
            Ok(copies)
        })?;
        self.known.lock().copies.merge(&copies);
        Ok(())
    }

    /// Pushes some rows of a value, whose numbers are sorted.
    fn push_rows(
        &self,
        py: Python<'_>,
        name: Name,
        rows: Vec<i32>,
        tensor: &Bound<'_, PyAny>,
        priority: i32,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let (key, value) = self.value(&name)?;
        let place = vec![vec![self.place(tensor, &value, Some(rows.len()))?]];
        let copies = self.with(py, deadline, |member, go_on| {
            let mut staged = Copies::default();
            for from in stage(member.store(), &place, &mut staged)?.iter().flatten() {
                let handle = member.store().push_rows(key, &rows, from, priority)?;
                member.wait_sent(handle, deadline, go_on)?;
            }
            Ok(staged)
        })?;
        self.known.lock().copies.merge(&copies);
        Ok(())
    }

    /// Pulls some rows of a value, whose numbers are sorted.
    fn pull_rows(
        &self,
        py: Python<'_>,
        name: Name,
        rows: Vec<i32>,
        tensor: &Bound<'_, PyAny>,
        priority: i32,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let (key, value) = self.value(&name)?;
        let place = self.place(tensor, &value, Some(rows.len()))?;
        let places = vec![vec![writable(place, &name)?]];
        let copies = self.with(py, deadline, |member, go_on| {
            let rooms = rooms(member.store(), &places)?;
            for into in rooms.iter().flatten() {
                let handle = member.store().pull_rows(key, &rows, into, priority)?;
                member.wait(handle, deadline, go_on)?;
            }
            unstage(&rooms, &places)
        })?;
        self.known.lock().copies.merge(&copies);
        Ok(())
    }

    /// Says how servers update from now on: `kind` with its parameters, for all values but those that have a rule of their
    /// own.
    fn set_optimizer(
        &self,
        py: Python<'_>,
        default: Named,
        of_keys: Vec<(Name, Named)>,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        let mut rules = StoreRules::all(rule(default)?);
        for (name, other) in of_keys {
            rules.of_keys.insert(key(&name)?.0, rule(other)?);
        }
        let bytes = rules.to_bytes();
        self.with(py, deadline, |member, go_on| {
            let handle = member.store().set_optimizer(&bytes);
            member.wait(handle, deadline, go_on)
        })
    }

    /// Has less cross of what is pushed from now on: `kind` is int8, or top-k with a share of the elements; none: all of it.
    #[pyo3(signature = (kind, share))]
    fn set_gradient_compression(&self, kind: Option<&str>, share: Option<f64>) -> PyResult<()> {
        self.end.check_process()?;
        let compression = compression_named(kind, share)?;
        let opened = compression.map(GradientCompression::new).transpose();
        *self.compression.lock() =
            opened.map_err(|error| StoreError::new_err(error.to_string()))?;
        Ok(())
    }

    /// Has every server write its state to a file whose name begins with `path`.
    fn save(&self, py: Python<'_>, path: &str, timeout: f64) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        self.with(py, deadline, |member, go_on| {
            let handle = member.store().save(path);
            member.wait(handle, deadline, go_on)
        })
    }

    /// Has every server take the state that `save` wrote.
    fn load(&self, py: Python<'_>, path: &str, timeout: f64) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        self.with(py, deadline, |member, go_on| {
            let handle = member.store().load(path);
            member.wait(handle, deadline, go_on)
        })
    }

    /// Waits until every worker is here.
    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let deadline = self.begin(timeout)?;
        self.with(py, deadline, |member, go_on| member.barrier(deadline, go_on))
    }

    /// Returns the shape and the element type that a value was initialised with.
    fn shape_of(&self, name: Name) -> PyResult<(Vec<usize>, &'static str)> {
        self.end.check_process()?;
        let (_, value) = self.value(&name)?;
        Ok((value.shape, named(value.dtype)))
    }

    /// Returns what this worker moved so far, in bytes and messages.
    fn stats<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyDict>> {
        let deadline = self.begin(timeout)?;
        let (wire, copies) = self
            .with(py, deadline, |member, _| Ok((member.peek().stats(), member.peek().copies())))?;
        let staged = self.known.lock().copies.of(CopyPurpose::Staging);
        let stats = PyDict::new(py);
        stats.set_item("copied_bytes", copies.bytes() + staged)?;
        stats.set_item("staged_bytes", staged)?;
        stats.set_item("direct_bytes", wire.bytes_direct)?;
        stats.set_item("registered_bytes", wire.registered_bytes)?;
        stats.set_item("messages", wire.messages)?;
        stats.set_item("transfers", wire.transfers)?;
        Ok(stats)
    }

    /// Says goodbye to the servers. True if it had not been done before.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        self.leave(py, timeout, |member, deadline, go_on| member.close(deadline, go_on))
    }

    /// Tells the other workers that this one gives up, and why. True as of `close`.
    fn fail(&self, py: Python<'_>, why: &str, timeout: f64) -> PyResult<bool> {
        self.leave(py, timeout, |member, deadline, go_on| member.fail(why, deadline, go_on))
    }
}

fn deadline(timeout: f64) -> PyResult<Deadline> {
    if timeout.is_nan() || timeout < 0.0 {
        return Err(PyValueError::new_err("a timeout is a number of seconds, 0 or more"));
    }
    Ok(Deadline::after(Duration::from_secs_f64(timeout.min(LONGEST_S))))
}
