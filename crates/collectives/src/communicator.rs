//! Operations on memory of anybody, that move by themselves: what a library of others calls, which has its own tensors, its
//! own threads, and no place in which to call [`crate::Collectives::progress`].
//!
//! # How an operation goes
//! Operations are started in the same order at all members, and each begins by a *notice* to all others: what it is, and
//! where its memory lies if that is registered. So members that call different things learn it, all of them
//! ([`CommunicatorError::Differs`]). Where all have registered memory ([`Communicator::alloc`], [`Communicator::adopt`]) the operation goes
//! there, and nothing is copied. Else it goes through *lanes*, vectors that were bound once: chunk by chunk
//! what is sent is copied into one, and what comes out of it, while others are under way; of members that share memory,
//! what others take and what they have, and no more. What was copied is counted.
//!
//! # Who moves it
//! Whoever waits for an operation moves all of them. What nobody waits for, a thread of the communicator moves, which sleeps
//! otherwise. A listener may wait for other operations: while a thread calls it, another one moves.

mod call;
mod error;
mod lanes;
mod operation;
mod registered;
mod state;
mod thread;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::Deadline;
use tensorwire_memory::{Buffer, Copies};

use crate::error::GroupError;
use crate::group::{Group, Watch};
use crate::ports::Collectives;

pub(crate) use call::fuzz_notices;
pub use call::{CallKind, CommunicatorCall, Parts};
pub use error::CommunicatorError;
pub use operation::{Operation, Outcome};
use registered::Registered;
use state::State;
use thread::Crew;

/// What a wait looks up from, at least so often, to see whether it was called off.
const LOOK_UP: Duration = Duration::from_millis(100);

/// What a communicator is told; the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorOptions {
    /// Vectors through which memory goes that is not registered, and bytes of each.
    pub lanes: usize,
    pub lane_bytes: usize,
}

impl Default for CommunicatorOptions {
    fn default() -> CommunicatorOptions {
        CommunicatorOptions { lanes: 4, lane_bytes: 512 << 10 }
    }
}

/// What a communicator did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicatorStats {
    /// Collective operations, those of them that went where their memory lies, and messages.
    pub operations: u64,
    pub in_place: u64,
    pub messages: u64,
    /// To other members; what they read of this one's memory does not count.
    pub bytes_sent: u64,
    /// Memory that other members can reach.
    pub registered_bytes: u64,
    /// By this member, from memory of its own to memory of its own.
    pub copies: Copies,
}

/// One member's end of a group, for any thread. Clones share it.
#[derive(Clone, Debug)]
pub struct Communicator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Memory of the group by address.
    registered: Mutex<Registered>,
    watch: Watch,
    crew: Crew,
    size: usize,
    me: usize,
}

impl Communicator {
    /// Makes one of a group, for itself. All members call this. `names` says what errors call each member.
    ///
    /// # Errors
    /// As of [`Collectives::bind`].
    pub fn new(
        mut group: Group,
        names: Vec<String>,
        options: &CommunicatorOptions,
        deadline: Deadline,
    ) -> Result<Communicator, GroupError> {
        group.open_board(deadline)?;
        group.open_mail(deadline)?;
        let (size, me, watch) = (group.size(), group.me(), group.watch());
        let mut state = State::new(group, names, options, deadline)?;
        // whoever has one may leave, and nobody still opens what is his
        state.group.barrier(deadline)?;
        let shared = Shared {
            state: Mutex::new(state),
            registered: Mutex::default(),
            watch,
            crew: Crew::default(),
            size,
            me,
        };
        Ok(Communicator { shared: Arc::new(shared) })
    }

    /// Members.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Which of them this one is.
    pub fn me(&self) -> usize {
        self.shared.me
    }

    /// Starts an operation, whose memory is the communicator's until it is over. It fails at its deadline, wherever it is.
    ///
    /// # Errors
    /// When the call makes no sense, or an operation before it has failed: then all do.
    pub fn start(
        &self,
        call: CommunicatorCall,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        let placed = self.shared.registered.lock().place(&call, self.shared.me);
        let mut state = self.shared.state.lock();
        let operation = state.enter(call, placed, deadline)?;
        state.advance_or_fail();
        Ok(operation)
    }

    /// Sends memory to another member, who receives it by the tag. Messages of one tag to a member are received in the order
    /// in which they were sent.
    ///
    /// # Errors
    /// As of [`Communicator::start`].
    pub fn send(
        &self,
        to: usize,
        tag: u64,
        buffer: &Buffer,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        let mut state = self.shared.state.lock();
        let operation = state.send(to, tag, buffer, deadline)?;
        state.advance_or_fail();
        Ok(operation)
    }

    /// Receives a message of a tag from a member or from any; [`Operation::outcome`] says what came.
    ///
    /// # Errors
    /// As of [`Communicator::start`].
    pub fn receive(
        &self,
        from: Option<usize>,
        tag: u64,
        buffer: &Buffer,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        let mut state = self.shared.state.lock();
        let operation = state.receive(from, tag, buffer, deadline)?;
        state.advance_or_fail();
        Ok(operation)
    }

    /// Waits for an operation, and moves all. `look_up` is called ten times a second; when it says false, the wait is over and
    /// the operation goes on.
    ///
    /// # Errors
    /// When it has failed; its deadline, or this one, has passed; another one has failed.
    pub fn wait(
        &self,
        operation: &Operation,
        deadline: Option<Deadline>,
        mut look_up: impl FnMut() -> bool,
    ) -> Result<Option<Outcome>, CommunicatorError> {
        let shared = &*self.shared;
        if let Some(outcome) = operation.outcome() {
            return outcome.map(Some);
        }
        shared.state.lock().waiters += 1;
        let waited = loop {
            let moment = shared.watch.now();
            let mut state = shared.state.lock();
            let moved = state.advance_or_fail();
            state.settle(deadline, operation);
            let over = state.take_over();
            let is_heard = over.iter().any(Operation::is_heard);
            if is_heard {
                // others move while this thread calls listeners
                state.waiters -= 1;
            }
            let is_left = is_heard && state.waiters == 0 && state.is_busy();
            drop(state);
            if is_left {
                self.move_behind();
            }
            Operation::say_all(over);
            if is_heard {
                shared.state.lock().waiters += 1;
            }
            if let Some(outcome) = operation.outcome() {
                break outcome.map(Some);
            }
            if moved {
                continue;
            }
            shared.watch.wait(moment, Deadline::after(LOOK_UP));
            if !look_up() {
                break Ok(None);
            }
        };
        let mut state = shared.state.lock();
        state.waiters -= 1;
        let is_left = state.waiters == 0 && state.is_busy();
        drop(state);
        if is_left {
            self.move_behind();
        }
        waited
    }

    /// Has operations move although nobody waits for them.
    pub fn move_behind(&self) {
        self.shared.call_crew();
    }

    /// Memory in which operations copy nothing, for as long as it is held.
    ///
    /// # Errors
    /// When there is none left.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, GroupError> {
        let mut registered = self.shared.registered.lock();
        if let Some(buffer) = registered.alloc(bytes) {
            return Ok(buffer);
        }
        let slab_bytes = registered.slab_bytes(bytes);
        let slab = self.shared.state.lock().group.alloc(slab_bytes)?;
        registered.grow(&slab, bytes)
    }

    /// Makes memory of others, which is `bytes` of a file that it shares and lies at `address` of this process,
    /// memory in which operations copy nothing.
    ///
    /// # Errors
    /// When the file is shorter, or cannot be registered.
    pub fn adopt(&self, file: OwnedFd, bytes: usize, address: usize) -> Result<(), GroupError> {
        let slab = self.shared.state.lock().group.adopt(file, bytes)?;
        self.shared.registered.lock().adopt(slab, address);
        Ok(())
    }

    /// Forgets what was adopted at an address: the memory is its owner's alone again.
    pub fn forget(&self, address: usize) {
        self.shared.registered.lock().forget(address);
    }

    pub fn stats(&self) -> CommunicatorStats {
        self.shared.state.lock().stats()
    }

    /// Why all operations fail from now on; None while they do not.
    pub fn failure(&self) -> Option<CommunicatorError> {
        self.shared.state.lock().failed.clone()
    }

    /// Ends all operations, which fail, and lets go of the others at once: they see a fault where they wait for this one.
    pub fn abort(&self, why: &str) {
        let mut state = self.shared.state.lock();
        state.fail(CommunicatorError::Aborted { why: why.to_string() });
        let over = state.take_over();
        drop(state);
        Operation::say_all(over);
        self.stop();
    }

    /// Leaves in good order. What is under way fails.
    ///
    /// # Errors
    /// When a member does not confirm before the deadline.
    pub fn close(&self, deadline: Deadline) -> Result<(), GroupError> {
        self.abort("the group was closed");
        self.shared.state.lock().group.close(deadline)
    }

    fn stop(&self) {
        self.shared.crew.stop();
    }
}
