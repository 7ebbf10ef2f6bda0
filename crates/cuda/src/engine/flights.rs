//! Copies that are not over, with the loans that they hold; and a ring of small places in pinned memory, by which words go
//! to the GPU and come back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::{Deadline, Space};
use tensorwire_device::{Device, DeviceError, DeviceMemory, Event, Stream};
use tensorwire_kernels::{CopyId, Piece};
use tensorwire_memory::{Arena, Buffer, DeviceLoan, DeviceWriteLoan, LoanError, Place, Slab};

use crate::DeviceFault;

/// Places of a ring. Whoever comes round while one is in use waits for it.
const SLOTS: usize = 64;
/// Bytes from one place to the next.
const SLOT_BYTES: usize = 64;
/// So long a place may be in use: a stream that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(600);

/// Words on their way to the GPU.
#[derive(Debug)]
pub(super) struct Slots {
    device: Arc<Device>,
    places: Vec<Buffer>,
    next: usize,
    /// By place: what is under way, with the loan that it holds.
    used: Vec<Option<(Event, DeviceLoan)>>,
}

/// A copy that is under way.
#[derive(Debug)]
struct Flight {
    id: u64,
    event: Event,
    /// The event is told the stream, behind it.
    is_marked: bool,
    loans: Vec<Loans>,
    /// Where the fault comes to, if one may have been found.
    fault: Option<(Buffer, Arc<DeviceWriteLoan>)>,
}

/// What a copy holds.
#[derive(Clone, Debug)]
pub(super) enum Loans {
    Both { _from: Arc<DeviceLoan>, _to: Arc<DeviceWriteLoan> },
    From { _from: Arc<DeviceLoan> },
    To { _to: Arc<DeviceWriteLoan> },
}

impl Loans {
    /// Of a copy that nobody comes before who is not told so.
    pub(super) fn both(from: &Arc<DeviceLoan>, to: &Arc<DeviceWriteLoan>) -> Loans {
        Loans::Both { _from: from.clone(), _to: to.clone() }
    }

    /// Of one whose end on the GPU is guarded by the stream's order.
    pub(super) fn on_host(from: &Arc<DeviceLoan>, to: &Arc<DeviceWriteLoan>) -> Loans {
        match from.space() {
            Space::Host => Loans::From { _from: from.clone() },
            Space::Device(_) => Loans::To { _to: to.clone() },
        }
    }
}

/// The copies that are under way, the first that was started first.
#[derive(Debug)]
pub(super) struct Flights {
    device: Arc<Device>,
    flights: VecDeque<Flight>,
    /// Events that nobody uses now.
    idle: Vec<Event>,
    faults: Vec<Buffer>,
    started: u64,
    landed: u64,
}

fn places(device: &Arc<Device>) -> Result<Vec<Buffer>, DeviceError> {
    let slab = device.pinned(SLOTS * SLOT_BYTES)?;
    let places: Vec<Place> =
        (0..SLOTS).map(|at| Place { offset: at * SLOT_BYTES, bytes: SLOT_BYTES }).collect();
    Ok(Arena::new(&slab, &places).expect("the slab is new, and has room for them").into_buffers())
}

impl Slots {
    pub(super) fn new(device: &Arc<Device>) -> Result<Slots, DeviceError> {
        let used = (0..SLOTS).map(|_| None).collect();
        Ok(Slots { device: device.clone(), places: places(device)?, next: 0, used })
    }

    /// Writes `bytes`, which fit a place, to the start of `to`, behind all that the stream was told.
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        stream: &Stream,
        to: &DeviceMemory,
    ) -> Result<(), DeviceError> {
        let at = self.next;
        self.next = (at + 1) % SLOTS;
        if let Some((event, _)) = &self.used[at] {
            event.synchronize(Deadline::after(PATIENCE))?;
        }
        self.used[at] = None;
        let place = &self.places[at];
        if let Ok(mut room) = place.write() {
            room[..bytes.len()].copy_from_slice(bytes);
        }
        let loan = place.lend_to_device().expect("nobody else has the place, and it has passed");
        let target = whole(&to.slab());
        stream.copy_to_device(&loan, 0..bytes.len(), &target, 0)?;
        let event = self.device.event()?;
        event.record(stream)?;
        self.used[at] = Some((event, loan));
        Ok(())
    }
}

impl Flights {
    pub(super) fn new(device: &Arc<Device>) -> Result<Flights, DeviceError> {
        Ok(Flights {
            device: device.clone(),
            flights: VecDeque::new(),
            idle: Vec::new(),
            faults: places(device)?,
            started: 0,
            landed: 0,
        })
    }

    /// Starts a copy that holds `loans`; what comes to the host brings along the fault, which is in `fault` at `offset`, if it is
    /// given.
    pub(super) fn start(
        &mut self,
        stream: &Stream,
        ((from, from_at), (to, to_at)): (Piece<'_, DeviceLoan>, Piece<'_, DeviceWriteLoan>),
        (bytes, loans): (usize, Loans),
        (fault, offset): (Option<&Slab>, usize),
    ) -> Result<CopyId, DeviceError> {
        let bytes = from_at..from_at + bytes;
        match (from.space(), to.space()) {
            (Space::Host, Space::Device(_)) => stream.copy_to_device(from, bytes, to, to_at)?,
            (Space::Device(_), Space::Device(_)) => {
                stream.copy_within_device(from, bytes, to, to_at)?
            }
            (Space::Device(_), Space::Host) => stream.copy_to_host(from, bytes, to, to_at)?,
            // the stream has no word for it, and the runtime asks for none
            (Space::Host, Space::Host) => {}
        }
        let fault = fault.filter(|_| to.space() == Space::Host);
        self.behind(stream, vec![loans], fault, offset)
    }

    /// Starts a copy from another GPU's memory.
    pub(super) fn start_from(
        &mut self,
        peer: &Device,
        stream: &Stream,
        ((from, from_at), (to, to_at)): (Piece<'_, DeviceLoan>, Piece<'_, DeviceWriteLoan>),
        bytes: usize,
    ) -> Result<CopyId, DeviceError> {
        stream.copy_from_peer(peer, from, from_at..from_at + bytes, to, to_at)?;
        self.behind(stream, vec![Loans::both(from, to)], None, 0)
    }

    /// Marks what the stream was told so far, and has it bring along the fault.
    pub(super) fn mark(
        &mut self,
        stream: &Stream,
        fault: Option<&Slab>,
        offset: usize,
    ) -> Result<CopyId, DeviceError> {
        self.behind(stream, Vec::new(), fault, offset)
    }

    fn behind(
        &mut self,
        stream: &Stream,
        loans: Vec<Loans>,
        fault: Option<&Slab>,
        offset: usize,
    ) -> Result<CopyId, DeviceError> {
        let fault = match fault.zip(self.free_place()) {
            Some((words, (place, loan))) => {
                let words = part(words, offset, size_of::<DeviceFault>());
                let words = words.lend_to_device().expect("the buffer is new");
                stream.copy_to_host(&words, 0..size_of::<DeviceFault>(), &loan, 0)?;
                Some((place, loan))
            }
            None => None,
        };
        self.end(stream, loans, fault)
    }

    /// Marks what the stream was told so far, with what it holds until then and where it brings a fault to.
    pub(super) fn end(
        &mut self,
        stream: &Stream,
        loans: Vec<Loans>,
        fault: Option<(Buffer, Arc<DeviceWriteLoan>)>,
    ) -> Result<CopyId, DeviceError> {
        let id = self.open(loans, fault)?;
        self.mark_end(stream, id)?;
        Ok(id)
    }

    /// Returns the number of what is over once the stream has passed the mark that [`Flights::mark_end`] tells it.
    pub(super) fn open(
        &mut self,
        loans: Vec<Loans>,
        fault: Option<(Buffer, Arc<DeviceWriteLoan>)>,
    ) -> Result<CopyId, DeviceError> {
        let event = self.idle.pop().map_or_else(|| self.device.event(), Ok)?;
        self.started += 1;
        let id = self.started;
        self.flights.push_back(Flight { id, event, is_marked: false, loans, fault });
        Ok(CopyId(id))
    }

    /// Has what was opened hold more until it is over.
    pub(super) fn hold(&mut self, CopyId(id): CopyId, loans: Vec<Loans>) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.id == id) {
            flight.loans.extend(loans);
        }
    }

    /// Marks what the stream was told so far as the end of what was opened.
    pub(super) fn mark_end(
        &mut self,
        stream: &Stream,
        CopyId(id): CopyId,
    ) -> Result<(), DeviceError> {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.id == id) else {
            return Ok(());
        };
        flight.event.record(stream)?;
        flight.is_marked = true;
        Ok(())
    }

    /// Gives back what copies held that are over; returns the first fault that they brought.
    pub(super) fn land(&mut self) -> Result<Option<DeviceFault>, DeviceError> {
        while let Some(first) = self.flights.front() {
            // an event that was not told counts as passed
            if !first.is_marked || !first.event.has_passed()? {
                break;
            }
            let Some(Flight { id, event, loans, fault, .. }) = self.flights.pop_front() else {
                break;
            };
            drop(loans);
            self.landed = id;
            self.idle.push(event);
            let fault = fault.and_then(|(place, loan)| {
                drop(loan);
                place.read().ok().map(|bytes| read(&bytes))
            });
            if let Some(fault) = fault.filter(|fault| fault.code != 0) {
                return Ok(Some(fault));
            }
        }
        Ok(None)
    }

    pub(super) fn is_over(&self, CopyId(id): CopyId) -> bool {
        id <= self.landed
    }

    /// Waits until a copy is over; [`Flights::land`] takes note of it.
    pub(super) fn wait(&self, CopyId(id): CopyId, deadline: Deadline) -> Result<(), DeviceError> {
        match self.flights.iter().find(|flight| flight.id == id) {
            Some(flight) => {
                debug_assert!(flight.is_marked, "who waits here opens no gates");
                flight.event.synchronize(deadline)
            }
            None => Ok(()),
        }
    }

    /// A place that no copy uses; none where all are in use: a later copy brings the news.
    pub(super) fn free_place(&self) -> Option<(Buffer, Arc<DeviceWriteLoan>)> {
        self.faults.iter().find_map(|place| {
            Some((place.clone(), Arc::new(place.lend_to_device_for_writing().ok()?)))
        })
    }
}

fn read(bytes: &[u8]) -> DeviceFault {
    let word = |at: usize| {
        let bytes = bytes.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    DeviceFault { code: word(0), place: word(1).cast_signed(), value: word(2).cast_signed() }
}

/// All of a slab that only one stream uses.
fn whole(slab: &Slab) -> DeviceWriteLoan {
    let lent: Result<DeviceWriteLoan, LoanError> =
        part(slab, 0, slab.bytes()).lend_to_device_for_writing();
    lent.expect("the buffer is new")
}

pub(super) fn part(slab: &Slab, offset: usize, bytes: usize) -> Buffer {
    // SAFETY: memory that one stream alone reads and writes, in its order: words of ours, and what a step copies.
    unsafe { Buffer::within(slab, Place { offset, bytes }) }
}
