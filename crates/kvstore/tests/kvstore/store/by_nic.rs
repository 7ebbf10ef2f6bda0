//! Servers whose values lie in the memory of devices that the NICs of a simulated network read and write. The devices are those of
//! the driver for tests; the rule is computed by the host between two copies.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorwire_cuda::{CudaKernels, CudaOptions};
use tensorwire_fabric::{Backend, NicReach, SimKnobs, SimNetwork};
use tensorwire_fakecuda::FakeNic;
use tensorwire_kernels::{CopyId, SharedDevice};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::{
    DeviceMark, Key, PushedRows, ShardKey, StateTensor, StoreDevice, Updater, ValueSpec,
};
use tensorwire_memory::{Arena, Buffer, DmaBuf, Keepalive, Place, Slab};
use tensorwire_testkit::program;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

use super::rule::Sum;
use super::support::{Job, soon};
use super::values::sums_are_those_of_all_workers;

/// Tells a test that it is the process that has the driver.
const OWN: &str = "TENSORWIRE_STORE_BY_NIC";

#[derive(Debug)]
pub(crate) struct Gpu(SharedDevice);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Gpu {
    pub(crate) fn open(number: usize) -> Gpu {
        let driver = tensorwire_fakecuda::library();
        let options = CudaOptions { driver, ..CudaOptions::default() };
        Gpu(Arc::new(Mutex::new(CudaKernels::open(&options, number).unwrap())))
    }

    /// Memory of the host that it copies from and to.
    fn host(&self, bytes: usize) -> Result<Buffer, String> {
        let slab = self.0.lock().alloc_on_host(bytes).map_err(text)?;
        let all = [Place { offset: 0, bytes }];
        Ok(Arena::new(&slab, &all).map_err(text)?.into_buffers().remove(0))
    }

    fn copied(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), String> {
        let (from, to) = (from.lend_to_device(), to.lend_to_device_for_writing());
        let (from, to) = (Arc::new(from.map_err(text)?), Arc::new(to.map_err(text)?));
        let mut device = self.0.lock();
        let copy = device.copy_piece((&from, 0), (&to, 0), bytes).map_err(text)?;
        device.wait(copy, soon()).map_err(text)
    }
}

impl StoreDevice for Gpu {
    fn alloc(&self, _: u32, _: usize) -> Result<(Slab, OwnedFd), String> {
        Err("nobody maps its memory".to_string())
    }

    fn alloc_unseen(&self, bytes: usize) -> Result<Slab, String> {
        self.0.lock().alloc(0, bytes).map_err(text)
    }

    fn pin(&self, memory: &Slab) -> Result<Keepalive, String> {
        self.0.lock().pin(memory).map_err(text)
    }

    fn dma_buf(&self, memory: &Slab) -> Result<DmaBuf, String> {
        self.0.lock().dma_buf(memory).map_err(text)
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
        let carried = self.0.lock().carry((&from, at), (&to, 0), bytes);
        carried.map(|_| ()).map_err(text)
    }

    fn mark(&self) -> Result<DeviceMark, String> {
        Ok(DeviceMark(self.0.lock().mark().map_err(text)?.0))
    }

    fn is_over(&self, mark: DeviceMark) -> Result<bool, String> {
        self.0.lock().is_over(CopyId(mark.0)).map_err(text)
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

/// The rule of these tests, of values on a device.
pub(crate) struct GpuSum {
    pub(crate) sum: Sum,
    pub(crate) gpu: Arc<Gpu>,
}

impl Updater for GpuSum {
    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String> {
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
        let pushed =
            pushes.iter().map(|push| self.gpu.read(push)).collect::<Result<Vec<_>, _>>()?;
        let pushed: Vec<&[u8]> = pushed.iter().map(|push| &push[..weights.bytes()]).collect();
        let mut values = self.gpu.read(weights)?;
        self.sum.apply(shard, &mut values, &pushed)?;
        self.gpu.write(&values, weights)
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
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl NicReach for Reach {
    fn read(&self, address: usize, into: &mut [u8]) {
        assert!(self.nic.read(address as u64, into), "{address:x} is no memory of a device");
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
    }

    fn write(&self, address: usize, bytes: &[u8]) {
        assert!(self.nic.write(address as u64, bytes), "{address:x} is no memory of a device");
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// What workers push is written into the memory of the servers' devices, and what they pull is read there.
#[test]
fn sums_are_those_of_all_workers_where_a_nic_reaches_the_devices_of_servers() {
    if std::env::var_os(OWN).is_some() {
        let [read, written] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        // the driver is there once a device was opened
        drop(Gpu::open(0));
        let nic = FakeNic::open().unwrap();
        let reach = Reach { nic, read: read.clone(), written: written.clone() };
        let network = SimNetwork::with_devices(5, SimKnobs::default(), reach);
        let backend = Backend::Sim(network);
        let job = Job { backend, by_nic: true, ..Job::shm(2, 2, Mode::Sync) };
        sums_are_those_of_all_workers(&job);
        let moved = [read, written].map(|bytes| bytes.load(Ordering::Relaxed));
        assert!(moved.iter().all(|bytes| *bytes > 1 << 20), "{moved:?}");
        return;
    }
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(Some("TENSORWIRE_LAUNCHERS"), &reason),
    };
    let thread = std::thread::current();
    let mut command = Command::new(program::itself());
    command.args(["--exact", thread.name().unwrap(), "--nocapture", "--test-threads=1"]);
    command.env(OWN, "1").env("FAKE_CUDA_KERNELS", kernels).env("FAKE_CUDA_DEVICES", "2");
    command.env("FAKE_CUDA_SEED", "3").env("FAKE_CUDA_FAULTS", "delay=100,garbage,stale");
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let said = said.concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
