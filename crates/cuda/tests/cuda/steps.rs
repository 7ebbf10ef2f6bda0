//! Steps that a stream is told as a whole: gates, signals, what a NIC has written behind a gate.

use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_cuda::{CudaKernels, CudaOptions, RemoteWrites};
use tensorwire_fakecuda::FakeNic;
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceKernels, DeviceOperand};
use tensorwire_memory::{Buffer, Place, Slab};
use tensorwire_tensor::{DType, TensorSpec};
use tensorwire_testkit::cuda::OnlyDriver;

use crate::engine::{in_a_process, is_own_process};

const BYTES: usize = 64;

/// A device, with memory there and in the host's, where a step copies what it has behind a gate.
struct Machine {
    kernels: CudaKernels,
    here: Slab,
    there: Slab,
}

fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    // SAFETY: whoever else has the slab uses it in turn: the stream, or this thread when it is idle.
    unsafe { Buffer::within(slab, place) }
}

/// True where these tests run on a GPU, which needs no process of its own.
fn is_on_a_gpu() -> bool {
    OnlyDriver::named().is_some_and(|only| !only.is_stand_in())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

impl Machine {
    fn open(remote_writes: RemoteWrites) -> Machine {
        Machine::with(&CudaOptions { remote_writes, ..CudaOptions::default() }, 1)
    }

    /// With so many gates.
    fn with(options: &CudaOptions, gates: usize) -> Machine {
        let driver = OnlyDriver::named().and_then(|only| only.library());
        let options = CudaOptions { driver, ..options.clone() };
        let mut kernels = CudaKernels::open(&options, 0).unwrap();
        kernels.prepare_steps(gates, 1).unwrap();
        let here = kernels.alloc(0, BYTES).unwrap();
        let there = kernels.alloc_on_host(BYTES).unwrap();
        Machine { kernels, here, there }
    }

    /// Writes to the device's memory, as the host has it done.
    fn write(&mut self, byte: u8) {
        whole(&self.there).write().unwrap().fill(byte);
        let from = whole(&self.there).lend_to_device().unwrap();
        let to = whole(&self.here).lend_to_device_for_writing().unwrap();
        let copy = self.kernels.copy(from, to).unwrap();
        self.kernels.wait(copy, soon()).unwrap();
    }

    /// What is in memory of the device.
    fn there(&mut self, memory: &Slab) -> Vec<u8> {
        let host = self.kernels.alloc_on_host(BYTES).unwrap();
        let from = whole(memory).lend_to_device().unwrap();
        let to = whole(&host).lend_to_device_for_writing().unwrap();
        let copy = self.kernels.copy(from, to).unwrap();
        self.kernels.wait(copy, soon()).unwrap();
        whole(&host).read().unwrap().to_vec()
    }

    /// Brings what the host has to memory of the device, beside what is computed.
    fn ahead(&mut self, staged: &Slab) {
        let from = whole(&self.there).lend_to_device().unwrap();
        let to = whole(staged).lend_to_device_for_writing().unwrap();
        self.kernels.copy_ahead(from, to).unwrap();
    }

    /// Tells the step: wait at the gate, copy to the host, give the signal.
    fn step(&mut self) -> CopyId {
        self.kernels.begin_step().unwrap();
        self.kernels.wait_at_gate(0).unwrap();
        let from = whole(&self.here).lend_to_device().unwrap();
        let to = whole(&self.there).lend_to_device_for_writing().unwrap();
        self.kernels.copy_in_step(from, to).unwrap();
        self.kernels.give_signal(0).unwrap();
        self.kernels.end_step().unwrap().expect("a graph is made")
    }

    fn read(&self) -> Vec<u8> {
        whole(&self.there).read().unwrap().to_vec()
    }

    fn bytes_free(&self) -> u64 {
        self.kernels.device().memory().unwrap().free
    }

    /// Starts a loss of so many rows, whose operands are from there in `memory` on: it needs the more of the workspace the more
    /// they are.
    fn loss(&mut self, node: u32, (memory, at): (&Slab, usize), rows: usize) {
        let spec = |dtype, dims: &[usize]| TensorSpec::new(dtype, dims).unwrap();
        let (logits, labels) = (spec(DType::F32, &[rows, 2]), spec(DType::I32, &[rows]));
        let loss = spec(DType::F32, &[]);
        let mut address = memory.address() + at;
        let mut operand = |spec| {
            let operand = DeviceOperand { spec, address };
            address += spec.bytes().next_multiple_of(256);
            operand
        };
        let inputs = [&logits, &labels].map(&mut operand);
        let outputs = [&loss, &logits].map(&mut operand);
        let call = DeviceCall {
            node: NodeId(node),
            device: 0,
            op: &Op::SoftmaxCrossEntropy,
            inputs: &inputs,
            outputs: &outputs,
            in_place: false,
        };
        self.kernels.start(call).unwrap();
    }
}

#[test]
fn a_gate_lets_one_step_pass() {
    if !is_own_process() {
        in_a_process(&["--exact", "steps::a_gate_lets_one_step_pass"], false, &[]);
        return;
    }
    let mut machine = Machine::open(RemoteWrites::AsNeeded);
    // each is launched as one graph, and waits again
    for byte in 1..6 {
        machine.write(byte);
        let end = machine.step();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!machine.kernels.takes_signal(0), "the gate is shut");
        assert!(!machine.kernels.is_over(end).unwrap());
        machine.kernels.open_gate(0, false).unwrap();
        machine.kernels.wait(end, soon()).unwrap();
        assert!(machine.kernels.takes_signal(0) && !machine.kernels.takes_signal(0));
        assert_eq!(machine.read(), [byte; BYTES]);
    }
    assert_eq!(machine.kernels.graphs_launched(), 5);
    // nobody opens it: whoever gives up does
    let end = machine.step();
    machine.kernels.discard_step();
    machine.kernels.wait(end, soon()).unwrap();
}

#[test]
fn one_session_at_a_time_tells_steps() {
    if !is_own_process() {
        in_a_process(&["--exact", "steps::one_session_at_a_time_tells_steps"], false, &[]);
        return;
    }
    let mut machine = Machine::open(RemoteWrites::AsNeeded);
    for _ in 0..2 {
        let refused = machine.kernels.prepare_steps(1, 1).unwrap_err();
        assert!(refused.to_string().contains("another session"), "{refused}");
        // graphs wait for these words
        for byte in 1..5 {
            machine.write(byte);
            let end = machine.step();
            machine.kernels.open_gate(0, false).unwrap();
            machine.kernels.wait(end, soon()).unwrap();
            assert!(machine.kernels.takes_signal(0));
            assert_eq!(machine.read(), [byte; BYTES]);
        }
        machine.kernels.release_steps();
        machine.kernels.prepare_steps(1, 1).unwrap();
    }
}

#[test]
fn a_device_that_goes_while_its_stream_waits_opens_the_gates() {
    if !is_own_process() {
        let name = "steps::a_device_that_goes_while_its_stream_waits_opens_the_gates";
        in_a_process(&["--exact", name], false, &[]);
        return;
    }
    is_soon(|| {
        let mut machine = Machine::open(RemoteWrites::AsNeeded);
        machine.step();
        let begun = Instant::now();
        drop(machine);
        begun.elapsed()
    });
}

/// Fails if a stream that is stuck was waited for: each time, for where others keep the cores busy one may take as long.
fn is_soon(mut take: impl FnMut() -> Duration) {
    let mut all = Vec::new();
    let is_soon = (0..3).any(|_| {
        let took = take();
        all.push(took);
        took < Duration::from_secs(8)
    });
    assert!(is_soon, "{all:?}");
}

/// Whoever lets go of memory waits for the stream, which waits at a gate that the same thread opens.
#[test]
fn a_step_keeps_the_workspaces_that_it_outgrows() {
    if !is_own_process() {
        let name = "steps::a_step_keeps_the_workspaces_that_it_outgrows";
        in_a_process(&["--exact", name], false, &[]);
        return;
    }
    is_soon(outgrown);
}

/// Returns the longest time that it took to tell a step.
fn outgrown() -> Duration {
    let mut machine = Machine::open(RemoteWrites::AsNeeded);
    let before = machine.bytes_free();
    // as large as every allocation is here at least
    let memory = machine.kernels.alloc(0, 2 << 20).unwrap();
    let of_one = before - machine.bytes_free();
    // fresh memory is 0, which is a label
    let mut free = (0..6).map(|at| at * (192 << 10));
    let mut longest = Duration::ZERO;
    for growth in [1, 10] {
        let begun = Instant::now();
        machine.kernels.begin_step().unwrap();
        machine.kernels.wait_at_gate(0).unwrap();
        for (node, rows) in [(1, 100), (2, 400), (3, 900)] {
            machine.loss(node, (&memory, free.next().unwrap()), growth * rows);
        }
        let end = machine.kernels.end_step().unwrap().expect("a graph is made");
        // nobody waits for what the stream still has
        longest = longest.max(begun.elapsed());
        assert!(!machine.kernels.is_over(end).unwrap());
        machine.kernels.open_gate(0, false).unwrap();
        machine.kernels.wait(end, soon()).unwrap();
        // the operands and the last workspace
        assert_eq!(before - machine.bytes_free(), 2 * of_one);
    }
    longest
}

/// A stream that waits takes so much, and nothing that is used for the first time.
#[test]
fn a_step_is_one_thing_for_its_stream() {
    if !is_own_process() {
        let name = "steps::a_step_is_one_thing_for_its_stream";
        in_a_process(&["--exact", name], false, &[("FAKE_CUDA_FAULTS", "queue=8,lazy")]);
        return;
    }
    let mut machine = Machine::open(RemoteWrites::AsNeeded);
    let memory = machine.kernels.alloc(0, 1 << 20).unwrap();
    for _ in 0..2 {
        machine.kernels.begin_step().unwrap();
        machine.kernels.wait_at_gate(0).unwrap();
        (0..10).for_each(|node| machine.loss(node, (&memory, 0), 10));
        let end = machine.kernels.end_step().unwrap().expect("a graph is made");
        // beside it the next batch comes, for the first time
        let from = whole(&machine.there).lend_to_device().unwrap();
        let to = whole(&machine.here).lend_to_device_for_writing().unwrap();
        machine.kernels.copy_ahead(from, to).unwrap();
        machine.kernels.forget_ahead(machine.here.address(), soon()).unwrap();
        assert!(!machine.kernels.is_over(end).unwrap());
        machine.kernels.open_gate(0, false).unwrap();
        machine.kernels.wait(end, soon()).unwrap();
    }
    assert_eq!(machine.kernels.graphs_launched(), 2);
}

/// A stream that waits takes so much of a graph, too: a step of more is told as several, each when the gates before it are open.
#[test]
fn a_step_is_told_in_graphs_that_its_stream_takes_behind_a_gate() {
    if !is_own_process() && !is_on_a_gpu() {
        let name = "steps::a_step_is_told_in_graphs_that_its_stream_takes_behind_a_gate";
        in_a_process(&["--exact", name], false, &[("FAKE_CUDA_FAULTS", "queue=16,counted,lazy")]);
        return;
    }
    let options = CudaOptions { launches_behind_gate_max: 8, ..CudaOptions::default() };
    let mut machine = Machine::with(&options, 3);
    let memory = machine.kernels.alloc(0, 1 << 20).unwrap();
    let [staged, forgotten] = [(); 2].map(|()| machine.kernels.alloc(0, BYTES).unwrap());
    whole(&machine.there).write().unwrap().fill(7);
    machine.ahead(&forgotten);
    machine.kernels.forget_ahead(forgotten.address(), soon()).unwrap();
    let mut launched = 0;
    for round in 0..3u8 {
        // what came ahead is taken behind the last gate
        whole(&machine.there).write().unwrap().fill(round);
        machine.ahead(&staged);
        machine.kernels.forget_ahead(staged.address(), soon()).unwrap();
        let begun = std::time::Instant::now();
        machine.kernels.begin_step().unwrap();
        for gate in 0..3 {
            machine.kernels.wait_at_gate(gate).unwrap();
            let nodes = 10 * gate as u32..10 * gate as u32 + 5;
            nodes.for_each(|node| machine.loss(node, (&memory, 0), 10));
        }
        let to = whole(&machine.here).lend_to_device_for_writing().unwrap();
        machine.kernels.take(whole(&staged).lend_to_device().unwrap(), to).unwrap();
        let from = whole(&machine.here).lend_to_device().unwrap();
        let result = machine.kernels.alloc_on_host(BYTES).unwrap();
        let to = whole(&result).lend_to_device_for_writing().unwrap();
        machine.kernels.copy_in_step(from, to).unwrap();
        let end = machine.kernels.end_step().unwrap().expect("graphs are made");
        // the batch behind: it waits until this one is taken
        whole(&machine.there).write().unwrap().fill(99);
        machine.ahead(&staged);
        assert!(
            !machine.kernels.is_ahead_over().unwrap() && !machine.kernels.is_over(end).unwrap()
        );
        // in whatever order they are opened
        for gate in [2, 0, 1] {
            assert!(!machine.kernels.is_over(end).unwrap());
            machine.kernels.open_gate(gate, false).unwrap();
        }
        // who tells was held by nothing
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        machine.kernels.wait(end, soon()).unwrap();
        assert_eq!(*whole(&result).read().unwrap(), [round; BYTES]);
        let now = machine.kernels.graphs_launched();
        assert!(now - launched > 3, "{now} graphs");
        launched = now;
        machine.kernels.forget_ahead(staged.address(), soon()).unwrap();
        assert_eq!(machine.there(&staged), [99; BYTES]);
        assert_eq!(machine.there(&forgotten), [7; BYTES]);
    }
}

#[test]
fn a_step_of_several_graphs_that_is_given_up_is_over() {
    if !is_own_process() && !is_on_a_gpu() {
        let name = "steps::a_step_of_several_graphs_that_is_given_up_is_over";
        in_a_process(&["--exact", name], false, &[("FAKE_CUDA_FAULTS", "queue=16,counted")]);
        return;
    }
    let options = CudaOptions { launches_behind_gate_max: 2, ..CudaOptions::default() };
    let mut machine = Machine::with(&options, 2);
    let memory = machine.kernels.alloc(0, 1 << 20).unwrap();
    machine.kernels.begin_step().unwrap();
    for gate in 0..2 {
        machine.kernels.wait_at_gate(gate).unwrap();
        machine.loss(gate as u32, (&memory, 0), 10);
    }
    let end = machine.kernels.end_step().unwrap().expect("graphs are made");
    assert!(!machine.kernels.is_over(end).unwrap());
    machine.kernels.discard_step();
    machine.kernels.wait(end, soon()).unwrap();
    assert!(machine.kernels.is_over(end).unwrap());
}

#[test]
fn of_a_step_that_is_no_graph_nothing_is_told() {
    if !is_own_process() {
        let name = "steps::of_a_step_that_is_no_graph_nothing_is_told";
        in_a_process(&["--exact", name], false, &[("FAKE_CUDA_FAULTS", "nograph")]);
        return;
    }
    let mut machine = Machine::open(RemoteWrites::AsNeeded);
    machine.kernels.begin_step().unwrap();
    machine.kernels.wait_at_gate(0).unwrap();
    machine.kernels.give_signal(0).unwrap();
    assert_eq!(machine.kernels.end_step().unwrap(), None);
    // no gate is in the way
    machine.write(1);
    assert!(!machine.kernels.takes_signal(0) && !machine.kernels.makes_graphs());
}

#[test]
fn what_a_nic_has_written_is_flushed_before_its_gate_opens() {
    if !is_own_process() {
        let name = "steps::what_a_nic_has_written_is_flushed_before_its_gate_opens";
        in_a_process(&["--exact", name], false, &[("FAKE_CUDA_FAULTS", "stale")]);
        return;
    }
    let nic = FakeNic::open().unwrap();
    for choice in [RemoteWrites::AsNeeded, RemoteWrites::Flushed, RemoteWrites::Unflushed] {
        let mut machine = Machine::open(choice);
        assert!(machine.kernels.sees_remote_writes());
        for is_remote in [true, false, true] {
            machine.write(1);
            let end = machine.step();
            assert!(nic.write(machine.here.address() as u64, &[2; BYTES]));
            machine.kernels.open_gate(0, is_remote).unwrap();
            machine.kernels.wait(end, soon()).unwrap();
            machine.kernels.takes_signal(0);
            let is_flushed = is_remote && choice != RemoteWrites::Unflushed;
            let seen = if is_flushed { 2 } else { 1 };
            assert_eq!(machine.read(), [seen; BYTES], "{choice:?}, remote: {is_remote}");
        }
    }
}
