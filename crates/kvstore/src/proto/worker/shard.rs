//! One shard as a worker sees it: its operations in order, and what may go now. It knows no server and no
//! clock.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::{Turn, WorkerEvent, refused};
use crate::key::{ShardKey, ValueSpec};
use crate::message::Answer;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) server: usize,
    pub(super) spec: ValueSpec,
    stage: Stage,
    /// Another process took over since the shard was last placed.
    is_replaced: bool,
    /// Rounds that the user pushed.
    pub(super) pushed: u64,
    /// Those of them that were answered.
    applied: u64,
    /// Those of them that a snapshot holds; the log starts behind.
    durable: u64,
    /// This worker gave the first value.
    seeded: bool,
    pushing: bool,
    pub(super) pulling: bool,
    /// It has its turn at the server.
    has_turn: bool,
    pub(super) queue: VecDeque<Queued>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The server is to be told of it.
    New,
    Told,
    Placed,
    /// The server is on a state that this worker cannot go on from.
    Unfit,
}

/// An operation that waits for its turn.
#[derive(Debug)]
pub(super) struct Queued {
    /// None: for a replaced server.
    pub(super) op: Option<u64>,
    pub(super) task: Task,
    pub(super) priority: i32,
    pub(super) turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Init,
    Push(u64),
    Pull(u64),
}

impl Shard {
    pub(super) fn new(server: usize, spec: ValueSpec) -> Shard {
        Shard {
            server,
            spec,
            stage: Stage::New,
            is_replaced: false,
            pushed: 0,
            applied: 0,
            durable: 0,
            seeded: false,
            pushing: false,
            pulling: false,
            has_turn: false,
            queue: VecDeque::new(),
        }
    }

    /// The turn of the first operation, if it may go and has none yet, and whether it is a push.
    pub(super) fn turn(&mut self, shard: ShardKey) -> Option<(Turn, bool)> {
        let first = self.queue.front()?;
        let may_go = match first.task {
            Task::Init => matches!(self.stage, Stage::New | Stage::Placed),
            Task::Push(_) => self.stage == Stage::Placed && !self.pushing,
            Task::Pull(_) => self.stage == Stage::Placed && !self.pulling,
        };
        if self.has_turn || !may_go {
            return None;
        }
        self.has_turn = true;
        let turn = Turn { priority: first.priority, turn: Reverse(first.turn), shard };
        Some((turn, matches!(first.task, Task::Push(_))))
    }

    /// Takes the operation whose turn it is.
    pub(super) fn start(&mut self) -> Option<Queued> {
        self.has_turn = false;
        let first = self.queue.pop_front()?;
        match first.task {
            Task::Init => self.stage = Stage::Told,
            Task::Push(_) => self.pushing = true,
            Task::Pull(_) => self.pulling = true,
        }
        Some(first)
    }

    /// Puts an operation before all others.
    pub(super) fn put_first(&mut self, op: Option<u64>, task: Task, priority: i32) {
        self.queue.push_front(Queued { op, task, priority, turn: 0 });
    }

    /// The server's other life knows nothing of what is under way.
    pub(super) fn on_replaced(&mut self) {
        (self.pushing, self.pulling, self.has_turn, self.is_replaced) = (false, false, false, true);
        self.queue.retain(|queued| queued.op.is_some());
        if self.stage != Stage::Unfit {
            self.stage = Stage::New;
        }
    }

    /// Begins with telling the server of this shard.
    pub(super) fn tell_of(&mut self) {
        if self.queue.front().is_none_or(|first| first.task != Task::Init) {
            self.put_first(None, Task::Init, i32::MAX);
        }
    }

    /// Nothing of its log is to be replayed that is not under way.
    pub(super) fn is_caught_up(&self) -> bool {
        !self.is_replaced && self.queue.front().is_none_or(|first| first.op.is_some())
    }

    pub(super) fn on_placed(
        &mut self,
        op: Option<u64>,
        shard: ShardKey,
        answer: &Answer,
    ) -> WorkerEvent {
        let Answer::Placed { place, rounds } = *answer else {
            self.stage = Stage::New;
            return refused(op, Some(shard), answer);
        };
        let (durable, pushed) = (self.durable, self.pushed);
        if rounds > pushed || (self.is_replaced && rounds < durable) {
            self.stage = Stage::Unfit;
            return WorkerEvent::Unfit { shard, rounds, durable, pushed };
        }
        if std::mem::take(&mut self.is_replaced) {
            for round in (rounds + 1..=self.applied).rev() {
                self.put_first(None, Task::Push(round), i32::MAX);
            }
            if rounds == 0 && self.seeded {
                self.put_first(None, Task::Push(0), i32::MAX);
            }
        }
        self.stage = Stage::Placed;
        WorkerEvent::Placed { op, shard, place }
    }

    pub(super) fn on_applied(
        &mut self,
        op: Option<u64>,
        shard: ShardKey,
        round: u64,
        answer: &Answer,
    ) -> WorkerEvent {
        self.pushing = false;
        let Answer::Applied { version, durable } = *answer else {
            return refused(op, Some(shard), answer);
        };
        self.seeded |= round == 0;
        self.applied = self.applied.max(round);
        self.durable = self.durable.max(durable.min(self.applied));
        WorkerEvent::Applied { op, shard, round, version, durable: self.durable }
    }
}
