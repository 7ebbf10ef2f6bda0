//! What a server keeps in the memory of its device: where it comes from, and what of the answers waits until the device
//! has done what they tell of. An update that was started is over once a mark behind it is; marks pass in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_memory::{Keepalive, Slab};

use crate::error::StoreError;
use crate::pool::Pool;
use crate::ports::{DeviceMark, DeviceReach, StoreDevice};
use crate::wire::Wire;

/// How often to ask for a mark that has not passed.
pub(crate) const ASK_AGAIN: Duration = Duration::from_micros(50);

/// A server's device.
#[derive(Debug)]
pub(super) struct OnDevice {
    device: Arc<dyn StoreDevice>,
    pub(super) reach: DeviceReach,
    /// What workers reach: weights, and slots that a NIC writes.
    pub(super) reached: Pool,
    /// What nobody else sees.
    pub(super) unseen: Pool,
    /// Why some value goes by the host that a NIC was to reach.
    pub(super) why_by_host: Option<String>,
    /// Memory of workers that the device copies from.
    pinned: Vec<Keepalive>,
    /// Something was started since the last mark.
    has_started: bool,
    marks: VecDeque<DeviceMark>,
    /// How many marks were made, and how many of them have passed.
    made: u64,
    passed: u64,
}

/// What has to be over before an answer goes: as many marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Behind(pub(super) u64);

impl OnDevice {
    pub(super) fn new((device, reach): (Arc<dyn StoreDevice>, DeviceReach)) -> OnDevice {
        let reached = match reach {
            DeviceReach::Mapped => Pool::on_device(device.clone()),
            DeviceReach::ByNic | DeviceReach::ByHost => Pool::reached(device.clone()),
        };
        OnDevice {
            reach,
            reached,
            unseen: Pool::unseen(device.clone()),
            why_by_host: None,
            pinned: Vec::new(),
            has_started: false,
            marks: VecDeque::new(),
            made: 0,
            passed: 0,
            device,
        }
    }

    /// True if there is room for so many bytes more where a NIC reaches them. Where there is none, they go by the host.
    pub(super) fn has_reached_room(&mut self, wire: &mut dyn Wire, bytes: usize) -> bool {
        // what is given back here is what the caller takes
        match self.reached.alloc(wire, bytes) {
            Ok(_) => true,
            Err(why) => {
                self.why_by_host.get_or_insert(why.to_string());
                false
            }
        }
    }

    /// Registered memory of the host beside it.
    pub(super) fn host_pool(&self) -> Pool {
        match self.reach {
            DeviceReach::Mapped => Pool::default(),
            DeviceReach::ByNic | DeviceReach::ByHost => Pool::pinned(self.device.clone()),
        }
    }

    /// Takes note of memory that a worker shows here.
    pub(super) fn sees(&mut self, memory: &Slab) {
        if self.reach == DeviceReach::ByHost && !memory.space().is_device() {
            // what is not pinned is copied all the same
            self.pinned.extend(self.device.pin(memory));
        }
    }

    /// Takes note that something was started.
    pub(super) fn starts(&mut self) {
        self.has_started = true;
    }

    /// All that was started so far.
    pub(super) fn behind(&self) -> Behind {
        Behind(self.made + u64::from(self.has_started))
    }

    pub(super) fn has_passed(&self, behind: Behind) -> bool {
        behind.0 <= self.passed
    }

    /// True if something is not over.
    pub(super) fn is_busy(&self) -> bool {
        self.has_started || !self.marks.is_empty()
    }

    /// Marks what was started, and looks which marks have passed; true if one has.
    pub(super) fn progress(&mut self) -> Result<bool, StoreError> {
        let failed = |what: String| StoreError::Device { what };
        if std::mem::take(&mut self.has_started) {
            self.marks.push_back(self.device.mark().map_err(failed)?);
            self.made += 1;
        }
        let before = self.passed;
        while let Some(first) = self.marks.front() {
            if !self.device.is_over(*first).map_err(failed)? {
                break;
            }
            self.marks.pop_front();
            self.passed += 1;
        }
        Ok(self.passed > before)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tensorwire_memory::{Buffer, DmaBuf};

    use super::*;

    /// A device that has done as much as it is told to have done.
    #[derive(Debug, Default)]
    struct Late {
        told: AtomicU64,
        done: AtomicU64,
    }

    impl StoreDevice for Late {
        fn alloc(&self, _: u32, _: usize) -> Result<(Slab, OwnedFd), String> {
            Err("it has no memory".to_string())
        }

        fn alloc_unseen(&self, _: usize) -> Result<Slab, String> {
            Err("it has no memory".to_string())
        }

        fn pin(&self, _: &Slab) -> Result<Keepalive, String> {
            Err("it pins nothing".to_string())
        }

        fn carry(&self, _: (&Buffer, usize), _: &Buffer, _: usize) -> Result<(), String> {
            self.mark().map(|_| ())
        }

        fn dma_buf(&self, _: &Slab) -> Result<DmaBuf, String> {
            Err("no NIC reaches it".to_string())
        }

        fn import(&self, _: OwnedFd, _: usize) -> Result<Slab, String> {
            Err("it maps nothing".to_string())
        }

        fn copy(&self, _: &Buffer, _: &Buffer, _: usize, _: usize) -> Result<DeviceMark, String> {
            self.mark()
        }

        fn mark(&self) -> Result<DeviceMark, String> {
            Ok(DeviceMark(self.told.fetch_add(1, Ordering::Relaxed) + 1))
        }

        fn is_over(&self, mark: DeviceMark) -> Result<bool, String> {
            Ok(mark.0 <= self.done.load(Ordering::Relaxed))
        }

        fn read(&self, _: &Buffer) -> Result<Vec<u8>, String> {
            Err("it has no memory".to_string())
        }

        fn write(&self, _: &[u8], _: &Buffer) -> Result<(), String> {
            Err("it has no memory".to_string())
        }
    }

    #[test]
    fn an_answer_waits_for_all_that_was_started_before_it_and_for_nothing_else() {
        let late = Arc::new(Late::default());
        let mut on_device = OnDevice::new((late.clone(), DeviceReach::Mapped));
        let at_once = on_device.behind();
        assert!(on_device.has_passed(at_once) && !on_device.is_busy());
        on_device.starts();
        let first = on_device.behind();
        assert!(!on_device.progress().unwrap() && on_device.is_busy());
        // nothing was started since: it is the same mark
        assert_eq!(on_device.behind(), first);
        on_device.starts();
        let second = on_device.behind();
        assert_ne!(second, first);
        assert!(!on_device.progress().unwrap());
        assert!(on_device.has_passed(at_once) && !on_device.has_passed(first));
        late.done.store(1, Ordering::Relaxed);
        assert!(on_device.progress().unwrap());
        assert!(on_device.has_passed(first) && !on_device.has_passed(second));
        late.done.store(2, Ordering::Relaxed);
        assert!(on_device.progress().unwrap() && on_device.has_passed(second));
        assert!(!on_device.is_busy() && !on_device.progress().unwrap());
        assert_eq!(late.told.load(Ordering::Relaxed), 2);
    }
}
