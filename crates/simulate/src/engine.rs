//! Activities that share resources: a discrete-event simulation of fluids. An activity has an amount (bytes, seconds
//! of a core) that flows at a rate, and uses each of its resources in proportion to that. Rates are max–min fair
//! (progressive filling: Bertsekas and Gallager, *Data Networks*, §6.5.2). It knows no tensors and no machines.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::component::Component;

/// Something of which there is so much a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceId(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivityId(usize);

/// A place where one activity goes on at a time, in the order in which they could begin: a process's kernels, or the
/// messages of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueId(usize);

/// What is done.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Seconds before anything flows; they occupy the queue.
    pub head_s: f64,
    pub amount: f64,
    /// Seconds behind that, until others know; the queue is free then.
    pub tail_s: f64,
    /// Of the amount, a second, at most.
    pub rate_max: f64,
    /// Its fair share, in proportion to others'.
    pub weight: f64,
    /// What a unit of the amount takes of each resource.
    pub uses: Vec<(ResourceId, f64)>,
    pub queue: Option<QueueId>,
    /// What it counts as; the engine carries it.
    pub component: Option<Component>,
}

/// A graph of activities over resources.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    capacities: Vec<f64>,
    activities: Vec<Activity>,
    /// For each activity, those that wait for it, and for how many it waits.
    after: Vec<Vec<usize>>,
    waits_for: Vec<u32>,
    queues: usize,
}

/// A span of a way through activities, each of which made the next one begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub activity: ActivityId,
    pub from_s: f64,
    pub to_s: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// By activity: when it was over, in seconds.
    ends_s: Vec<f64>,
    /// By activity: when it began, and which one's end, or leave of a queue, made it begin then.
    begins: Vec<(f64, Option<usize>)>,
    /// By resource: how much of it was used.
    used: Vec<f64>,
}

impl Activity {
    /// Something that only others wait for.
    pub fn nothing() -> Activity {
        let (amount, rate_max) = (0.0, f64::INFINITY);
        let (head_s, tail_s, weight) = (0.0, 0.0, 1.0);
        let (uses, queue, component) = (Vec::new(), None, None);
        Activity { head_s, amount, tail_s, rate_max, weight, uses, queue, component }
    }
}

impl Engine {
    /// A resource of which there is `capacity` a second: a positive number.
    pub fn resource(&mut self, capacity: f64) -> ResourceId {
        assert!(capacity > 0.0 && capacity.is_finite(), "a resource of {capacity} a second");
        self.capacities.push(capacity);
        ResourceId(self.capacities.len() - 1)
    }

    pub fn queue(&mut self) -> QueueId {
        self.queues += 1;
        QueueId(self.queues - 1)
    }

    pub fn add(&mut self, activity: Activity) -> ActivityId {
        let unbounded = activity.uses.is_empty() && activity.rate_max.is_infinite();
        assert!(activity.amount == 0.0 || !unbounded, "nothing says how fast {activity:?} is");
        self.activities.push(activity);
        self.after.push(Vec::new());
        self.waits_for.push(0);
        ActivityId(self.activities.len() - 1)
    }

    /// Makes `then` wait for `first`.
    pub fn order(&mut self, first: ActivityId, then: ActivityId) {
        self.after[first.0].push(then.0);
        self.waits_for[then.0] += 1;
    }

    /// How many activities there are.
    pub fn len(&self) -> usize {
        self.activities.len()
    }

    pub fn is_empty(&self) -> bool {
        self.activities.is_empty()
    }

    pub fn capacity(&self, resource: ResourceId) -> f64 {
        self.capacities[resource.0]
    }

    pub fn activity(&self, id: ActivityId) -> &Activity {
        &self.activities[id.0]
    }

    /// All that there are, in the order in which they were added.
    pub fn activities(&self) -> &[Activity] {
        &self.activities
    }

    /// Runs all activities to their ends.
    ///
    /// # Panics
    /// When activities wait for each other in a circle.
    pub fn run(&self) -> Course {
        let mut state = State::new(self);
        let ready = (0..self.activities.len()).filter(|at| self.waits_for[*at] == 0);
        ready.for_each(|at| state.begin(at, None));
        while state.advance() {}
        assert_eq!(state.over, self.activities.len(), "activities wait for each other in a circle");
        let State { ends_s, begins, used, .. } = state;
        Course { ends_s, begins, used }
    }
}

impl Course {
    /// When an activity was over.
    pub fn end_s(&self, activity: ActivityId) -> f64 {
        self.ends_s[activity.0]
    }

    /// When all were.
    pub fn last_s(&self) -> f64 {
        self.ends_s.iter().copied().fold(0.0, f64::max)
    }

    /// What led to an activity's end, the last first: each span ends when the one before it began, which it had made begin.
    pub fn way_to(&self, activity: ActivityId) -> Vec<Span> {
        let (mut at, mut to_s) = (Some(activity.0), self.ends_s[activity.0]);
        let mut spans = Vec::new();
        while let Some(activity) = at {
            let (from_s, cause) = self.begins[activity];
            spans.push(Span { activity: ActivityId(activity), from_s, to_s });
            (at, to_s) = (cause, from_s);
        }
        spans
    }

    /// How much of a resource was used in all.
    pub fn used(&self, resource: ResourceId) -> f64 {
        self.used[resource.0]
    }
}

/// A moment at which something happens by itself. Earlier ones first; of equal ones the one that was set first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Timer {
    at_s: f64,
    set: usize,
    activity: usize,
    what: Due,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Due {
    Head,
    Tail,
}

impl Eq for Timer {}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.set.cmp(&other.set))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What flows.
#[derive(Clone, Copy, Debug)]
struct Flowing {
    activity: usize,
    left: f64,
    rate: f64,
}

struct State<'a> {
    engine: &'a Engine,
    now_s: f64,
    waits_for: Vec<u32>,
    timers: BinaryHeap<Reverse<Timer>>,
    timers_set: usize,
    flowing: Vec<Flowing>,
    is_stale: bool,
    /// By queue: whether one is at it, and who is next.
    queues: Vec<(bool, VecDeque<usize>)>,
    ends_s: Vec<f64>,
    begins: Vec<(f64, Option<usize>)>,
    used: Vec<f64>,
    over: usize,
    /// Of [`State::share`], by resource: what is left, and what the unfixed take of it at level 1.
    left: Vec<f64>,
    demand: Vec<f64>,
}

/// What differs by less is the same: rounding of sums of many rates.
const SAME: f64 = 1e-9;

impl<'a> State<'a> {
    fn new(engine: &'a Engine) -> State<'a> {
        let resources = engine.capacities.len();
        State {
            engine,
            now_s: 0.0,
            waits_for: engine.waits_for.clone(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            flowing: Vec::new(),
            is_stale: false,
            queues: vec![(false, VecDeque::new()); engine.queues],
            ends_s: vec![0.0; engine.activities.len()],
            begins: vec![(0.0, None); engine.activities.len()],
            used: vec![0.0; resources],
            over: 0,
            left: vec![0.0; resources],
            demand: vec![0.0; resources],
        }
    }

    /// All that an activity waited for is over, at last `cause`.
    fn begin(&mut self, at: usize, cause: Option<usize>) {
        match self.engine.activities[at].queue {
            Some(QueueId(queue)) if self.queues[queue].0 => self.queues[queue].1.push_back(at),
            queue => {
                if let Some(QueueId(queue)) = queue {
                    self.queues[queue].0 = true;
                }
                self.start(at, cause);
            }
        }
    }

    fn start(&mut self, at: usize, cause: Option<usize>) {
        self.begins[at] = (self.now_s, cause);
        self.set(at, self.engine.activities[at].head_s, Due::Head);
    }

    fn set(&mut self, activity: usize, after_s: f64, what: Due) {
        let timer = Timer { at_s: self.now_s + after_s, set: self.timers_set, activity, what };
        self.timers_set += 1;
        self.timers.push(Reverse(timer));
    }

    /// What flowed has flowed: the queue is free, and soon others know.
    fn leave(&mut self, at: usize) {
        let Activity { queue, tail_s, .. } = self.engine.activities[at];
        self.set(at, tail_s, Due::Tail);
        let Some(QueueId(queue)) = queue else { return };
        match self.queues[queue].1.pop_front() {
            Some(next) => self.start(next, Some(at)),
            None => self.queues[queue].0 = false,
        }
    }

    fn end(&mut self, at: usize) {
        self.ends_s[at] = self.now_s;
        self.over += 1;
        for &then in &self.engine.after[at] {
            self.waits_for[then] -= 1;
            if self.waits_for[then] == 0 {
                self.begin(then, Some(at));
            }
        }
    }

    /// To the next moment at which something happens; false: nothing ever will.
    fn advance(&mut self) -> bool {
        if std::mem::take(&mut self.is_stale) {
            self.share();
        }
        // spans, not moments: a span may be too short to move the clock
        let timer = self.timers.peek().map(|Reverse(timer)| timer.at_s - self.now_s);
        let timer_s = timer.unwrap_or(f64::INFINITY);
        let flow_s = self.flowing.iter().map(|f| f.left / f.rate).fold(f64::INFINITY, f64::min);
        let span_s = timer_s.min(flow_s);
        if span_s.is_infinite() {
            return false;
        }
        self.flow(span_s);
        if flow_s <= timer_s {
            self.now_s += flow_s;
            self.is_stale = true;
            self.leave_all();
        } else if let Some(Reverse(timer)) = self.timers.peek() {
            self.now_s = timer.at_s;
        }
        while let Some(Reverse(timer)) = self.timers.peek().copied() {
            if timer.at_s > self.now_s {
                break;
            }
            self.timers.pop();
            self.fire(timer);
        }
        true
    }

    fn fire(&mut self, Timer { activity, what, .. }: Timer) {
        let amount = self.engine.activities[activity].amount;
        match what {
            Due::Tail => self.end(activity),
            Due::Head if amount > 0.0 => {
                self.flowing.push(Flowing { activity, left: amount, rate: 0.0 });
                self.is_stale = true;
            }
            Due::Head => self.leave(activity),
        }
    }

    fn flow(&mut self, seconds: f64) {
        for flowing in &mut self.flowing {
            let flown = (flowing.rate * seconds).min(flowing.left);
            flowing.left -= flown;
            for (resource, share) in &self.engine.activities[flowing.activity].uses {
                self.used[resource.0] += flown * share;
            }
        }
    }

    /// What has flowed leaves.
    fn leave_all(&mut self) {
        let activities = &self.engine.activities;
        let mut over = Vec::new();
        self.flowing.retain(|flowing| {
            let is_over = flowing.left <= SAME * activities[flowing.activity].amount;
            if is_over {
                over.push(flowing.activity);
            }
            !is_over
        });
        over.into_iter().for_each(|at| self.leave(at));
    }

    /// Rates: all rise together, in proportion to their weights, until a resource is used up or one is as fast as it
    /// can be; those stay, the others rise on.
    fn share(&mut self) {
        let activities = &self.engine.activities;
        for flowing in &self.flowing {
            for (resource, _) in &activities[flowing.activity].uses {
                self.left[resource.0] = self.engine.capacities[resource.0];
            }
        }
        let mut rising: Vec<usize> = (0..self.flowing.len()).collect();
        while !rising.is_empty() {
            // summed anew: of weights that differ by much, a difference would be rounding alone
            for uses in rising.iter().map(|at| &activities[self.flowing[*at].activity].uses) {
                uses.iter().for_each(|(resource, _)| self.demand[resource.0] = 0.0);
            }
            for at in &rising {
                let Activity { uses, weight, .. } = &activities[self.flowing[*at].activity];
                uses.iter().for_each(|(resource, share)| self.demand[resource.0] += share * weight);
            }
            let reach = |at: usize| {
                let Activity { uses, weight, rate_max, .. } =
                    &activities[self.flowing[at].activity];
                // rounding must not leave nothing where there is a little
                let least = |r: &ResourceId| self.engine.capacities[r.0] * SAME;
                let left = |r: &ResourceId| self.left[r.0].max(least(r));
                let levels = uses.iter().map(|(r, _)| left(r) / self.demand[r.0]);
                levels.fold(rate_max / weight, f64::min)
            };
            let level = rising.iter().map(|at| reach(*at)).fold(f64::INFINITY, f64::min);
            let (fixed, others): (Vec<usize>, Vec<usize>) =
                rising.iter().partition(|at| reach(**at) <= level * (1.0 + SAME));
            for at in fixed {
                let Activity { uses, weight, .. } = &activities[self.flowing[at].activity];
                let rate = weight * level;
                self.flowing[at].rate = rate;
                for (resource, share) in uses {
                    self.left[resource.0] -= rate * share;
                }
            }
            rising = others;
        }
    }
}
