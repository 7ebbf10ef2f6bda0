//! All operations of a communicator that are not over, and how each goes on. It waits for nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_memory::{Buffer, Copies, CopyPurpose};

use super::call::{CallKind, CommunicatorCall, Notice};
use super::lanes::{self, Lane, Way, chunk_bytes, group_call};
use super::registered::Placed;
use super::{CommunicatorError, CommunicatorOptions, CommunicatorStats, Operation, Outcome};
use crate::error::GroupError;
use crate::group::{Group, MemorySpot, NOTICES};
use crate::ports::{Collectives, Handle};

#[derive(Debug)]
pub(super) struct State {
    pub(super) group: Group,
    names: Vec<String>,
    lanes: Vec<Lane>,
    /// See [`lanes::are_shared`].
    are_shared: bool,
    /// Chunks begun so far, by which lanes take turns.
    chunks: u64,
    /// In the order in which they were started.
    jobs: VecDeque<Job>,
    /// Operations started, and those of which notice was given.
    started: u64,
    said: u64,
    mails: Vec<MailJob>,
    /// What is over, and has not been told yet.
    over: VecDeque<Operation>,
    /// After it nothing is done any more.
    pub(super) failed: Option<CommunicatorError>,
    /// Memory that others may still write, after a failure.
    abandoned: Vec<Job>,
    /// Threads that wait, and move all.
    pub(super) waiters: usize,
    in_place: u64,
    messages: u64,
    copies: Copies,
    /// Who was lost or has left while it was waited for, and until when somebody else may be the cause of that.
    lost: Option<(CommunicatorError, Deadline)>,
}

/// How long it takes to learn of all who were lost.
const FOLLOWED: Duration = Duration::from_millis(500);

/// Operations of which notice is given before the first of them is over.
const AHEAD: usize = NOTICES / 2;

/// A collective operation.
#[derive(Debug)]
struct Job {
    number: u64,
    call: CommunicatorCall,
    notice: Notice,
    placed: Option<Placed>,
    operation: Operation,
    deadline: Deadline,
    within: Duration,
    /// By member: where it has its memory, once it has said so; of this one, what it says.
    heard: Vec<Option<Option<MemorySpot>>>,
    /// None until it is known where it goes.
    chunks: Option<usize>,
    begun: usize,
    ended: usize,
    is_over: bool,
}

/// A message.
#[derive(Debug)]
struct MailJob {
    handle: Handle,
    operation: Operation,
    deadline: Deadline,
    within: Duration,
    call: String,
    peer: Option<usize>,
}

impl State {
    pub(super) fn new(
        mut group: Group,
        names: Vec<String>,
        options: &CommunicatorOptions,
        deadline: Deadline,
    ) -> Result<State, GroupError> {
        let lanes = lanes::open(&mut group, options.lanes, options.lane_bytes, deadline)?;
        let are_shared = lanes::are_shared(&group);
        Ok(State {
            are_shared,
            group,
            names,
            lanes,
            chunks: 0,
            jobs: VecDeque::new(),
            started: 0,
            said: 0,
            mails: Vec::new(),
            over: VecDeque::new(),
            failed: None,
            abandoned: Vec::new(),
            waiters: 0,
            in_place: 0,
            messages: 0,
            copies: Copies::default(),
            lost: None,
        })
    }

    pub(super) fn enter(
        &mut self,
        call: CommunicatorCall,
        placed: Option<Placed>,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        self.check()?;
        let (me, size) = (self.group.me(), self.group.size());
        let spot = placed.as_ref().and_then(|placed| self.group.spot(&placed.memory));
        let notice = call.notice(spot);
        if let Some(what) = call.fault(me, size) {
            return Err(CommunicatorError::Call { call: notice.to_string(), what });
        }
        if !lanes::divides(call.reducer.as_deref()) {
            let what = "its elements have no size that divides 64 bytes".to_string();
            return Err(CommunicatorError::Call { call: notice.to_string(), what });
        }
        let operation = Operation::new();
        let mut heard = vec![None; size];
        heard[me] = Some(spot);
        self.jobs.push_back(Job {
            number: self.started,
            call,
            notice,
            placed,
            operation: operation.clone(),
            deadline,
            within: within(deadline),
            heard,
            chunks: None,
            begun: 0,
            ended: 0,
            is_over: false,
        });
        self.started += 1;
        Ok(operation)
    }

    pub(super) fn send(
        &mut self,
        to: usize,
        tag: u64,
        buffer: &Buffer,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        self.check()?;
        let call = format!("send({} bytes, tag {tag})", buffer.bytes());
        let handle =
            self.group.send(to, tag, buffer).map_err(|error| self.said_of(&call, error))?;
        Ok(self.enter_mail(handle, call, Some(to), deadline))
    }

    pub(super) fn receive(
        &mut self,
        from: Option<usize>,
        tag: u64,
        buffer: &Buffer,
        deadline: Deadline,
    ) -> Result<Operation, CommunicatorError> {
        self.check()?;
        let call = format!("recv({} bytes, tag {tag})", buffer.bytes());
        let begun = self.group.receive(from, tag, buffer);
        let handle = begun.map_err(|error| self.said_of(&call, error))?;
        Ok(self.enter_mail(handle, call, from, deadline))
    }

    fn enter_mail(
        &mut self,
        handle: Handle,
        call: String,
        peer: Option<usize>,
        deadline: Deadline,
    ) -> Operation {
        let (operation, within) = (Operation::new(), within(deadline));
        self.messages += 1;
        let job = MailJob { handle, operation: operation.clone(), deadline, within, call, peer };
        self.mails.push(job);
        operation
    }

    fn check(&self) -> Result<(), CommunicatorError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Returns true while anything is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.failed.is_none() && !(self.jobs.is_empty() && self.mails.is_empty())
    }

    pub(super) fn has_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// What is over and was not told.
    pub(super) fn take_over(&mut self) -> VecDeque<Operation> {
        std::mem::take(&mut self.over)
    }

    /// Moves everything as far as it goes; true if anything has moved. What fails, fails all.
    pub(super) fn advance_or_fail(&mut self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match self.advance() {
            Ok(moved) => moved,
            Err(error) => {
                self.fail(error);
                true
            }
        }
    }

    /// Ends all operations with an error, unless they have failed already.
    pub(super) fn fail(&mut self, error: CommunicatorError) {
        if self.failed.is_some() {
            return;
        }
        for job in self.jobs.drain(..) {
            if !job.is_over {
                job.operation.end(Err(error.clone()));
                self.over.push_back(job.operation.clone());
                self.abandoned.push(job);
            }
        }
        for mail in self.mails.drain(..) {
            mail.operation.end(Err(error.clone()));
            self.over.push_back(mail.operation);
        }
        self.failed = Some(error);
    }

    /// Fails if an operation's deadline, or that of a wait for it, has passed.
    pub(super) fn settle(&mut self, wait: Option<Deadline>, operation: &Operation) {
        let waited_long = wait.is_some_and(Deadline::passed) && !operation.is_over();
        self.settle_all();
        if waited_long && self.failed.is_none() {
            let late = self.late(|_| true);
            let late = late.unwrap_or_else(|| CommunicatorError::Aborted {
                why: "a wait was not over before its deadline".to_string(),
            });
            self.fail(late);
        }
    }

    pub(super) fn settle_all(&mut self) {
        if self.failed.is_none()
            && let Some(late) = self.late(Deadline::passed)
        {
            self.fail(late);
        }
    }

    /// What the first operation waits for whose deadline is such.
    fn late(&self, is_such: impl Fn(Deadline) -> bool) -> Option<CommunicatorError> {
        let timed_out = |call: String, within, waiting_for| CommunicatorError::TimedOut {
            call,
            within,
            waiting_for,
        };
        if let Some(job) = self.jobs.iter().find(|job| !job.is_over && is_such(job.deadline)) {
            let silent = job.heard.iter().zip(&self.names).filter(|(heard, _)| heard.is_none());
            let silent: Vec<&str> = silent.map(|(_, name)| name.as_str()).collect();
            let waiting_for = match silent.as_slice() {
                [] => self.named(&self.group.waiting_for()),
                silent => format!("{} to call it", silent.join(", ")),
            };
            return Some(timed_out(job.notice.to_string(), job.within, waiting_for));
        }
        let mail = self.mails.iter().find(|mail| is_such(mail.deadline))?;
        let waiting_for = match mail.peer {
            Some(peer) => self.names[peer].clone(),
            None => "any other member".to_string(),
        };
        Some(timed_out(mail.call.clone(), mail.within, waiting_for))
    }

    /// A text that speaks of members, with their names.
    fn named(&self, text: &str) -> String {
        let mut named = text.to_string();
        for (member, name) in self.names.iter().enumerate().rev() {
            named = named.replace(&format!("member {member} (rank {member})"), name);
        }
        named
    }

    fn said_of(&self, call: &str, error: GroupError) -> CommunicatorError {
        let call = call.to_string();
        match error {
            GroupError::Lost { member, reason, .. } => {
                CommunicatorError::Lost { call, member: self.names[member].clone(), reason }
            }
            error => CommunicatorError::Group { call, error: Arc::new(error) },
        }
    }

    /// What is done first now, for an error.
    fn current(&self) -> String {
        let job = self.jobs.iter().find(|job| !job.is_over).map(|job| job.notice.to_string());
        let mail = || self.mails.first().map(|mail| mail.call.clone());
        job.or_else(mail).unwrap_or_else(|| "between operations".to_string())
    }

    fn advance(&mut self) -> Result<bool, CommunicatorError> {
        if self.lost.is_none() {
            match self.go_on() {
                Err(lost @ CommunicatorError::Lost { .. }) => {
                    self.lost = Some((lost, Deadline::after(FOLLOWED)));
                }
                went => return went,
            }
        }
        self.explain()
    }

    /// Fails as soon as it is clear why a member is gone. One that leaves in good order while others wait for it has called
    /// something else, perhaps, or has followed another that was lost: for a moment nobody is blamed but for that.
    fn explain(&mut self) -> Result<bool, CommunicatorError> {
        self.listen()?;
        // of this one nothing is wrong but what is wrong with the first that was lost
        let first = self.group.check(self.group.me());
        first.map_err(|error| self.said_of(&self.current(), error))?;
        match &self.lost {
            Some((lost, until)) if until.passed() => Err(lost.clone()),
            _ => Ok(false),
        }
    }

    fn go_on(&mut self) -> Result<bool, CommunicatorError> {
        let mut moved =
            self.group.progress().map_err(|error| self.said_of(&self.current(), error))?;
        moved |= self.say()?;
        moved |= self.listen()?;
        moved |= self.drain()?;
        moved |= self.begin()?;
        moved |= self.end();
        if !moved {
            self.check_silent()?;
        }
        Ok(moved)
    }

    /// Gives notice of operations that may begin.
    fn say(&mut self) -> Result<bool, CommunicatorError> {
        let before = self.said;
        // fits: a small constant
        let ahead = AHEAD as u64;
        while let Some(first) = self.jobs.front().map(|job| job.number)
            && self.said < self.started
            && self.said < first + ahead
        {
            // fits: there are few
            let job = &self.jobs[(self.said - first) as usize];
            let said = self.group.say(&job.notice.to_bytes());
            said.map_err(|error| self.said_of(&self.current(), error))?;
            self.said += 1;
        }
        Ok(self.said > before)
    }

    /// Takes notice of what others begin.
    fn listen(&mut self) -> Result<bool, CommunicatorError> {
        let mut moved = false;
        let State { jobs, group, names, .. } = self;
        for job in jobs.iter_mut().take(AHEAD) {
            let silent = job.heard.iter_mut().enumerate().filter(|(_, heard)| heard.is_none());
            for (member, spot) in silent {
                let heard = group.heard(member, job.number);
                let heard = heard.map_err(|error| CommunicatorError::Group {
                    call: job.notice.to_string(),
                    error: Arc::new(error),
                })?;
                let Some(heard) = heard else { continue };
                let theirs = Notice::from_bytes(&heard);
                if !theirs.is_same(&job.notice) {
                    return Err(CommunicatorError::Differs {
                        ours: job.notice.to_string(),
                        member: names[member].clone(),
                        theirs: theirs.to_string(),
                    });
                }
                *spot = Some(theirs.spot);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Begins what can begin: chunks in the order of operations, a lane each, which is the same at all members.
    fn begin(&mut self) -> Result<bool, CommunicatorError> {
        let mut moved = false;
        let size = self.group.size();
        let mut at = 0;
        while at < self.jobs.len() && self.jobs[at].number < self.said {
            let job = &mut self.jobs[at];
            if job.chunks.is_none() {
                let lane_bytes = self.lanes[0].bytes();
                let Some(chunks) = job.decide(lane_bytes, size, self.are_shared) else { break };
                job.chunks = Some(chunks);
            }
            if Some(job.begun) == job.chunks {
                at += 1;
                continue;
            }
            // fits: there are few
            let lane = (self.chunks % self.lanes.len() as u64) as usize;
            if self.lanes[lane].way.is_some() {
                break;
            }
            let begun = match self.jobs[at].placed.is_some() {
                true => self.begin_in_place(at, lane),
                false => self.begin_chunk(at, lane),
            };
            let call = &self.jobs[at].notice;
            let (way, copied) = begun.map_err(|error| self.said_of(&call.to_string(), error))?;
            self.copies.add(CopyPurpose::Staging, copied as u64);
            self.lanes[lane].way = Some(way);
            self.jobs[at].begun += 1;
            self.chunks += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Takes out of the lanes what has come.
    fn drain(&mut self) -> Result<bool, CommunicatorError> {
        let mut moved = false;
        let (me, size) = (self.group.me(), self.group.size());
        for lane in &mut self.lanes {
            let Some(way) = lane.way.take_if(|way| self.group.is_done(way.handle)) else {
                continue;
            };
            let first = self.jobs.front().map_or(0, |job| job.number);
            // fits: there are few
            let Some(job) = self.jobs.get_mut((way.job - first) as usize) else { continue };
            job.ended += 1;
            moved = true;
            match way.chunk {
                Some(chunk) => {
                    let drained = lane.drain(&job.call, &chunk, me, size);
                    let copied = drained.map_err(|error| lent(&job.notice, &error))?;
                    self.copies.add(CopyPurpose::Staging, copied as u64);
                }
                None if job.placed.is_some() => self.in_place += 1,
                None => {}
            }
        }
        Ok(moved)
    }

    /// Ends what is over.
    fn end(&mut self) -> bool {
        let mut moved = false;
        for job in self.jobs.iter_mut().filter(|job| !job.is_over) {
            if Some(job.ended) == job.chunks && job.heard.iter().all(Option::is_some) {
                job.is_over = true;
                job.operation.end(Ok(Outcome::default()));
                self.over.push_back(job.operation.clone());
                moved = true;
            }
        }
        while self.jobs.front().is_some_and(|job| job.is_over) {
            self.jobs.pop_front();
        }
        let group = &mut self.group;
        let over = &mut self.over;
        self.mails.retain(|mail| {
            if !group.is_done(mail.handle) {
                return true;
            }
            let received = group.received(mail.handle);
            mail.operation.end(Ok(Outcome { received }));
            over.push_back(mail.operation.clone());
            moved = true;
            false
        });
        moved
    }

    /// Fails if a member is gone whose notice is awaited.
    fn check_silent(&mut self) -> Result<(), CommunicatorError> {
        let Some(job) = self.jobs.iter().find(|job| !job.is_over && job.number < self.said) else {
            return Ok(());
        };
        let silent = job.heard.iter().position(Option::is_none);
        let Some(Err(lost)) = silent.map(|member| self.group.check(member)) else { return Ok(()) };
        // what it said before it left in good order counts
        if self.listen()? { Ok(()) } else { Err(self.said_of(&self.current(), lost)) }
    }

    pub(super) fn stats(&self) -> CommunicatorStats {
        let group = self.group.stats();
        let mut copies = self.copies;
        copies.merge(&group.copies);
        CommunicatorStats {
            operations: self.started,
            in_place: self.in_place,
            messages: self.messages,
            bytes_sent: group.bytes_sent,
            registered_bytes: group.registered_bytes,
            copies,
        }
    }
}

impl Job {
    /// Decides where the operation goes, the same at all members; returns its chunks, or None while others have not said
    /// where theirs goes.
    fn decide(&mut self, lane_bytes: usize, size: usize, are_shared: bool) -> Option<usize> {
        if self.placed.is_some() && !self.heard.iter().all(Option::is_some) {
            return None;
        }
        if self.placed.is_some() && self.heard.iter().all(|spot| matches!(spot, Some(Some(_)))) {
            return Some(1);
        }
        self.placed = None;
        let chunk = chunk_bytes(self.call.kind, lane_bytes, size, are_shared);
        Some(if self.call.kind == CallKind::Barrier { 0 } else { self.call.bytes.div_ceil(chunk) })
    }
}

impl State {
    fn begin_chunk(&mut self, at: usize, lane: usize) -> Result<(Way, usize), GroupError> {
        let (me, size) = (self.group.me(), self.group.size());
        let (job, lane) = (&self.jobs[at], &self.lanes[lane]);
        let chunk = chunk_bytes(job.call.kind, lane.bytes(), size, self.are_shared);
        let start = job.begun * chunk;
        let range = start..(start + chunk).min(job.call.bytes);
        if self.are_shared {
            let (call, outside) = lanes::through(&job.call, &range, size)?;
            let handle = self.group.start_through(lane.vector, range.len(), call, outside)?;
            return Ok((Way { job: job.number, handle, chunk: None }, 0));
        }
        let filled = lane.fill(&job.call, &range, me, size);
        let copied = filled.map_err(|error| GroupError::Failed(error.to_string()))?;
        let (bytes, call) = group_call(&job.call, range.len(), size)?;
        let handle = self.group.start_part(lane.vector, bytes, call)?;
        Ok((Way { job: job.number, handle, chunk: Some(range) }, copied))
    }

    fn begin_in_place(&mut self, at: usize, lane: usize) -> Result<(Way, usize), GroupError> {
        let (me, size) = (self.group.me(), self.group.size());
        let (job, lane) = (&self.jobs[at], &self.lanes[lane]);
        let Some(placed) = &job.placed else {
            return Err(GroupError::Failed("an operation in place that has none".to_string()));
        };
        let mut copied = 0;
        if placed.copies_input
            && let Some((input, _)) = job.call.inputs.part(0, job.call.bytes)
        {
            let copy = placed.memory.copy_from(me * job.call.bytes, input, 0..job.call.bytes);
            copy.map_err(|error| GroupError::Failed(error.to_string()))?;
            copied = job.call.bytes;
        }
        let out = match job.call.kind {
            CallKind::ReduceScatter => {
                job.call.outputs.part(0, job.call.bytes).map(|(out, _)| out.clone())
            }
            _ => None,
        };
        let spots: Vec<Option<MemorySpot>> =
            job.heard.iter().map(|heard| heard.flatten()).collect();
        let (_, call) = group_call(&job.call, job.call.bytes, size)?;
        let (memory, deadline, number) = (placed.memory.clone(), job.deadline, job.number);
        let handle = self.group.start_at(lane.vector, &memory, out, &spots, call, deadline)?;
        Ok((Way { job: number, handle, chunk: None }, copied))
    }
}

fn lent(notice: &Notice, error: &dyn std::fmt::Display) -> CommunicatorError {
    CommunicatorError::Call { call: notice.to_string(), what: error.to_string() }
}

/// The time until a deadline that was made just now, as its maker gave it.
fn within(deadline: Deadline) -> Duration {
    // fits: a deadline is not that far
    Duration::from_millis((deadline.remaining().as_secs_f64() * 1000.0).round() as u64)
}
