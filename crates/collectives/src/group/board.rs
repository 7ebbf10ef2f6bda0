//! Notices: a few bytes by which each member says to all others what it does next, in the order in which it does it. A
//! notice is one write and a signal; nobody answers. Whoever says one has heard all others' of [`NOTICES`] / 2 before it,
//! so that none is written over before it was read.

use tensorwire_base::Deadline;
use tensorwire_memory::{Arena, Buffer, Place};

use super::bind::Purpose;
use super::run::Target;
use super::{Group, failed};
use crate::error::GroupError;
use crate::ports::Collectives;

/// Notices of a member that have a place with each other; it is one half of it ahead of them at most.
pub const NOTICES: usize = 64;
/// Bytes of a notice.
pub const NOTICE_BYTES: usize = 128;

/// No operation is told of a completion.
const NOBODY: u64 = u64::MAX;
/// Signals by which notices come.
const COUNTER: usize = 0;

/// What members say to each other.
#[derive(Debug)]
pub(super) struct Board {
    /// In [`Group::vectors`]; nobody else uses it.
    vector: usize,
    /// By member and place, and from where those of this one leave.
    come: Vec<Buffer>,
    leave: Vec<Buffer>,
    /// Notices so far, and how many of them went to each member.
    said: u64,
    gone: Vec<u64>,
}

impl Group {
    /// Makes [`Group::say`] and [`Group::heard`] possible. All members call this, in the same order with what they bind.
    ///
    /// # Errors
    /// As of [`Collectives::bind`].
    pub fn open_board(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        let places_of_all = NOTICES * (self.size() + 1);
        let bytes = NOTICE_BYTES * places_of_all;
        let slab = self.alloc(bytes)?;
        let place = |at: usize| Place { offset: at * NOTICE_BYTES, bytes: NOTICE_BYTES };
        let places: Vec<Place> =
            [Place { offset: 0, bytes }].into_iter().chain((0..places_of_all).map(place)).collect();
        let arena = Arena::new(&slab, &places).map_err(|error| failed(&error))?;
        let mut come = arena.into_buffers();
        let leave = come.split_off(1 + NOTICES * self.size());
        let all = come.remove(0);
        let bound = self.introduce(&[all], Purpose::Mail, deadline)?;
        let vector = bound[0].0 as usize;
        // no operation ever
        self.vectors[vector].busy = true;
        let gone = vec![0; self.size()];
        self.board = Some(Board { vector, come, leave, said: 0, gone });
        Ok(())
    }

    /// Says a notice to all others. It goes in [`Collectives::progress`], which this calls.
    ///
    /// # Errors
    /// When the board was not opened, and as of [`Collectives::progress`].
    pub fn say(&mut self, notice: &[u8; NOTICE_BYTES]) -> Result<(), GroupError> {
        let board = self.board.as_mut().ok_or_else(unopened)?;
        let mut into = board.leave[place(board.said)].write().map_err(|error| failed(&error))?;
        into.copy_from_slice(notice);
        drop(into);
        board.said += 1;
        self.progress()?;
        Ok(())
    }

    /// Returns the notice of this number, from 0, of another member; None before it has come.
    ///
    /// # Errors
    /// When the board was not opened.
    pub fn heard(
        &self,
        member: usize,
        number: u64,
    ) -> Result<Option<[u8; NOTICE_BYTES]>, GroupError> {
        let board = self.board.as_ref().ok_or_else(unopened)?;
        let Some(remote) = &self.vectors[board.vector].remotes[member] else { return Ok(None) };
        if self.fabric.arrived(remote.ours[COUNTER]) <= number {
            return Ok(None);
        }
        let come = &board.come[NOTICES * member + place(number)];
        let notice = come.read().map_err(|error| failed(&error))?;
        Ok(notice.first_chunk().copied())
    }

    /// Posts notices that have not gone yet; true if any has.
    pub(super) fn post_notices(&mut self) -> Result<bool, GroupError> {
        // taken out while they are posted: that needs the rest of the group
        let Some(mut board) = self.board.take() else { return Ok(false) };
        let mut moved = Ok(false);
        for to in 0..self.size() {
            while to != self.me && board.gone[to] < board.said && moved.is_ok() {
                let at = place(board.gone[to]);
                let from = board.leave[at].place().offset;
                let target = Target::Vector(NOTICE_BYTES * (NOTICES * self.me + at));
                let bytes = from..from + NOTICE_BYTES;
                match self.post(board.vector, NOBODY, COUNTER, to, bytes, target) {
                    Ok(None) => break,
                    Ok(Some(_)) => {
                        board.gone[to] += 1;
                        moved = Ok(true);
                    }
                    Err(error) => moved = Err(error),
                }
            }
        }
        self.board = Some(board);
        moved
    }
}

/// Where the notice of a number lies.
fn place(number: u64) -> usize {
    // fits: a remainder
    (number % NOTICES as u64) as usize
}

fn unopened() -> GroupError {
    failed(&"the board was not opened; call Group::open_board first, at all members")
}
