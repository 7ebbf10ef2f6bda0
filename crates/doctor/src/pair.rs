//! Two ends that try a transport on each other: one drives, the other does as it is told, and each verifies
//! what it got to the last byte. Orders go as messages, data by one-sided writes and reads. Knows neither
//! processes nor hosts.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalError, ArrivalSlot, Channel, ChannelError, CompletionError, ConnectError,
    DescriptorError, Direction, Fabric, LocalSlice, Memcpy, OpenFabricError, OpenRegionError,
    PeerFault, PostError, ReceiveError, Region, RegionDescriptor, RegionError, RemoteRegion,
    RemoteSlice, SendMessageError, Signal, Wake,
};
use tensorwire_memory::{Arena, ArenaError, Buffer, LoanError, Place};

/// Of each region; no write is larger.
pub(super) const BYTES_MAX: u64 = 1 << 20;
/// How long one write or read may take. A queue pair that cannot be built anew is given up within 5 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long the other end may take to do as it is told, which may be a write.
const ANSWER_PATIENCE: Duration = Duration::from_secs(12);
/// How long both may take to say goodbye.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// Writes of a measurement that are under way at a time.
const WINDOW: u64 = 4;

/// Why an end gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error(transparent)]
    Open(#[from] OpenFabricError),
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    #[error(transparent)]
    OpenRegion(#[from] OpenRegionError),
    #[error(transparent)]
    Message(#[from] SendMessageError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Completion(#[from] CompletionError),
    #[error(transparent)]
    Lost(#[from] PeerFault),
    #[error("{what} was not there within {patience_s} s")]
    Late { what: &'static str, patience_s: u64 },
    #[error("byte {at} of {bytes} is not what was sent: wrong data")]
    Wrong { at: usize, bytes: u64 },
    #[error("the other end says: {0}")]
    Told(String),
    #[error("the other end sent what makes no sense ({0}); do both run the same version?")]
    Garbled(#[from] serde_json::Error),
    #[error("a thread cannot be started: {0}; raise the limit on processes (ulimit -u)")]
    Thread(std::io::Error),
}

/// What the driver tells the other end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Verify what the driver wrote, once its signal is there.
    Check {
        bytes: u64,
        epoch: u64,
    },
    /// Write to the driver.
    Write {
        bytes: u64,
        epoch: u64,
    },
    /// Fill what the driver reads.
    Fill {
        epoch: u64,
    },
    /// Answer each of so many signals by a signal.
    Echo {
        first: u64,
        count: u64,
    },
    /// Say when a signal is there.
    Await {
        epoch: u64,
    },
    End,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Failed(String),
}

/// Where an end's memory is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) source: String,
    pub(crate) target: String,
    slot: u32,
}

impl Hello {
    pub(crate) fn descriptor(text: &str) -> Result<RegionDescriptor, DescriptorError> {
        RegionDescriptor::from_bytes(&hex::decode(text).unwrap_or_default())
    }
}

/// One end, introduced to the other.
pub(super) struct End {
    channel: Channel,
    /// What the other end writes, and what is read into.
    target: Memory,
    /// What is written from, and what the other end reads.
    source: Memory,
    slot: ArrivalSlot,
    their_target: RemoteRegion,
    their_source: RemoteRegion,
    their_slot: ArrivalSlot,
    /// Of the last signal, of either direction.
    epoch: u64,
    deadline: Deadline,
    // last: its memory goes first
    fabric: Fabric,
}

struct Memory {
    region: Region,
    buffer: Buffer,
}

impl Memory {
    fn new(fabric: &Fabric) -> Result<Memory, PairError> {
        let region = fabric.alloc_region(BYTES_MAX)?;
        let slab = region.slab();
        let all = Place { offset: 0, bytes: slab.bytes() };
        let buffer = Arena::new(&slab, &[all])?.into_buffers().remove(0);
        Ok(Memory { region, buffer })
    }

    fn fill(&self, seed: u64) -> Result<(), PairError> {
        let mut memory = self.buffer.write()?;
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = pattern(seed, at);
        }
        Ok(())
    }

    /// Holds the first bytes against what [`Memory::fill`] with that seed wrote. Nobody may be writing.
    fn check(&self, bytes: u64, seed: u64) -> Result<(), PairError> {
        let memory = self.buffer.read()?;
        // fits: at most BYTES_MAX
        let part = &memory[..bytes.min(BYTES_MAX) as usize];
        let wrong = part.iter().enumerate().find(|(at, byte)| **byte != pattern(seed, *at));
        wrong.map_or(Ok(()), |(at, _)| Err(PairError::Wrong { at, bytes }))
    }
}

/// A byte that depends on the seed and on its place.
fn pattern(seed: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    (mixed >> 56) as u8 // the top byte is meant
}

impl End {
    /// Introduces this end, whose fabric is connected, to the other.
    pub(super) fn new(fabric: Fabric, peer: Rank, deadline: Deadline) -> Result<End, PairError> {
        let (source, target) = (Memory::new(&fabric)?, Memory::new(&fabric)?);
        let slot = fabric.alloc_arrival()?;
        let channel = fabric.channel(peer, 0)?;
        let text = |memory: &Memory| hex::encode(memory.region.descriptor().to_bytes());
        let hello = Hello { source: text(&source), target: text(&target), slot: slot.0 };
        channel.send_message(&serde_json::to_vec(&hello)?, deadline)?;
        let theirs: Hello = serde_json::from_slice(&fabric.receive_message(deadline)?.body)?;
        let open = |text: &str| -> Result<RemoteRegion, PairError> {
            Ok(channel.open_region(&Hello::descriptor(text)?, deadline)?)
        };
        let (their_source, their_target) = (open(&theirs.source)?, open(&theirs.target)?);
        let their_slot = ArrivalSlot(theirs.slot);
        Ok(End {
            channel,
            target,
            source,
            slot,
            their_target,
            their_source,
            their_slot,
            epoch: 0,
            deadline,
            fabric,
        })
    }

    /// Writes to the other end, which verifies. Returns how long the write took.
    pub(super) fn write(&mut self, bytes: u64) -> Result<Duration, PairError> {
        self.epoch += 1;
        let since = Instant::now();
        self.write_as(bytes, self.epoch)?;
        let took = since.elapsed();
        self.order(&Order::Check { bytes, epoch: self.epoch })?;
        Ok(took)
    }

    /// Has the other end write to this one, and verifies.
    pub(super) fn be_written(&mut self, bytes: u64) -> Result<(), PairError> {
        self.epoch += 1;
        self.order(&Order::Write { bytes, epoch: self.epoch })?;
        self.check_arrived(bytes, self.epoch)
    }

    /// Reads from the other end, and verifies.
    pub(super) fn read(&mut self, bytes: u64) -> Result<(), PairError> {
        self.epoch += 1;
        self.order(&Order::Fill { epoch: self.epoch })?;
        self.post(Direction::Read, bytes, None)?;
        self.complete(1)?;
        self.target.check(bytes, self.epoch)
    }

    /// Times of small writes there and back.
    pub(super) fn round_trips(&mut self, count: u64) -> Result<Vec<Duration>, PairError> {
        let first = self.epoch + 1;
        self.epoch += count;
        self.send(&Order::Echo { first, count })?;
        let mut times = Vec::new();
        for epoch in first..first + count {
            let since = Instant::now();
            self.post(Direction::Write, 8, Some(epoch))?;
            self.await_signal(epoch)?;
            times.push(since.elapsed());
            self.complete(1)?;
        }
        self.answer()?;
        Ok(times)
    }

    /// How long the other end takes to have so many writes.
    pub(super) fn stream(&mut self, bytes: u64, count: u64) -> Result<Duration, PairError> {
        self.epoch += 1;
        self.send(&Order::Await { epoch: self.epoch })?;
        let since = Instant::now();
        let mut completed = 0;
        for index in 0..count {
            if index - completed >= WINDOW {
                completed += self.complete(1)?;
            }
            self.post(Direction::Write, bytes, (index + 1 == count).then_some(self.epoch))?;
        }
        self.answer()?;
        let took = since.elapsed();
        self.complete(count - completed)?;
        Ok(took)
    }

    /// Says goodbye; if the other end is gone, nobody hears it.
    pub(super) fn dismiss(self) {
        if self.send(&Order::End).is_ok() {
            let _ = self.fabric.close(Deadline::after(CLOSE_PATIENCE));
        }
    }

    /// Does what the driver orders, until that is to end.
    pub(super) fn serve(mut self) -> Result<(), PairError> {
        loop {
            let order = serde_json::from_slice(&self.fabric.receive_message(self.deadline)?.body)?;
            if let Order::End = order {
                let _ = self.fabric.close(Deadline::after(CLOSE_PATIENCE));
                return Ok(());
            }
            let done = self.obey(&order);
            let answer = match &done {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Failed(error.to_string()),
            };
            self.send(&answer)?;
        }
    }

    fn obey(&mut self, order: &Order) -> Result<(), PairError> {
        match *order {
            Order::Check { bytes, epoch } => self.check_arrived(bytes, epoch),
            Order::Write { bytes, epoch } => self.write_as(bytes.min(BYTES_MAX), epoch),
            Order::Fill { epoch } => self.source.fill(epoch),
            Order::Echo { first, count } => {
                (first..first.saturating_add(count)).try_for_each(|epoch| {
                    self.await_signal(epoch)?;
                    self.post(Direction::Write, 8, Some(epoch))?;
                    self.complete(1).map(drop)
                })
            }
            Order::Await { epoch } => self.await_signal(epoch),
            Order::End => Ok(()),
        }
    }

    fn write_as(&self, bytes: u64, epoch: u64) -> Result<(), PairError> {
        self.source.fill(epoch)?;
        self.post(Direction::Write, bytes, Some(epoch))?;
        self.complete(1).map(drop)
    }

    fn check_arrived(&self, bytes: u64, epoch: u64) -> Result<(), PairError> {
        self.await_signal(epoch)?;
        self.target.check(bytes, epoch)
    }

    fn post(&self, direction: Direction, bytes: u64, epoch: Option<u64>) -> Result<(), PairError> {
        let (local, remote) = match direction {
            Direction::Write => (&self.source, &self.their_target),
            Direction::Read => (&self.target, &self.their_source),
        };
        let slot = self.their_slot;
        Ok(self.channel.memcpy(Memcpy {
            local: LocalSlice { region: &local.region, offset: 0 },
            remote: RemoteSlice { region: remote, offset: 0 },
            bytes,
            direction,
            signal: epoch.map(|epoch| Signal { slot, epoch }),
            token: 0,
        })?)
    }

    /// Waits for the completions of at least so many memcpys; returns how many there were.
    fn complete(&self, count: u64) -> Result<u64, PairError> {
        let mut found = 0;
        let mut completions = Vec::new();
        self.wait_for("the completion of a write or read", || {
            self.fabric.poll(&mut completions);
            for completion in completions.drain(..) {
                completion.result?;
                found += 1;
            }
            Ok(found >= count)
        })?;
        Ok(found)
    }

    fn await_signal(&self, epoch: u64) -> Result<(), PairError> {
        self.wait_for("the signal of a write", || Ok(self.fabric.arrived(self.slot) >= epoch))
    }

    fn wait_for(
        &self,
        what: &'static str,
        mut done: impl FnMut() -> Result<bool, PairError>,
    ) -> Result<(), PairError> {
        let deadline = Deadline::after(PATIENCE).min(self.deadline);
        loop {
            let ticket = self.fabric.ticket();
            if done()? {
                return Ok(());
            }
            if let Some(fault) = self.fabric.fault() {
                // what it did last may be there
                return if done()? { Ok(()) } else { Err(fault.into()) };
            }
            if self.fabric.wait(ticket, deadline) == Wake::TimedOut && !done()? {
                return Err(PairError::Late { what, patience_s: PATIENCE.as_secs() });
            }
        }
    }

    fn order(&self, order: &Order) -> Result<(), PairError> {
        self.send(order)?;
        self.answer()
    }

    fn answer(&self) -> Result<(), PairError> {
        let deadline = Deadline::after(ANSWER_PATIENCE).min(self.deadline);
        match self.receive(deadline)? {
            Answer::Done => Ok(()),
            Answer::Failed(why) => Err(PairError::Told(why)),
        }
    }

    fn send(&self, message: &impl Serialize) -> Result<(), PairError> {
        Ok(self.channel.send_message(&serde_json::to_vec(message)?, self.deadline)?)
    }

    fn receive<T: DeserializeOwned>(&self, deadline: Deadline) -> Result<T, PairError> {
        Ok(serde_json::from_slice(&self.fabric.receive_message(deadline)?.body)?)
    }
}
