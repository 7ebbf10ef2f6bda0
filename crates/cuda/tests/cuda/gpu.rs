//! Operators on a GPU by its driver, as a job has them computed: a real one, or the driver that stands in its place.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_cuda::{CudaKernels, CudaOptions, Gpus};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::check::Computes;
use tensorwire_kernels::{DeviceCall, DeviceFailure, DeviceKernels, DeviceOperand, KernelError};
use tensorwire_memory::{Arena, Buffer, Place, Slab, TensorMut, TensorRef};
use tensorwire_tensor::TensorSpec;
use tensorwire_testkit::cuda::OnlyDriver;

use crate::engine::{is_own_process, libraries, rounding};

const PATIENCE: Duration = Duration::from_secs(120);
const ALIGNMENT: usize = 256;
/// Between operands, and what memory holds that was not written.
const GUARD: u8 = 0x5a;
const GUARD_BYTES: usize = 128;
const UNWRITTEN: u8 = 0xff;

/// Where tensors lie on the GPU of [`driver`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu {
    /// True if tensors lie at multiples of 256, else of their elements alone.
    pub(crate) is_aligned: bool,
}

/// The driver that the suite runs on, if it runs on one: what the environment names, else this machine's.
fn driver() -> Option<&'static OnlyDriver> {
    static DRIVER: OnceLock<Option<OnlyDriver>> = OnceLock::new();
    let found = DRIVER.get_or_init(|| {
        let is_here = || Gpus::find(None).is_ok_and(|gpus| gpus.count() > 0);
        OnlyDriver::named().or_else(|| is_here().then_some(OnlyDriver::Real))
    });
    found.as_ref()
}

/// True if nothing else is to be run on.
pub(crate) fn is_alone() -> bool {
    OnlyDriver::named().is_some()
}

pub(crate) fn gpus() -> Vec<Gpu> {
    let both = [true, false].map(|is_aligned| Gpu { is_aligned });
    match driver() {
        // libraries take aligned tensors alone
        Some(_) if is_own_process() => both[..1].to_vec(),
        Some(_) => both.to_vec(),
        None => Vec::new(),
    }
}

/// Does something with the GPU, which is opened once.
pub(crate) fn with_kernels<T>(work: impl FnOnce(&mut CudaKernels) -> T) -> T {
    work(open().get_or_insert_with(opened))
}

/// One at a time: what a GPU finds wrong is of the last one.
fn open() -> MutexGuard<'static, Option<CudaKernels>> {
    static OPEN: Mutex<Option<CudaKernels>> = Mutex::new(None);
    OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The tensors of an operator in one piece of memory: where each lies.
struct Layout {
    places: Vec<(usize, usize)>,
    bytes: usize,
}

impl Layout {
    fn push(&mut self, spec: &TensorSpec, is_aligned: bool) -> usize {
        let shift = if is_aligned { 0 } else { spec.dtype.bytes() };
        let start = (self.bytes + GUARD_BYTES).next_multiple_of(ALIGNMENT) + shift;
        self.places.push((start, spec.bytes()));
        self.bytes = start + spec.bytes();
        start
    }
}

impl Gpu {
    /// Has the GPU compute `op`. `outputs` hold what is read of them.
    pub(crate) fn run(
        self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
        rate_factor: f64,
    ) -> Result<(), KernelError> {
        let mut open = open();
        let kernels = open.get_or_insert_with(opened);
        kernels.set_rate_factor(rate_factor).unwrap();
        let Err(failure) = self.compute_with(kernels, op, inputs, outputs, in_place) else {
            return Ok(());
        };
        // nothing is computed behind a failure
        *open = None;
        match failure {
            DeviceFailure::Kernel { source, .. } => Err(*source),
            failure => panic!("{}: {failure}", op.name()),
        }
    }

    pub(crate) fn compute_with(
        self,
        kernels: &mut CudaKernels,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
    ) -> Result<(), DeviceFailure> {
        let mut layout = Layout { places: Vec::new(), bytes: 0 };
        let read: Vec<usize> =
            inputs.iter().map(|x| layout.push(x.spec(), self.is_aligned)).collect();
        let made: Vec<usize> =
            outputs.iter().map(|x| layout.push(x.spec(), self.is_aligned)).collect();
        layout.bytes += GUARD_BYTES;
        let host = whole(&kernels.alloc_on_host(layout.bytes)?);
        let there = There(whole(&kernels.alloc(0, layout.bytes)?));
        let before = {
            let mut room = host.write().unwrap();
            room.fill(GUARD);
            for (x, start) in inputs.iter().zip(&read) {
                room[*start..][..x.bytes().len()].copy_from_slice(x.bytes());
            }
            let kept = if in_place { 1 } else { op.mutated_inputs() };
            for (at, (output, start)) in outputs.iter_mut().zip(&made).enumerate() {
                let room = &mut room[*start..][..output.spec().bytes()];
                match at < kept {
                    true => room.copy_from_slice(output.bytes()),
                    false => room.fill(UNWRITTEN),
                }
            }
            room.to_vec()
        };
        let (from, to) = (host.lend_to_device(), there.0.lend_to_device_for_writing());
        let copy = kernels.copy(from.unwrap(), to.unwrap())?;
        kernels.wait(copy, Deadline::after(PATIENCE))?;
        let given: Vec<TensorSpec> = inputs.iter().map(|x| x.spec().clone()).collect();
        let out: Vec<TensorSpec> = outputs.iter().map(|x| x.spec().clone()).collect();
        let (inputs_at, outputs_at) = (there.at(&given, &read), there.at(&out, &made));
        kernels.start(DeviceCall {
            node: NodeId(77),
            device: 0,
            op,
            inputs: &inputs_at,
            outputs: &outputs_at,
            in_place,
        })?;
        let (from, to) = (there.0.lend_to_device(), host.lend_to_device_for_writing());
        let copy = kernels.copy(from.unwrap(), to.unwrap())?;
        kernels.wait(copy, Deadline::after(PATIENCE))?;
        let found = host.read().unwrap();
        let mut expected = before;
        for (output, start) in outputs.iter_mut().zip(&made) {
            let bytes = output.bytes();
            bytes.copy_from_slice(&found[*start..][..bytes.len()]);
            expected[*start..][..bytes.len()].copy_from_slice(bytes);
        }
        let name = op.name();
        assert!(
            expected[..] == found[..],
            "{name}: an input or bytes beside a tensor were written"
        );
        Ok(())
    }
}

/// Memory of the GPU.
struct There(Buffer);

impl There {
    /// Operands that begin so many bytes behind its start.
    fn at<'a>(&self, specs: &'a [TensorSpec], starts: &[usize]) -> Vec<DeviceOperand<'a>> {
        let address = |start: &usize| self.0.address() + start;
        let operand = |(spec, start)| DeviceOperand { spec, address: address(start) };
        specs.iter().zip(starts).map(operand).collect()
    }
}

impl Computes for Gpu {
    fn description(&self) -> String {
        format!("a GPU told by one thread, {:?}, aligned {}", driver(), self.is_aligned)
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, inputs, outputs, false, 1.0)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, rest, outputs, true, 1.0)
    }

    /// The same bits wherever tensors lie.
    fn kin(&self, _: &Op) -> Option<String> {
        Some("gpu".to_owned())
    }
}

fn opened() -> CudaKernels {
    let driver: Option<PathBuf> = driver().and_then(OnlyDriver::library);
    let options = CudaOptions {
        driver,
        libraries: libraries(),
        rounding: rounding(),
        ..CudaOptions::default()
    };
    CudaKernels::open(&options, 0).unwrap()
}

/// All of a slab as one buffer.
fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    Arena::new(slab, &[place]).unwrap().into_buffers().remove(0)
}
