//! A worker's side: what goes to which server when, what is sent again, what is replayed to a server that
//! took over. It knows no value: a request's value belongs to its operation, or to (shard, round) in the
//! driver's log.
//!
//! At most one push and one pull of a shard, and one [`Control`] of a server, are under way at a time.

mod shard;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use self::shard::{Queued, Shard, Task};
use super::Control;
use crate::key::{ShardKey, ValueSpec};
use crate::message::{Answer, Carried, Reply, RequestId, RequestRefusal};
use crate::wire::RemotePlace;

/// Entries of answered requests that a list of what is due may hold beside as many as are waited for.
const DUE_SLACK: usize = 64;

/// A request that is to be sent now.
#[derive(Clone, Debug, PartialEq)]
pub struct ToSend {
    pub id: RequestId,
    /// The operation that it belongs to; none: it brings a replaced server up to date.
    pub op: Option<u64>,
    /// It was sent before to this same life of the server. A value that was written in place then is there
    /// and must not be written again: what goes out is the message alone.
    pub again: bool,
    pub what: RequestBody,
    pub priority: i32,
}

/// What a request says, apart from where its values are.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestBody {
    Init {
        shard: ShardKey,
        spec: ValueSpec,
    },
    /// With the operation's value, or the log's of this round where there is no operation.
    Push {
        shard: ShardKey,
        round: u64,
    },
    Pull {
        shard: ShardKey,
        round: u64,
    },
    Control(Control),
}

/// What an answer means to the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// The shard is known to its server; pushes may be written to `place`.
    Placed { op: Option<u64>, shard: ShardKey, place: Option<RemotePlace> },
    /// A push is in. The log of this shard is needed beyond round `durable` only; the first value, which is
    /// round 0, until `durable` is 1 or more.
    Applied { op: Option<u64>, shard: ShardKey, round: u64, version: u64, durable: u64 },
    /// The value of a pull came with the answer or is in place.
    Value { op: u64, shard: ShardKey, version: u64, value: Carried },
    /// A user's function returned.
    Returned { op: u64, body: Vec<u8> },
    /// An optimizer was set; something was saved or loaded.
    Done { op: u64 },
    /// The operation failed.
    Refused { op: Option<u64>, shard: Option<ShardKey>, why: RequestRefusal },
    /// A replaced server has `rounds` rounds of this worker's. What would bring it up to date is not in the
    /// log, which starts behind `durable` and ends with `pushed`: it came back from another snapshot than
    /// this worker was told of. Nothing more is sent for this shard.
    Unfit { shard: ShardKey, rounds: u64, durable: u64, pushed: u64 },
}

/// A worker's state.
#[derive(Debug)]
pub struct Worker {
    /// A request without an answer is sent again after this long.
    resend_after_ms: u64,
    next_id: u64,
    next_turn: u64,
    /// Ordered, so that the same events give the same requests.
    shards: BTreeMap<ShardKey, Shard>,
    links: Vec<Link>,
    /// Requests that wait for their answers.
    under_way: HashMap<RequestId, UnderWay>,
}

/// What is to go to one server.
#[derive(Debug, Default)]
struct Link {
    /// Shards whose next request may go: one that carries no value, or a push.
    asks: BinaryHeap<Turn>,
    pushes: BinaryHeap<Turn>,
    controls: VecDeque<(RequestId, u64, Control)>,
    /// A control request waits for its answer.
    is_asked: bool,
    /// When requests are sent again, the earliest first; those with an answer are skipped.
    due: VecDeque<(u64, RequestId)>,
    /// How many requests to this server wait for their answers.
    waiting: usize,
}

impl Link {
    fn takes(&mut self, turn: Option<(Turn, bool)>) {
        if let Some((turn, is_push)) = turn {
            let of = if is_push { &mut self.pushes } else { &mut self.asks };
            of.push(turn);
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: i32,
    turn: Reverse<u64>,
    shard: ShardKey,
}

#[derive(Debug)]
struct UnderWay {
    server: usize,
    op: Option<u64>,
    priority: i32,
    what: RequestBody,
}

impl Worker {
    /// Asks `servers` servers, again after this long without an answer.
    pub fn new(servers: usize, resend_after_ms: u64) -> Worker {
        Worker {
            resend_after_ms,
            next_id: 0,
            next_turn: 0,
            shards: BTreeMap::new(),
            links: std::iter::repeat_with(Link::default).take(servers).collect(),
            under_way: HashMap::new(),
        }
    }

    /// Makes a shard known to its server, which must be before its first push or pull.
    pub fn init(&mut self, op: u64, server: usize, shard: ShardKey, spec: ValueSpec) {
        self.shards.entry(shard).or_insert_with(|| Shard::new(server, spec));
        self.queue(shard, op, 0, |_| Task::Init);
    }

    /// Gives a shard its first value, as round 0; ignored by the server where it has one.
    pub fn seed(&mut self, op: u64, shard: ShardKey, priority: i32) {
        self.queue(shard, op, priority, |_| Task::Push(0));
    }

    /// Pushes; returns the round. The value stays as it is until [`WorkerEvent::Applied`].
    pub fn push(&mut self, op: u64, shard: ShardKey, priority: i32) -> u64 {
        let count = |shard: &mut Shard| {
            shard.pushed += 1;
            Task::Push(shard.pushed)
        };
        self.queue(shard, op, priority, count)
    }

    /// Pulls a value that holds all that was pushed before.
    pub fn pull(&mut self, op: u64, shard: ShardKey, priority: i32) {
        self.pull_since(op, shard, self.pushed(shard), priority);
    }

    /// Pulls a value that holds what was pushed up to a round.
    pub fn pull_since(&mut self, op: u64, shard: ShardKey, round: u64, priority: i32) {
        self.queue(shard, op, priority, |_| Task::Pull(round));
    }

    /// The round of a shard that was pushed last.
    pub fn pushed(&self, shard: ShardKey) -> u64 {
        self.shards.get(&shard).map_or(0, |shard| shard.pushed)
    }

    /// Asks something of a whole server.
    pub fn ask(&mut self, op: u64, server: usize, what: Control) {
        // numbered here and kept for good: the number is what makes it once
        let id = self.new_id();
        self.links[server].controls.push_back((id, op, what));
    }

    /// What [`Worker::poll`] has of this server next, if that is something asked of all of it and nothing is due again.
    pub fn next_control(&self, server: usize) -> Option<&Control> {
        let link = &self.links[server];
        link.controls.front().filter(|_| !link.is_asked).map(|(_, _, what)| what)
    }

    /// The next request that may go to this server now: what is due again first, then what carries no value, each by priority (larger
    /// first), and in order within a shard.
    pub fn poll(&mut self, server: usize, now_ms: u64) -> Option<ToSend> {
        self.next_of(server, now_ms, true)
    }

    /// As [`Worker::poll`], without pushes that were not sent before.
    pub fn poll_without_value(&mut self, server: usize, now_ms: u64) -> Option<ToSend> {
        self.next_of(server, now_ms, false)
    }

    fn next_of(&mut self, server: usize, now_ms: u64, may_push: bool) -> Option<ToSend> {
        if let Some(id) = self.next_due(server, now_ms) {
            let UnderWay { op, what, priority, .. } = self.under_way.get(&id)?;
            let (op, what, priority) = (*op, what.clone(), *priority);
            return Some(ToSend { id, op, again: true, what, priority });
        }
        let link = &mut self.links[server];
        if !link.is_asked
            && let Some((id, op, what)) = link.controls.pop_front()
        {
            link.is_asked = true;
            let asked =
                UnderWay { server, op: Some(op), priority: 0, what: RequestBody::Control(what) };
            return Some(self.start(server, id, asked, now_ms));
        }
        let turn = link.asks.pop();
        let turn = turn.or_else(|| may_push.then(|| link.pushes.pop()).flatten());
        let key = turn?.shard;
        let shard = self.shards.get_mut(&key)?;
        let Queued { op, task, priority, .. } = shard.start()?;
        let what = match task {
            Task::Init => RequestBody::Init { shard: key, spec: shard.spec },
            Task::Push(round) => RequestBody::Push { shard: key, round },
            Task::Pull(round) => RequestBody::Pull { shard: key, round },
        };
        self.wake(key);
        let id = self.new_id();
        Some(self.start(server, id, UnderWay { server, op, priority, what }, now_ms))
    }

    /// Takes an answer; none: nobody waits for it. A value that its server shows counts as answered only with
    /// [`Worker::on_read`]: until then it can be lost with the server.
    pub fn on_reply(&mut self, server: usize, reply: &Reply) -> Option<WorkerEvent> {
        let asked = self.under_way.get(&reply.id)?;
        if asked.server != server {
            return None;
        }
        if let (
            RequestBody::Pull { shard, .. },
            Answer::Value { version, value: Carried::There(place) },
        ) = (&asked.what, &reply.what)
        {
            let (op, value) = (asked.op?, Carried::There(*place));
            return Some(WorkerEvent::Value { op, shard: *shard, version: *version, value });
        }
        let UnderWay { op, what, .. } = self.under_way.remove(&reply.id)?;
        self.links[server].waiting -= 1;
        match what {
            RequestBody::Control(_) => {
                self.links[server].is_asked = false;
                Some(control_answered(op?, &reply.what))
            }
            RequestBody::Init { shard, .. } => {
                let event = self.shards.get_mut(&shard)?.on_placed(op, shard, &reply.what);
                self.wake(shard);
                Some(event)
            }
            RequestBody::Push { shard, round } => {
                let event = self.shards.get_mut(&shard)?.on_applied(op, shard, round, &reply.what);
                self.wake(shard);
                Some(event)
            }
            RequestBody::Pull { shard, .. } => {
                self.shards.get_mut(&shard)?.pulling = false;
                self.wake(shard);
                Some(match &reply.what {
                    Answer::Value { version, value } => {
                        WorkerEvent::Value { op: op?, shard, version: *version, value: *value }
                    }
                    other => refused(op, Some(shard), other),
                })
            }
        }
    }

    /// The value that the answer to a pull showed has been read.
    pub fn on_read(&mut self, server: usize, id: RequestId) {
        let shard = match self.under_way.get(&id) {
            Some(UnderWay { server: of, what: RequestBody::Pull { shard, .. }, .. })
                if *of == server =>
            {
                *shard
            }
            _ => return,
        };
        self.under_way.remove(&id);
        self.links[server].waiting -= 1;
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.pulling = false;
        }
        self.wake(shard);
    }

    /// Another process took over from this server's last snapshot: it is told of every shard again, gets what
    /// the log has beyond its rounds, and then everything unanswered. For drivers that keep a log.
    pub fn on_replaced(&mut self, server: usize) {
        let gone = self.under_way.extract_if(|_, asked| asked.server == server);
        let mut unanswered: Vec<(RequestId, UnderWay)> = gone.collect();
        unanswered.sort_unstable_by_key(|(id, _)| *id);
        let link = &mut self.links[server];
        link.asks.clear();
        link.pushes.clear();
        link.due.clear();
        (link.is_asked, link.waiting) = (false, 0);
        for shard in self.shards.values_mut().filter(|shard| shard.server == server) {
            shard.on_replaced();
        }
        // what is replayed has no operation and is found again from the rounds that the server has; of the
        // rest, from the last to the first, each goes before what is queued
        let asked = unanswered.into_iter().rev();
        for (id, op, asked) in asked.filter_map(|(id, asked)| Some((id, asked.op?, asked))) {
            let (key, task) = match asked.what {
                RequestBody::Control(what) => {
                    // it keeps its number: the snapshot may hold that it was done
                    self.links[server].controls.push_front((id, op, what));
                    continue;
                }
                RequestBody::Init { shard, .. } => (shard, Task::Init),
                RequestBody::Push { shard, round } => (shard, Task::Push(round)),
                RequestBody::Pull { shard, round } => (shard, Task::Pull(round)),
            };
            if let Some(shard) = self.shards.get_mut(&key) {
                shard.put_first(Some(op), task, asked.priority);
            }
        }
        for (key, shard) in self.shards.iter_mut().filter(|(_, shard)| shard.server == server) {
            shard.tell_of();
            self.links[server].takes(shard.turn(*key));
        }
    }

    /// Every replaced server that this worker knows of has all that was answered before. Who comes to a
    /// barrier only then can rely on it behind the barrier.
    pub fn is_caught_up(&self) -> bool {
        let mut under_way = self.under_way.values();
        under_way.all(|asked| asked.op.is_some()) && self.shards.values().all(Shard::is_caught_up)
    }

    /// When [`Worker::poll`] has something to send again, in ms.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        self.links.iter().filter_map(|link| link.due.front()).map(|(due, _)| *due).min()
    }

    fn new_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    /// Appends what `task` makes of a shard to its queue; returns its rounds.
    fn queue(
        &mut self,
        key: ShardKey,
        op: u64,
        priority: i32,
        task: impl FnOnce(&mut Shard) -> Task,
    ) -> u64 {
        self.next_turn += 1;
        let Some(shard) = self.shards.get_mut(&key) else {
            panic!("shard {} was not initialised here; call `init` first", key.0);
        };
        let task = task(shard);
        shard.queue.push_back(Queued { op: Some(op), task, priority, turn: self.next_turn });
        let pushed = shard.pushed;
        self.wake(key);
        pushed
    }

    /// The shard's next request takes its turn, if it may go now.
    fn wake(&mut self, key: ShardKey) {
        if let Some(shard) = self.shards.get_mut(&key) {
            self.links[shard.server].takes(shard.turn(key));
        }
    }

    fn start(&mut self, server: usize, id: RequestId, asked: UnderWay, now_ms: u64) -> ToSend {
        let link = &mut self.links[server];
        link.due.push_back((now_ms + self.resend_after_ms, id));
        link.waiting += 1;
        let UnderWay { op, ref what, priority, .. } = asked;
        let to_send = ToSend { id, op, again: false, what: what.clone(), priority };
        self.under_way.insert(id, asked);
        to_send
    }

    /// A request whose answer is late, and is waited for anew from now on.
    fn next_due(&mut self, server: usize, now_ms: u64) -> Option<RequestId> {
        let link = &mut self.links[server];
        // answers that overtook one that is late leave their entries behind it
        if link.due.len() > 2 * link.waiting + DUE_SLACK {
            link.due.retain(|(_, id)| self.under_way.contains_key(id));
        }
        while let Some((due_ms, id)) = link.due.front().copied() {
            let waits = self.under_way.contains_key(&id);
            if waits && due_ms > now_ms {
                return None;
            }
            link.due.pop_front();
            if waits {
                link.due.push_back((now_ms + self.resend_after_ms, id));
                return Some(id);
            }
        }
        None
    }
}

fn control_answered(op: u64, answer: &Answer) -> WorkerEvent {
    match answer {
        Answer::Done => WorkerEvent::Done { op },
        Answer::Returned { body } => WorkerEvent::Returned { op, body: body.clone() },
        other => refused(Some(op), None, other),
    }
}

/// What an answer that is none to the question comes to.
fn refused(op: Option<u64>, shard: Option<ShardKey>, answer: &Answer) -> WorkerEvent {
    let why = match answer {
        Answer::Refused { why } => why.clone(),
        other => RequestRefusal::Failed(format!("the server answered something else: {other:?}")),
    };
    WorkerEvent::Refused { op, shard, why }
}
