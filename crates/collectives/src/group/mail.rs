//! Carrying mail: chunks into slots of other members and out of those of this one. A slot is free again when its
//! receiver has signalled so; how many there are, and what goes through them, says [`crate::mail`].

use std::collections::{HashMap, VecDeque};

use tensorwire_base::Deadline;
use tensorwire_memory::{Arena, Buffer, CopyPurpose, Loan, Place, WriteLoan};

use super::bind::Purpose;
use super::run::{Target, UNNEEDED};
use super::{Group, TAGS, failed};
use crate::error::GroupError;
use crate::mail::{
    CHUNK_BYTES, ChunkKind, Delivery, Found, HEADER_BYTES, Header, Mail, MailError, Received, SLOTS,
};
use crate::ports::{Collectives, Handle};

/// What receives got is known of so many of the last ones.
const RECEIVED_MAX: usize = 1024;
/// Signals by which chunks come, and those by which slots become free.
const CHUNKS: usize = 0;
const FREED: usize = 1;
/// No operation is told of a completion.
const NOBODY: u64 = u64::MAX;
const _: () = assert!(FREED < TAGS);

/// A member's mail with all others.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// In [`Group::vectors`]; nobody else uses it.
    vector: usize,
    mail: Mail,
    /// By member and slot: where its chunks come, and from where chunks leave for it.
    come: Vec<Buffer>,
    leave: Vec<Buffer>,
    /// By member.
    lanes: Vec<Lane>,
    sends: HashMap<Handle, Loan>,
    receives: HashMap<Handle, WriteLoan>,
    received: VecDeque<(Handle, Received)>,
    /// Receives of which what came was too long.
    failed: Vec<Handle>,
}

/// How far it is with one member.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// Chunks that left and came, and slots of what came that it knows to be free.
    left: u64,
    come: u64,
    freed: u64,
    /// Bytes of a chunk that lies in its slot, for which there was no room on the way.
    waiting: Option<usize>,
}

impl Group {
    /// Makes [`Group::send`] and [`Group::receive`] possible. All members call this, in the same order with what they
    /// bind; more than once does no more. Takes 512 KiB for each other member.
    ///
    /// # Errors
    /// As of [`Collectives::bind`].
    pub fn open_mail(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        if self.mailbox.is_some() {
            return Ok(());
        }
        let slots = SLOTS * self.size();
        let bytes = 2 * slots * CHUNK_BYTES;
        let slab = self.alloc(bytes)?;
        let slot = |at: usize| Place { offset: at * CHUNK_BYTES, bytes: CHUNK_BYTES };
        let places: Vec<Place> =
            [Place { offset: 0, bytes }].into_iter().chain((0..2 * slots).map(slot)).collect();
        let arena = Arena::new(&slab, &places).map_err(|error| failed(&error))?;
        let mut come = arena.into_buffers();
        let leave = come.split_off(1 + slots);
        let all = come.remove(0);
        let bound = self.introduce(&[all], Purpose::Mail, deadline)?;
        let vector = bound[0].0 as usize;
        // no operation ever
        self.vectors[vector].busy = true;
        self.mailbox = Some(Mailbox {
            vector,
            mail: Mail::new(self.size()),
            come,
            leave,
            lanes: vec![Lane::default(); self.size()],
            sends: HashMap::new(),
            receives: HashMap::new(),
            received: VecDeque::new(),
            failed: Vec::new(),
        });
        Ok(())
    }

    /// Sends a buffer to another member, who receives it by its tag. It may lie in any memory, and is the group's until
    /// the send is done: when all of it is on its way, which of a long one is not before it is asked for. Messages of
    /// one tag to a member are received in the order in which they were sent.
    ///
    /// # Errors
    /// When mail was not opened, there is no such other member, or somebody writes the buffer.
    pub fn send(&mut self, to: usize, tag: u64, buffer: &Buffer) -> Result<Handle, GroupError> {
        self.check_correspondent(to)?;
        let handle = self.next_handle();
        let loan = buffer.lend().map_err(|error| failed(&error))?;
        let mailbox = self.mailbox.as_mut().ok_or_else(unopened)?;
        mailbox.mail.send(handle, to, tag, buffer.bytes());
        mailbox.sends.insert(handle, loan);
        self.progress()?;
        Ok(handle)
    }

    /// Receives a message of this tag into a buffer, from one member or from any. It may be shorter than the buffer,
    /// which is the group's until the receive is done; [`Group::received`] says what came. Receives that a message
    /// could be for get it in the order in which they were started.
    ///
    /// # Errors
    /// When mail was not opened, there is no such other member, the buffer is lent, or a message that has come is longer.
    /// Of one that comes later, [`Collectives::progress`] says so.
    pub fn receive(
        &mut self,
        from: Option<usize>,
        tag: u64,
        buffer: &Buffer,
    ) -> Result<Handle, GroupError> {
        if let Some(from) = from {
            self.check_correspondent(from)?;
        }
        let handle = self.next_handle();
        let mut loan = buffer.lend_for_writing().map_err(|error| failed(&error))?;
        let Group { mailbox, copies, .. } = self;
        let mailbox = mailbox.as_mut().ok_or_else(unopened)?;
        match mailbox.mail.receive(handle, from, tag, buffer.bytes()) {
            Ok(Found::Kept { received, content }) => {
                copies.copy(CopyPurpose::Messages, &content, &mut loan[..content.len()]);
                mailbox.note(handle, received);
            }
            Ok(Found::Later) => {
                mailbox.receives.insert(handle, loan);
            }
            Err((from, error)) => return Err(self.undeliverable(from, error)),
        }
        self.progress()?;
        Ok(handle)
    }

    /// What a receive got, once it is done; it is known once, and of the last 1024 receives.
    pub fn received(&mut self, handle: Handle) -> Option<Received> {
        let received = &mut self.mailbox.as_mut()?.received;
        let at = received.iter().position(|(of, _)| *of == handle)?;
        received.remove(at).map(|(_, received)| received)
    }

    pub(super) fn has_mail(&self, handle: Handle) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| {
            mailbox.sends.contains_key(&handle)
                || mailbox.receives.contains_key(&handle)
                || mailbox.failed.contains(&handle)
        })
    }

    /// The members that mail is awaited of, and whether it is of any.
    pub(super) fn mail_awaits(&self) -> (Vec<usize>, bool) {
        self.mailbox.as_ref().map_or_else(Default::default, |mailbox| mailbox.mail.awaits(self.me))
    }

    /// Carries what can be carried; true if anything has moved.
    pub(super) fn carry_mail(&mut self) -> Result<bool, GroupError> {
        // taken out while it runs: it needs the rest of the group
        let Some(mut mailbox) = self.mailbox.take() else { return Ok(false) };
        let mut moved = Ok(false);
        let me = self.me;
        for member in (0..self.size()).filter(|member| *member != me) {
            let fetched = self.fetch(&mut mailbox, member);
            let carried = fetched.and_then(|a| Ok(self.deliver(&mut mailbox, member)? || a));
            moved = match (moved, carried) {
                (Ok(a), Ok(b)) => Ok(a || b),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        self.mailbox = Some(mailbox);
        moved
    }

    /// Takes the chunks that have come from a member, and frees their slots.
    fn fetch(&mut self, mailbox: &mut Mailbox, from: usize) -> Result<bool, GroupError> {
        let Some(slot) = self.signal(mailbox, from, CHUNKS) else { return Ok(false) };
        let mut moved = false;
        while mailbox.lanes[from].come < slot {
            let taken = self.take_chunk(mailbox, from);
            if let Ok(false) = taken {
                break;
            }
            mailbox.lanes[from].come += 1;
            moved = true;
            taken?;
        }
        while mailbox.lanes[from].freed < mailbox.lanes[from].come {
            match self.post(mailbox.vector, UNNEEDED, FREED, from, 0..0, Target::Vector(0)) {
                Ok(None) => break,
                // who has left needs no slot any more; whether it should not have, is asked of what is awaited
                Ok(Some(_)) | Err(GroupError::Lost { .. }) => mailbox.lanes[from].freed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Takes the next chunk of a member; false if it must stay.
    fn take_chunk(&mut self, mailbox: &mut Mailbox, from: usize) -> Result<bool, GroupError> {
        let Mailbox { mail, come, lanes, receives, failed: failed_receives, .. } = mailbox;
        let chunk = come[slot(from, lanes[from].come)].read().map_err(|error| failed(&error))?;
        let taken = Header::from_bytes(&chunk)
            .ok_or(MailError::Garbled)
            .and_then(|header| Ok((header, mail.take(from, header)?)));
        if let Err(MailError::TooLong { handle, .. }) = taken {
            // the buffer is its owner's again
            receives.remove(&handle);
            failed_receives.push(handle);
        }
        let (header, taken) = taken.map_err(|error| self.undeliverable(from, error))?;
        // fits: what was taken is of a chunk's bytes at most
        let content = |bytes: usize| &chunk[HEADER_BYTES..][..bytes];
        match taken {
            Delivery::NotYet => return Ok(false),
            Delivery::Done => {}
            Delivery::Unasked if header.kind == ChunkKind::Whole => {
                // fits: a size in memory
                self.copies.add(CopyPurpose::Messages, header.bytes as u64);
                mail.keep(from, header, content(header.bytes).to_vec());
            }
            Delivery::Unasked => mail.keep(from, header, Vec::new()),
            Delivery::Into { handle, at, done } => {
                if let Some(loan) = receives.get_mut(&handle) {
                    let into = &mut loan[at..at + header.bytes];
                    self.copies.copy(CopyPurpose::Messages, content(header.bytes), into);
                }
                if let Some(received) = done {
                    receives.remove(&handle);
                    drop(chunk);
                    mailbox.note(handle, received);
                }
            }
        }
        Ok(true)
    }

    /// Writes to a member what is for it, as far as it has free slots.
    fn deliver(&mut self, mailbox: &mut Mailbox, to: usize) -> Result<bool, GroupError> {
        let Some(freed) = self.signal(mailbox, to, FREED) else { return Ok(false) };
        let mut moved = false;
        // fits: there are few slots; so below
        while mailbox.lanes[to].left < freed + SLOTS as u64 {
            let Mailbox { vector, mail, leave, lanes, sends, .. } = mailbox;
            let at = slot(to, lanes[to].left);
            let bytes = match lanes[to].waiting {
                Some(bytes) => bytes,
                None => {
                    let Some(chunk) = mail.next(to) else { break };
                    let mut into = leave[at].write().map_err(|error| failed(&error))?;
                    into[..HEADER_BYTES].copy_from_slice(&chunk.header.to_bytes());
                    let mut bytes = HEADER_BYTES;
                    if let Some((handle, range)) = &chunk.payload
                        && let Some(loan) = sends.get(handle)
                    {
                        bytes += range.len();
                        let from = &loan.as_ref()[range.clone()];
                        self.copies.copy(
                            CopyPurpose::Messages,
                            from,
                            &mut into[HEADER_BYTES..bytes],
                        );
                        if chunk.is_last {
                            sends.remove(handle);
                        }
                    }
                    lanes[to].waiting = Some(bytes);
                    moved = true;
                    bytes
                }
            };
            let out = leave[at].place().offset;
            let theirs = slot(self.me, lanes[to].left) * CHUNK_BYTES;
            let target = Target::Vector(theirs);
            if self.post(*vector, NOBODY, CHUNKS, to, out..out + bytes, target)?.is_none() {
                break;
            }
            lanes[to].waiting = None;
            lanes[to].left += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// How often a member has signalled this so far.
    fn signal(&self, mailbox: &Mailbox, from: usize, counter: usize) -> Option<u64> {
        let remote = self.vectors[mailbox.vector].remotes[from].as_ref()?;
        Some(self.fabric.arrived(remote.ours[counter]))
    }

    fn check_correspondent(&self, member: usize) -> Result<(), GroupError> {
        if member < self.size() && member != self.me {
            return Ok(());
        }
        let (size, me) = (self.size(), self.me);
        Err(failed(&format!(
            "mail goes to and comes from other members of the group of {size}; {member} is none to member {me}"
        )))
    }

    fn undeliverable(&self, from: usize, error: MailError) -> GroupError {
        GroupError::Mail { member: from, rank: self.ranks[from], error }
    }
}

impl Mailbox {
    fn note(&mut self, handle: Handle, received: Received) {
        if self.received.len() == RECEIVED_MAX {
            self.received.pop_front();
        }
        self.received.push_back((handle, received));
    }
}

/// Where the chunk of this number of a member lies, or leaves from.
fn slot(member: usize, number: u64) -> usize {
    // fits: a remainder
    member * SLOTS + (number % SLOTS as u64) as usize
}

fn unopened() -> GroupError {
    failed(&"mail was not opened; call Group::open_mail first, at all members")
}
