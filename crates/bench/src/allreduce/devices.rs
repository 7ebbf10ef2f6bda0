//! Devices of a worker that are threads, for tensor collectives on a machine without others.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tensorwire_collectives::{Devices, Work};

/// Threads that each do what they are given, in order. They end when this is dropped.
#[derive(Debug)]
pub struct DeviceThreads {
    threads: Vec<DeviceThread>,
}

#[derive(Debug)]
struct DeviceThread {
    /// None while it ends.
    give: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThreads {
    /// So many.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn start(count: usize) -> std::io::Result<DeviceThreads> {
        let start = |number| {
            let (give, given) = channel::<Work>();
            let work = move || given.into_iter().for_each(|work| work());
            let builder = std::thread::Builder::new().name(format!("device-{number}"));
            Ok(DeviceThread { give: Some(give), thread: Some(builder.spawn(work)?) })
        };
        Ok(DeviceThreads { threads: (0..count).map(start).collect::<std::io::Result<_>>()? })
    }
}

impl Devices for DeviceThreads {
    fn count(&self) -> usize {
        self.threads.len()
    }

    fn submit(&self, device: usize, work: Work) {
        if let Some(give) = &self.threads[device].give {
            // a thread that panicked drops the work, which says so
            let _ = give.send(work);
        }
    }
}

impl Drop for DeviceThreads {
    fn drop(&mut self) {
        for thread in &mut self.threads {
            drop(thread.give.take());
        }
        for thread in &mut self.threads {
            if let Some(thread) = thread.thread.take() {
                // what it panicked of was reported by who waited for its work
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn each_does_its_own_in_order_and_all_at_the_same_time() {
        let devices = DeviceThreads::start(3).unwrap();
        let (say, said) = channel();
        let meet = Arc::new(Barrier::new(3));
        for turn in 0..2 {
            for device in 0..3 {
                let (say, meet) = (say.clone(), meet.clone());
                // nobody passes alone
                let work = move || {
                    meet.wait();
                    say.send((device, turn)).unwrap();
                };
                devices.submit(device, Box::new(work));
            }
        }
        drop((say, devices));
        let said: Vec<(usize, usize)> = said.into_iter().collect();
        assert_eq!(said.len(), 6);
        for device in 0..3 {
            let turns = said.iter().filter(|(by, _)| *by == device).map(|(_, turn)| *turn);
            assert_eq!(turns.collect::<Vec<_>>(), [0, 1]);
        }
    }

    #[test]
    fn work_of_a_device_that_is_gone_is_dropped() {
        let devices = DeviceThreads::start(1).unwrap();
        let held = Arc::new(());
        devices.submit(0, Box::new(|| std::panic::resume_unwind(Box::new("on purpose"))));
        let given = held.clone();
        devices.submit(0, Box::new(move || drop(given)));
        drop(devices);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
