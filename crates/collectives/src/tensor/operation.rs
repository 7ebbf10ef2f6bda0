//! One operation on a tensor, slice by slice: devices gather (reduce or copy to the wire's memory), the group does
//! its part, devices broadcast. Figure 9 of Mamidala et al., with the devices' own queues for its GpuStart and GpuWait.

use std::ops::Range;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_memory::{Buffer, LoanError};

use super::{Bound, Devices};
use crate::error::GroupError;
use crate::ports::{CollectiveCall, Collectives, Handle, Reducer};

/// How long a wait for the wire lasts while devices work: what they have done is seen no later. A device that is done
/// does not wake the group, which knows of its fabric alone.
const GLANCE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct Operation<'a> {
    bound: &'a Bound,
    devices: &'a dyn Devices,
    call: &'a CollectiveCall,
    me: usize,
    overlaps: bool,
    stages: Vec<Stage>,
    notify: Sender<Notice>,
    notices: Receiver<Notice>,
    /// By devices, so far.
    bytes_copied: u64,
}

/// Where a slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// So many parts are not done. So below.
    Gathering(usize),
    OnWire(Handle),
    Broadcasting(usize),
    Done,
}

/// What a device says of a part.
#[derive(Debug)]
struct Notice {
    slice: usize,
    /// Bytes that it copied.
    outcome: Result<u64, String>,
}

/// Says that a part is done, or, if the device dropped it, that it never will be.
struct Promise {
    notify: Sender<Notice>,
    slice: usize,
    is_kept: bool,
}

impl<'a> Operation<'a> {
    pub(super) fn new(
        bound: &'a Bound,
        devices: &'a dyn Devices,
        call: &'a CollectiveCall,
        me: usize,
        overlaps: bool,
    ) -> Operation<'a> {
        let (notify, notices) = channel();
        let stages = vec![Stage::Waiting; bound.slices.count()];
        let bytes_copied = 0;
        Operation { bound, devices, call, me, overlaps, stages, notify, notices, bytes_copied }
    }

    /// Bytes that devices copied between their vectors and the memory that the group works on.
    pub(super) fn bytes_copied(&self) -> u64 {
        self.bytes_copied
    }

    pub(super) fn is_done(&self) -> bool {
        self.stages.iter().all(|stage| *stage == Stage::Done)
    }

    /// Moves every slice as far as it goes; true if any did.
    ///
    /// # Errors
    /// When a vector is lent, or the group cannot start. So below.
    pub(super) fn advance(&mut self, group: &mut dyn Collectives) -> Result<bool, GroupError> {
        let mut has_moved = false;
        while let Ok(notice) = self.notices.try_recv() {
            self.take(notice)?;
        }
        for slice in 0..self.stages.len() {
            let before = self.stages[slice];
            while let Some(next) = self.next(slice, group)? {
                self.stages[slice] = next;
            }
            has_moved |= self.stages[slice] != before;
            if !self.overlaps && self.stages[slice] != Stage::Done {
                break;
            }
        }
        Ok(has_moved)
    }

    /// What comes after a slice's stage, if that is over.
    fn next(&self, slice: usize, group: &mut dyn Collectives) -> Result<Option<Stage>, GroupError> {
        Ok(match self.stages[slice] {
            Stage::Waiting => Some(Stage::Gathering(self.gather(slice, group.size()))),
            Stage::Gathering(0) => {
                Some(Stage::OnWire(group.start(self.bound.bound[slice], self.call.clone())?))
            }
            Stage::OnWire(handle) if group.is_done(handle) => {
                Some(Stage::Broadcasting(self.broadcast(slice, group.size())))
            }
            Stage::Broadcasting(0) => Some(Stage::Done),
            _ => None,
        })
    }

    /// Waits until a device or the wire may have moved something.
    pub(super) fn wait(
        &mut self,
        group: &mut dyn Collectives,
        deadline: Deadline,
    ) -> Result<(), GroupError> {
        let is_at_work =
            |stage: &Stage| matches!(stage, Stage::Gathering(_) | Stage::Broadcasting(_));
        let devices_work = self.stages.iter().any(is_at_work);
        let is_on_wire = self.stages.iter().any(|stage| matches!(stage, Stage::OnWire(_)));
        match (devices_work, is_on_wire) {
            (true, true) => group.wait_for_news(deadline.min(Deadline::after(GLANCE))),
            (false, _) => group.wait_for_news(deadline),
            (true, false) => match self.notices.recv_timeout(deadline.remaining()) {
                Ok(notice) => self.take(notice)?,
                // this one holds a sender, so that nobody can be gone
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            },
        }
        Ok(())
    }

    /// Whose move it is.
    pub(super) fn waiting_for(&self, group: &dyn Collectives) -> String {
        let at_work = |stage: &Stage| match stage {
            Stage::Gathering(parts) | Stage::Broadcasting(parts) => *parts,
            _ => 0,
        };
        match self.stages.iter().map(at_work).sum() {
            0 => group.waiting_for(),
            parts => format!("devices of this process, for {parts} parts of a vector"),
        }
    }

    fn take(&mut self, Notice { slice, outcome }: Notice) -> Result<(), GroupError> {
        self.bytes_copied += outcome.map_err(GroupError::Failed)?;
        if let Stage::Gathering(left) | Stage::Broadcasting(left) = &mut self.stages[slice] {
            *left -= 1;
        }
        Ok(())
    }

    /// Has devices put what this member adds to a slice where the wire takes it; to how many parts.
    fn gather(&self, slice: usize, members: usize) -> usize {
        let firsts = |part: usize| self.of_devices(slice, part).into_iter().take(1).collect();
        match self.call {
            CollectiveCall::AllReduce(reducer)
            | CollectiveCall::ReduceScatter(reducer)
            | CollectiveCall::Reduce { reducer, .. } => {
                self.submit(slice, self.whole(slice), |part, wire| {
                    let (reducer, addends) = (reducer.clone(), self.of_devices(slice, part));
                    Box::new(move || reduce(reducer.as_ref(), &addends, &wire))
                })
            }
            CollectiveCall::AllGather { element_bytes }
            | CollectiveCall::Gather { element_bytes, .. } => {
                let piece = self.bound.slices.piece(slice, self.me, members, *element_bytes);
                self.submit(slice, piece, |part, wire| {
                    let first: Vec<Buffer> = firsts(part);
                    Box::new(move || copy_all(first.iter().map(|first| (first, &wire))))
                })
            }
            CollectiveCall::Broadcast { root } | CollectiveCall::Scatter { root, .. }
                if *root == self.me =>
            {
                self.submit(slice, self.whole(slice), |part, wire| {
                    let first: Vec<Buffer> = firsts(part);
                    Box::new(move || copy_all(first.iter().map(|first| (first, &wire))))
                })
            }
            CollectiveCall::Broadcast { .. }
            | CollectiveCall::Scatter { .. }
            | CollectiveCall::AllToAll { .. } => 0,
        }
    }

    /// Has devices take what came over the wire; of how many parts.
    fn broadcast(&self, slice: usize, members: usize) -> usize {
        let range = match self.call {
            CollectiveCall::AllReduce(_)
            | CollectiveCall::AllGather { .. }
            | CollectiveCall::Broadcast { .. } => self.whole(slice),
            CollectiveCall::ReduceScatter(reducer) => {
                self.bound.slices.piece(slice, self.me, members, reducer.element_bytes())
            }
            CollectiveCall::Scatter { element_bytes, .. } => {
                self.bound.slices.piece(slice, self.me, members, *element_bytes)
            }
            CollectiveCall::Reduce { root, .. } | CollectiveCall::Gather { root, .. }
                if *root == self.me =>
            {
                self.whole(slice)
            }
            CollectiveCall::Reduce { .. }
            | CollectiveCall::Gather { .. }
            | CollectiveCall::AllToAll { .. } => return 0,
        };
        self.submit(slice, range, |part, wire| {
            let vectors = self.of_devices(slice, part);
            Box::new(move || copy_all(vectors.iter().map(|vector| (&wire, vector))))
        })
    }

    /// Gives every device its part of a slice, if any of it is in the range.
    fn submit(
        &self,
        slice: usize,
        range: Range<usize>,
        work: impl Fn(usize, Buffer) -> Box<dyn FnOnce() -> Result<u64, LoanError> + Send>,
    ) -> usize {
        let mut count = 0;
        for (part, wire) in self.bound.on_wire[slice].iter().enumerate() {
            let place = wire.place();
            if place.offset.max(range.start) >= (place.offset + place.bytes).min(range.end) {
                continue;
            }
            let promise = Promise { notify: self.notify.clone(), slice, is_kept: false };
            let work = work(part, wire.clone());
            self.devices.submit(part, Box::new(move || promise.keep(work())));
            count += 1;
        }
        count
    }

    fn whole(&self, slice: usize) -> Range<usize> {
        let place = self.bound.slices.all()[slice];
        place.offset..place.offset + place.bytes
    }

    /// A part of every device's vector.
    fn of_devices(&self, slice: usize, part: usize) -> Vec<Buffer> {
        self.bound.of_devices.iter().map(|parts| parts[slice][part].clone()).collect()
    }
}

impl Promise {
    fn keep(mut self, outcome: Result<u64, LoanError>) {
        self.is_kept = true;
        let outcome = outcome.map_err(|error| format!("a vector of the tensor: {error}"));
        // whoever gave up waiting does not want to know
        let _ = self.notify.send(Notice { slice: self.slice, outcome });
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.is_kept {
            let outcome = Err("a device of this process is gone with its work undone".to_string());
            let _ = self.notify.send(Notice { slice: self.slice, outcome });
        }
    }
}

/// into ← the reduction of a part of all vectors.
fn reduce(reducer: &dyn Reducer, addends: &[Buffer], into: &Buffer) -> Result<u64, LoanError> {
    let lent = addends.iter().map(Buffer::read).collect::<Result<Vec<_>, _>>()?;
    let parts: Vec<&[u8]> = lent.iter().map(|part| &**part).collect();
    reducer.reduce(&parts, &mut into.write()?, None);
    // nothing is copied: it is computed there
    Ok(0)
}

/// Copies each first over its second; returns the bytes of all.
fn copy_all<'a>(
    mut pairs: impl Iterator<Item = (&'a Buffer, &'a Buffer)>,
) -> Result<u64, LoanError> {
    pairs.try_fold(0, |bytes, (from, into)| {
        into.write()?.copy_from_slice(&from.read()?);
        // fits: sizes in memory
        Ok(bytes + from.bytes() as u64)
    })
}
