//! The engine itself, on the driver without a GPU and with its libraries: whole operators, as sessions have them computed. The
//! driver reads its environment once, so that each of these runs in a process of its own.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_cuda::{CudaKernels, CudaOptions, Rounding};
use tensorwire_device::LibrarySearch;
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::check::Computes;
use tensorwire_kernels::{DeviceCall, DeviceFailure, DeviceKernels, DeviceOperand, KernelError};
use tensorwire_memory::{Buffer, Place, Slab, TensorMut, TensorRef};
use tensorwire_tensor::TensorSpec;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

/// Names the folder of libraries in a process that is to use an engine, or `none`.
const LIBRARIES: &str = "CUDA_TEST_LIBRARIES";
const ROUNDING: &str = "CUDA_TEST_ROUNDING";

/// Of operands of one operator.
const MEMORY: usize = 64 << 20;
const ALIGNMENT: usize = 256;

/// A GPU that is none, behind the engine.
#[derive(Debug)]
pub(crate) struct Engine {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    kernels: CudaKernels,
    device: Slab,
    host: Slab,
}

/// The engine of this process, if it is to use one.
pub(crate) fn engine() -> Option<&'static Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    let made = || {
        let folder = std::env::var_os(LIBRARIES)?;
        Some(Engine::open(&folder, rounding()))
    };
    ENGINE.get_or_init(made).as_ref()
}

/// What an engine's process is to round to.
pub(crate) fn rounding() -> Rounding {
    match std::env::var(ROUNDING).as_deref() {
        Ok("tf32") => Rounding::Tf32,
        Ok("bf16") => Rounding::Bf16,
        _ => Rounding::Nothing,
    }
}

/// Runs tests of this program, whose names begin so, in a process with an engine: what it said.
pub(crate) fn in_a_process(
    names: &[&str],
    libraries: bool,
    environment: &[(&str, &str)],
) -> Option<String> {
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => {
            skip(None, &reason);
            return None;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    let folder = if libraries { folder.path() } else { std::path::Path::new("none") };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(names).args(["--nocapture", "--test-threads=1"]);
    command.env(LIBRARIES, folder).env("FAKE_CUDA_KERNELS", kernels);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{names:?}: {said}");
    assert!(!said.contains("running 0 tests"), "{names:?} are no tests");
    Some(said)
}

impl Engine {
    fn open(folder: &std::ffi::OsStr, rounding: Rounding) -> Engine {
        let search = LibrarySearch { folders: vec![folder.into()], ..LibrarySearch::default() };
        let options = CudaOptions {
            driver: tensorwire_fakecuda::library(),
            libraries: (folder != "none").then_some(search),
            rounding,
        };
        let mut kernels = CudaKernels::open(&options, 0).unwrap();
        let (device, host) =
            (kernels.alloc(0, MEMORY).unwrap(), kernels.alloc_on_host(MEMORY).unwrap());
        Engine { state: Mutex::new(State { kernels, device, host }) }
    }

    pub(crate) fn description(&self) -> String {
        self.state.lock().kernels.description()
    }

    /// How many products were left to the library.
    pub(crate) fn library_calls(&self) -> u64 {
        self.state.lock().kernels.library_calls()
    }

    /// As [`Computes`], but what fails is the device's word. Operands lie so many bytes behind multiples of 256.
    pub(crate) fn run(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
        shift: usize,
    ) -> Result<(), DeviceFailure> {
        let mut state = self.state.lock();
        let State { kernels, device, host } = &mut *state;
        let (device, host) = (&*device, &*host);
        let mut end = 0;
        let mut place = |bytes: usize| {
            let offset = end + shift;
            end = (offset + bytes).next_multiple_of(ALIGNMENT);
            assert!(end <= MEMORY, "{}: operands are too large for this test", op.name());
            Place { offset, bytes }
        };
        let of_inputs: Vec<Place> = inputs.iter().map(|x| place(x.bytes().len())).collect();
        let of_outputs: Vec<Place> = outputs.iter_mut().map(|y| place(y.bytes().len())).collect();
        // SAFETY: one operator at a time uses either slab: the lock is held until it has ended.
        let on = |slab: &Slab, place: Place| unsafe { Buffer::within(slab, place) };
        let mut all: Vec<(Place, &[u8])> =
            of_inputs.iter().copied().zip(inputs.iter().map(TensorRef::bytes)).collect();
        for (place, output) in of_outputs.iter().zip(outputs.iter_mut()) {
            all.push((*place, output.bytes()));
        }
        for (place, bytes) in all.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let (from, to) = (on(host, place), on(device, place));
            from.write().unwrap().copy_from_slice(bytes);
            kernels
                .copy(from.lend_to_device().unwrap(), to.lend_to_device_for_writing().unwrap())?;
        }
        let address = |place: &Place| device.address() + place.offset;
        let out: Vec<TensorSpec> = outputs.iter().map(|y| y.spec().clone()).collect();
        let given = inputs.iter().zip(&of_inputs);
        let given: Vec<DeviceOperand<'_>> = given
            .map(|(x, place)| DeviceOperand { spec: x.spec(), address: address(place) })
            .collect();
        let made = out.iter().zip(&of_outputs);
        let made: Vec<DeviceOperand<'_>> =
            made.map(|(spec, place)| DeviceOperand { spec, address: address(place) }).collect();
        let call =
            DeviceCall { node: NodeId(7), device: 0, op, inputs: &given, outputs: &made, in_place };
        kernels.start(call)?;
        for place in of_outputs.iter().filter(|place| place.bytes > 0) {
            let (from, to) = (on(device, *place), on(host, *place));
            kernels
                .copy(from.lend_to_device().unwrap(), to.lend_to_device_for_writing().unwrap())?;
        }
        let over = kernels.mark()?;
        kernels.wait(over, Deadline::after(Duration::from_secs(60)))?;
        for (place, output) in of_outputs.iter().zip(outputs.iter_mut()) {
            if place.bytes > 0 {
                output.bytes().copy_from_slice(&on(host, *place).read().unwrap());
            }
        }
        Ok(())
    }

    fn computed(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
    ) -> Result<(), KernelError> {
        self.run(op, inputs, outputs, in_place, 0).map_err(|failure| match failure {
            DeviceFailure::Kernel { source, .. } => *source,
            DeviceFailure::Device(error) => panic!("{}: {error}", op.name()),
        })
    }
}

impl Computes for Engine {
    fn description(&self) -> String {
        Engine::description(self)
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.computed(op, inputs, outputs, false)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.computed(op, rest, outputs, true)
    }

    fn kin(&self, _: &Op) -> Option<String> {
        Some("engine".to_owned())
    }
}
