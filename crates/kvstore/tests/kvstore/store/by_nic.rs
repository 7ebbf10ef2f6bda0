//! Stores whose values lie in the memory of servers' devices, and workers that push from the memory of theirs and pull into it,
//! where the NICs of a simulated network read and write that. The devices are those of the driver for tests: what they are told
//! they do late, and what a NIC has written streams that wait do not see.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorwire_base::Rank;
use tensorwire_cuda::{CudaKernels, CudaOptions};
use tensorwire_fabric::{Backend, NicReach, SimKnobs, SimNetwork};
use tensorwire_fakecuda::FakeNic;
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::{CopyId, DeviceCall, DeviceOperand, SharedDevice};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{
    DeviceMark, Key, PushedRows, ShardKey, StateTensor, StoreDevice, StoreError, Updater, ValueSpec,
};
use tensorwire_memory::{Arena, Buffer, CopyPurpose, DmaBuf, Keepalive, Place, Slab};
use tensorwire_tensor::{DType, TensorSpec};
use tensorwire_testkit::program;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

use super::rule::{Sum, bytes, numbers, tensor};
use super::support::{Job, soon};
use super::values::sums;

/// Tells a test that it is the process that has the driver.
const OWN: &str = "TENSORWIRE_STORE_BY_NIC";

#[derive(Debug)]
pub(crate) struct Gpu {
    device: SharedDevice,
    /// Once this is set it says that all is over, whether or not it is.
    is_hasty: Arc<AtomicBool>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Gpu {
    pub(crate) fn open(number: usize, is_hasty: &Arc<AtomicBool>) -> Gpu {
        let driver = tensorwire_fakecuda::library();
        let options = CudaOptions { driver, ..CudaOptions::default() };
        let device = Arc::new(Mutex::new(CudaKernels::open(&options, number).unwrap()));
        Gpu { device, is_hasty: is_hasty.clone() }
    }

    /// Starts an operator on tensors of f32, of which it takes as many numbers as it makes.
    fn start(&self, node: u32, op: &Op, inputs: &[&Buffer], output: &Buffer) -> Result<(), String> {
        let spec = TensorSpec::new(DType::F32, &[output.bytes() / 4]).map_err(text)?;
        let lent: Result<Vec<_>, _> = inputs.iter().map(|input| input.lend_to_device()).collect();
        let (lent, into) =
            (lent.map_err(text)?, output.lend_to_device_for_writing().map_err(text)?);
        let operand = |address: usize| DeviceOperand { spec: &spec, address };
        let inputs: Vec<_> = lent.iter().map(|loan| operand(loan.address())).collect();
        let (inputs, outputs) = (&inputs[..], &[operand(into.address())][..]);
        let call =
            DeviceCall { node: NodeId(node), device: 0, op, inputs, outputs, in_place: false };
        self.device.lock().start(call).map_err(text)
    }

    /// Memory of the host that it copies from and to.
    fn host(&self, bytes: usize) -> Result<Buffer, String> {
        let slab = self.device.lock().alloc_on_host(bytes).map_err(text)?;
        let all = [Place { offset: 0, bytes }];
        Ok(Arena::new(&slab, &all).map_err(text)?.into_buffers().remove(0))
    }

    fn copied(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), String> {
        let (from, to) = (from.lend_to_device(), to.lend_to_device_for_writing());
        let (from, to) = (Arc::new(from.map_err(text)?), Arc::new(to.map_err(text)?));
        let mut device = self.device.lock();
        let copy = device.copy_piece((&from, 0), (&to, 0), bytes).map_err(text)?;
        device.wait(copy, soon()).map_err(text)
    }
}

impl StoreDevice for Gpu {
    fn alloc(&self, _: u32, _: usize) -> Result<(Slab, OwnedFd), String> {
        Err("nobody maps its memory".to_string())
    }

    fn alloc_unseen(&self, bytes: usize) -> Result<Slab, String> {
        self.device.lock().alloc(0, bytes).map_err(text)
    }

    fn pin(&self, memory: &Slab) -> Result<Keepalive, String> {
        self.device.lock().pin(memory).map_err(text)
    }

    fn dma_buf(&self, memory: &Slab) -> Result<DmaBuf, String> {
        self.device.lock().dma_buf(memory).map_err(text)
    }

    fn import(&self, _: OwnedFd, _: usize) -> Result<Slab, String> {
        Err("it maps nothing".to_string())
    }

    fn copy(&self, _: &Buffer, _: &Buffer, _: usize, _: usize) -> Result<DeviceMark, String> {
        Err("it reads no other's memory".to_string())
    }

    fn carry(&self, (from, at): (&Buffer, usize), to: &Buffer, bytes: usize) -> Result<(), String> {
        let (from, to) = (from.lend_to_device(), to.lend_to_device_for_writing());
        let (from, to) = (Arc::new(from.map_err(text)?), Arc::new(to.map_err(text)?));
        let carried = self.device.lock().carry((&from, at), (&to, 0), bytes);
        carried.map(|_| ()).map_err(text)
    }

    fn mark(&self) -> Result<DeviceMark, String> {
        Ok(DeviceMark(self.device.lock().mark().map_err(text)?.0))
    }

    fn is_over(&self, mark: DeviceMark) -> Result<bool, String> {
        let is_over = self.device.lock().is_over(CopyId(mark.0)).map_err(text)?;
        Ok(is_over || self.is_hasty.load(Ordering::Relaxed))
    }

    fn read(&self, from: &Buffer) -> Result<Vec<u8>, String> {
        let host = self.host(from.bytes())?;
        self.copied(from, &host, from.bytes())?;
        Ok(host.read().map_err(text)?.to_vec())
    }

    fn write(&self, bytes: &[u8], to: &Buffer) -> Result<(), String> {
        let host = self.host(bytes.len())?;
        host.write().map_err(text)?.copy_from_slice(bytes);
        self.copied(&host, to, bytes.len())
    }
}

/// Two workers' pushes added by a device, which is started on it.
pub(crate) struct GpuSum {
    sum: Sum,
    gpu: Arc<Gpu>,
    /// By which the device knows what it has made ready for a shard.
    nodes: HashMap<ShardKey, u32>,
}

impl GpuSum {
    pub(crate) fn new(sum: Sum, gpu: Arc<Gpu>) -> GpuSum {
        GpuSum { sum, gpu, nodes: HashMap::new() }
    }
}

impl Updater for GpuSum {
    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String> {
        // fits: a few
        let next = self.nodes.len() as u32;
        self.nodes.insert(shard, next);
        self.sum.create(shard, key, spec)
    }

    fn apply(&mut self, _: ShardKey, _: &mut [u8], _: &[&[u8]]) -> Result<(), String> {
        Err("what lies on a device is not the host's to change".to_string())
    }

    fn start(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[Buffer],
    ) -> Result<(), String> {
        let [first, second] = pushes else { return Err("it adds what two push".to_string()) };
        match weights.bytes() {
            0 => Ok(()),
            _ => self.gpu.start(self.nodes[&shard], &Op::Add, &[first, second], weights),
        }
    }

    fn apply_rows(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        _: &[PushedRows<'_>],
    ) -> Result<(), String> {
        self.apply(shard, weights, &[])
    }

    fn set(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.sum.set(bytes)
    }

    fn state(&self, shard: ShardKey) -> Result<Vec<StateTensor>, String> {
        self.sum.state(shard)
    }

    fn restore(&mut self, shard: ShardKey, state: Vec<StateTensor>) -> Result<(), String> {
        self.sum.restore(shard, state)
    }
}

/// How the network's NICs reach devices, and how many bytes they moved there.
#[derive(Debug)]
struct Reach {
    nic: FakeNic,
    moved: Moved,
    /// The NIC of this member reaches none.
    but: Option<Rank>,
}

/// Bytes that NICs read and wrote in devices' memory.
#[derive(Clone, Debug, Default)]
struct Moved {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Moved {
    fn least(&self) -> u64 {
        self.read.load(Ordering::Relaxed).min(self.written.load(Ordering::Relaxed))
    }
}

impl NicReach for Reach {
    fn reaches(&self, member: Rank) -> bool {
        self.but != Some(member)
    }

    fn read(&self, address: usize, into: &mut [u8]) {
        assert!(self.nic.read(address as u64, into), "{address:x} is no memory of a device");
        self.moved.read.fetch_add(into.len() as u64, Ordering::Relaxed);
    }

    fn write(&self, address: usize, bytes: &[u8]) {
        assert!(self.nic.write(address as u64, bytes), "{address:x} is no memory of a device");
        self.moved.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Two workers and two servers of devices, over a network whose NICs reach these.
fn job(seed: u64, but: Option<Rank>) -> (Job, Moved) {
    // the driver is there once a device was opened
    drop(Gpu::open(0, &Arc::default()));
    let moved = Moved::default();
    let reach = Reach { nic: FakeNic::open().unwrap(), moved: moved.clone(), but };
    let backend = Backend::Sim(SimNetwork::with_devices(seed, SimKnobs::default(), reach));
    (Job { backend, by_nic: true, ..Job::shm(2, 2, Mode::Sync) }, moved)
}

/// Runs a test in a process of its own that has the driver, whose devices are late.
fn with_driver(test: impl FnOnce()) {
    if std::env::var_os(OWN).is_some() {
        return test();
    }
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(Some("TENSORWIRE_LAUNCHERS"), &reason),
    };
    let thread = std::thread::current();
    let mut command = Command::new(program::itself());
    command.args(["--exact", thread.name().unwrap(), "--nocapture", "--test-threads=1"]);
    command.env(OWN, "1").env("FAKE_CUDA_KERNELS", kernels).env("FAKE_CUDA_DEVICES", "4");
    command.env("FAKE_CUDA_SEED", "3").env("FAKE_CUDA_FAULTS", "delay=2000,garbage,stale");
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let said = said.concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// What workers push is written into the memory of the servers' devices, and what they pull is read there.
#[test]
fn sums_are_those_of_all_workers_where_a_nic_reaches_the_devices_of_servers() {
    with_driver(|| {
        let (job, moved) = job(5, None);
        job.run(sums(2));
        assert!(moved.least() > 1 << 20, "{moved:?}");
    });
}

/// Of a server whose NIC has no room for values, these go by its host.
#[test]
fn what_a_nic_does_not_take_goes_by_the_host_of_its_server() {
    with_driver(|| {
        let (job, moved) = job(6, Some(Rank(3)));
        let (workers, servers) = job.ends();
        let (work, whys) = (sums(2), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for end in servers {
                scope.spawn(|| {
                    let (number, mut server) = (end.number, end.server());
                    server.serve().unwrap();
                    let why = server.why_by_host().map(str::to_string);
                    let staged = server.copies().of(CopyPurpose::StoreStaging);
                    whys.lock().push((number, why, staged));
                    server.close(soon()).unwrap();
                });
            }
            for end in workers {
                scope.spawn(|| {
                    let (number, mut store) = (end.number, end.worker());
                    work(number, &mut store);
                    store.close(soon()).unwrap();
                });
            }
        });
        let mut whys = whys.into_inner();
        whys.sort();
        let [(_, None, of_first), (_, Some(why), of_second)] = &whys[..] else {
            panic!("{whys:?}");
        };
        assert!(why.contains("memory of a GPU is reached by RDMA NICs alone"), "{why}");
        // half of the value that both have comes and goes so, in each of four rounds
        assert!(*of_first < 1 << 20 && *of_second >= 4 * 3 * 600_000, "{whys:?}");
        assert!(moved.least() > 1 << 20, "{moved:?}");
    });
}

/// What devices have pulled: one value that goes in messages, one that a server has, and one that both have.
const PULLED: [usize; 3] = [100, 70_000, 300_000];
const ROUNDS: usize = 3;

/// Pushes from memory of the workers' devices and pulls into it, while these still read what was pulled before. Returns how many
/// numbers are wrong: of what was pulled, and of what was read before. From the first step on some devices do not wait: those of
/// servers, if this is the jobs'.
fn exchange(job: &Job, is_hasty: &Arc<AtomicBool>) -> [u64; 2] {
    let of_servers = Arc::ptr_eq(is_hasty, &job.is_hasty);
    let wrong = [(); 2].map(|()| AtomicU64::new(0));
    job.run(|number, store| {
        let gpu = &job.gpus[number];
        let specs = PULLED.map(|elements| ValueSpec::dense(DType::F32, elements));
        let values: Vec<_> = (0..).map(Key).zip(specs).collect();
        let first = specs.map(|spec| tensor(store, &spec, |_| 0.0));
        let handle = store.init(&values, (number == 0).then_some(&first)).unwrap();
        store.wait(handle, soon()).unwrap();
        let (from, into, aside) = (on(gpu), on(gpu), on(gpu));
        assert!(store.goes_by_host(Key(2), &from[2]), "no NIC knows of it yet");
        let refused = store.push(&[Key(2)], &[vec![from[2].clone()]], 0);
        assert!(matches!(refused, Err(StoreError::Device { .. })), "{refused:?}");
        for slab in [from[0].slab(), into[0].slab()] {
            let way = store.reach_on_device(slab).unwrap();
            assert_eq!(way, "in the simulated network");
        }
        assert!(store.goes_by_host(Key(0), &from[0]), "it goes in messages");
        assert!(!store.goes_by_host(Key(2), &from[2]));
        let small = store.alloc(&specs[0]).unwrap();
        let before = store.copies().of(CopyPurpose::Store);
        // the first values are there
        store.barrier(soon()).unwrap();
        is_hasty.store(true, Ordering::Relaxed);
        for round in 0..ROUNDS {
            let of = |number: usize, round: usize, at: usize| (number + 1) * (round + 1) + at % 5;
            let sum = |round: usize, at: usize| (of(0, round, at) + of(1, round, at)) as f64;
            let check = |found: &[u8], wrong: &AtomicU64, round: usize| {
                let pairs = numbers(DType::F32, found).into_iter().enumerate();
                let others = pairs.filter(|(at, found)| *found != sum(round, *at)).count();
                wrong.fetch_add(others as u64, Ordering::Relaxed);
            };
            let made =
                |elements| bytes(DType::F32, (0..elements).map(|at| of(number, round, at) as f64));
            small.write().unwrap().copy_from_slice(&made(PULLED[0]));
            (1..3).for_each(|at| gpu.write(&made(PULLED[at]), &from[at]).unwrap());
            // memory of the host is lent, which a server that does not wait would notice
            let some = usize::from(of_servers)..;
            let (keys, at) = ([0, 1, 2].map(Key), [&small, &from[1], &from[2]]);
            let pushed = at.map(|from| vec![from.clone()]);
            let handle = store.push(&keys[some.clone()], &pushed[some.clone()], 0).unwrap();
            store.wait(handle, soon()).unwrap();
            // the device reads this later
            for at in 1..3 {
                let op = Op::Scale { by: 1.0 };
                // fits: a few
                gpu.start(at as u32, &op, &[&into[at]], &aside[at]).unwrap();
            }
            let pulled = [&small, &into[1], &into[2]].map(|into| vec![into.clone()]);
            let handle = store.pull(&keys[some.clone()], &pulled[some], 0).unwrap();
            store.wait(handle, soon()).unwrap();
            if !of_servers {
                check(&small.read().unwrap(), &wrong[0], round);
            }
            for at in 1..3 {
                check(&gpu.read(&into[at]).unwrap(), &wrong[0], round);
                if round > 0 {
                    check(&gpu.read(&aside[at]).unwrap(), &wrong[1], round - 1);
                }
            }
        }
        let copied = store.copies().of(CopyPurpose::Store) - before;
        let expected = if of_servers { 0 } else { 2 * ROUNDS * specs[0].bytes() };
        assert_eq!(copied, expected as u64, "what goes in messages alone");
    });
    wrong.map(|wrong| wrong.load(Ordering::Relaxed))
}

/// Memory of a device for all that is pulled.
fn on(gpu: &Gpu) -> Vec<Buffer> {
    let mut end = 0;
    let places = PULLED.map(|elements| {
        let place = Place { offset: end, bytes: 4 * elements };
        end += place.bytes.next_multiple_of(64);
        place
    });
    Arena::new(&gpu.alloc_unseen(end).unwrap(), &places).unwrap().into_buffers()
}

/// Between devices of workers and of servers nothing goes by the host, and nobody reads or writes what a device still has to do
/// with. Without the marks of the servers' devices, or of the workers', it is seen that somebody does.
#[test]
fn devices_of_both_ends_exchange_by_their_nics_behind_marks() {
    with_driver(|| {
        let of = |is_hasty: &Arc<AtomicBool>| {
            (2..4).map(|number| Arc::new(Gpu::open(number, is_hasty))).collect::<Vec<_>>()
        };
        let (both, moved) = job(7, None);
        let both = Job { gpus: of(&Arc::default()), ..both };
        assert_eq!(exchange(&both, &Arc::default()), [0, 0]);
        let values = (4 * (PULLED[1] + PULLED[2])) as u64;
        let expected = 4 * ROUNDS as u64 * values;
        assert!(moved.least() >= expected, "{moved:?}, {expected}");
        // a device may happen to have done it all the same
        let of_servers = (10..40).any(|seed| {
            let (job, _) = job(seed, None);
            let job = Job { gpus: of(&Arc::default()), ..job };
            exchange(&job, &job.is_hasty)[0] > 0
        });
        let of_workers = (10..40).any(|seed| {
            let (job, _) = job(seed, None);
            let is_hasty = Arc::default();
            exchange(&Job { gpus: of(&is_hasty), ..job }, &is_hasty)[1] > 0
        });
        assert!(of_servers && of_workers, "nothing is torn without marks");
    });
}
