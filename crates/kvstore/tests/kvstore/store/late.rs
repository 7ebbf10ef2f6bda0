//! A device of tests, in the host's memory: what it is told it does one thing at a time, when somebody asks whether something is
//! over. Who does not wait for it finds what was there before, or what it has not read yet written over.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tensorwire_kvstore::{
    DeviceMark, DeviceRows, Key, PushedRows, ShardKey, StateTensor, StoreDevice, Updater, ValueSpec,
};
use tensorwire_memory::{Buffer, DmaBuf, Keepalive, Slab};

use super::rule::Sum;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Late {
    told: Mutex<Told>,
    is_held: AtomicBool,
    /// Where its own memory begins.
    own: Mutex<Vec<usize>>,
}

#[derive(Default)]
struct Told {
    waiting: VecDeque<Work>,
    done: u64,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device of tests")
    }
}

impl Late {
    fn tell(&self, work: impl FnOnce() + Send + 'static) -> DeviceMark {
        let mut told = self.told.lock().unwrap();
        told.waiting.push_back(Box::new(work));
        // fits: a few
        DeviceMark(told.done + told.waiting.len() as u64)
    }

    /// Has it do nothing until it is let go again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
    }

    /// Does the next thing; returns how many are done.
    fn one(&self) -> u64 {
        let mut told = self.told.lock().unwrap();
        let is_held = self.is_held.load(Ordering::Relaxed);
        let next = if is_held { None } else { told.waiting.pop_front() };
        if let Some(next) = next {
            next();
            told.done += 1;
        }
        told.done
    }

    fn finish(&self) {
        while !self.told.lock().unwrap().waiting.is_empty() {
            self.one();
        }
    }
}

impl StoreDevice for Late {
    fn alloc(&self, _: u32, _: usize) -> Result<(Slab, OwnedFd), String> {
        Err("nobody maps its memory".to_string())
    }

    fn alloc_unseen(&self, bytes: usize) -> Result<Slab, String> {
        let slab = Slab::anonymous(bytes).map_err(|error| error.to_string())?;
        self.own.lock().unwrap().push(slab.address());
        Ok(slab)
    }

    fn pin(&self, _: &Slab) -> Result<Keepalive, String> {
        Err("it pins nothing".to_string())
    }

    fn dma_buf(&self, _: &Slab) -> Result<DmaBuf, String> {
        Err("no NIC reaches it".to_string())
    }

    fn import(&self, _: OwnedFd, _: usize) -> Result<Slab, String> {
        Err("it maps nothing".to_string())
    }

    fn copy(&self, _: &Buffer, _: &Buffer, _: usize, _: usize) -> Result<DeviceMark, String> {
        Err("it reads no device".to_string())
    }

    fn carry(&self, (from, at): (&Buffer, usize), to: &Buffer, bytes: usize) -> Result<(), String> {
        let (from, to) = (from.clone(), to.clone());
        // the host's end is lent until it is over
        let is_own = self.own.lock().unwrap().contains(&from.slab().address());
        let loan = if is_own { None } else { Some(from.lend_to_device()) };
        let loan = loan.transpose().map_err(|error| error.to_string())?;
        self.tell(move || {
            let _lent_until_now = loan;
            to.write().unwrap()[..bytes].copy_from_slice(&from.read().unwrap()[at..at + bytes]);
        });
        Ok(())
    }

    fn mark(&self) -> Result<DeviceMark, String> {
        Ok(self.tell(|| {}))
    }

    fn is_over(&self, mark: DeviceMark) -> Result<bool, String> {
        Ok(self.one() >= mark.0)
    }

    fn read(&self, from: &Buffer) -> Result<Vec<u8>, String> {
        self.finish();
        Ok(from.read().unwrap().to_vec())
    }

    fn write(&self, bytes: &[u8], to: &Buffer) -> Result<(), String> {
        self.finish();
        to.write().unwrap().copy_from_slice(bytes);
        Ok(())
    }
}

/// The rule of these tests, computed there.
pub(crate) struct LateSum {
    sum: Arc<Mutex<Sum>>,
    device: Arc<Late>,
}

impl LateSum {
    pub(crate) fn new(sum: Sum, device: Arc<Late>) -> LateSum {
        LateSum { sum: Arc::new(Mutex::new(sum)), device }
    }
}

impl Updater for LateSum {
    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String> {
        self.sum.lock().unwrap().create(shard, key, spec)
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
        let (sum, weights, pushes) = (self.sum.clone(), weights.clone(), pushes.to_vec());
        self.device.tell(move || {
            let read: Vec<_> = pushes.iter().map(|push| push.read().unwrap()).collect();
            let pushed: Vec<&[u8]> = read.iter().map(|push| &push[..weights.bytes()]).collect();
            let mut weights = weights.write().unwrap();
            sum.lock().unwrap().apply(shard, &mut weights, &pushed).unwrap();
        });
        Ok(())
    }

    fn apply_rows(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        _: &[PushedRows<'_>],
    ) -> Result<(), String> {
        self.apply(shard, weights, &[])
    }

    fn start_rows(
        &mut self,
        shard: ShardKey,
        weights: &Buffer,
        pushes: &[DeviceRows],
    ) -> Result<(), String> {
        let (sum, weights, pushes) = (self.sum.clone(), weights.clone(), pushes.to_vec());
        self.device.tell(move || {
            let read = pushes
                .iter()
                .map(|push| (push.count, push.indices.read().unwrap(), push.rows.read().unwrap()));
            let read: Vec<_> = read.collect();
            let pushed: Vec<PushedRows<'_>> = read
                .iter()
                .map(|(count, indices, rows)| PushedRows { indices: &indices[..4 * count], rows })
                .collect();
            let mut weights = weights.write().unwrap();
            sum.lock().unwrap().apply_rows(shard, &mut weights, &pushed).unwrap();
        });
        Ok(())
    }

    fn set(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.device.finish();
        self.sum.lock().unwrap().set(bytes)
    }

    fn wide(&self, shard: ShardKey, weights: &[u8]) -> Option<Vec<u8>> {
        self.sum.lock().unwrap().wide(shard, weights)
    }

    fn state(&self, shard: ShardKey) -> Result<Vec<StateTensor>, String> {
        self.device.finish();
        self.sum.lock().unwrap().state(shard)
    }

    fn restore(&mut self, shard: ShardKey, state: Vec<StateTensor>) -> Result<(), String> {
        self.sum.lock().unwrap().restore(shard, state)
    }
}
