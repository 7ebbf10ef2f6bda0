//! Runs that are over before their tail: the next one begins with what the group or the exchange is over with, and waits for the
//! rest. A group, and an exchange, that the test holds back say what they are over with, so that nothing depends on how fast
//! anything is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support;
use tensorwire_base::Deadline;
use tensorwire_graph::{
    Cluster, EdgeId, Graph, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, Rule,
    RunId, RunSpec, place, plan,
};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_runtime::{
    Advance, EventKind, Events, ExchangeError, GroupOps, Ports, Sending, Session, SessionError,
    SessionOptions, Storage, TensorExchange,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const TRAIN: RunId = RunId(0);
const LOOK: RunId = RunId(1);

/// Two layers: x + w1 → h, h + w2 → y; what the group makes of a function of each changes the layer's weights. The last layer's
/// is made first, as of gradients. `fed` has the second update read what is fed before each run.
fn plan_of_two_layers(fed: bool) -> Plan {
    let mut graph = Graph::new();
    let here = Hint::Replica(0);
    let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
    let variable = |graph: &mut Graph, name: &str| {
        graph.variable_at(name, here, spec.clone(), Init::Zeros).unwrap()
    };
    let (w1, w2) = (variable(&mut graph, "w1"), variable(&mut graph, "w2"));
    let mut add = |name: &str, op: Op, inputs: &[Output]| {
        Output::from(graph.add(name, here, op, inputs).unwrap())
    };
    let fact = Fact::known(DType::F32, &[4]);
    let x = add("x", Op::Input { fact }, &[]);
    let h = add("h", Op::Add, &[x, w1]);
    let y = add("y", Op::Add, &[h, w2]);
    let max = add("max", Op::ReduceMax, &[y]);
    let g2 = add("g2", Op::Relu, &[y]);
    let g1 = add("g1", Op::Mul, &[h, y]);
    let mean2 = add("mean2", Op::AllReduce { vector: 1 }, &[g2]);
    let mean1 = add("mean1", Op::AllReduce { vector: 0 }, &[g1]);
    let mean2 = if fed { add("fed", Op::Mul, &[mean2, x]) } else { mean2 };
    let sgd = || Op::Apply { rule: Rule::sgd(0.5), clipped: false };
    let u2 = add("u2", sgd(), &[w2, mean2]);
    let u1 = add("u1", sgd(), &[w1, mean1]);
    let seen = add("seen", Op::Add, &[w1, w2]);
    let cluster = Cluster::Workers { workers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = |name, roots: &[Output]| {
        let roots = roots.iter().map(|root| root.node).collect();
        RunSpec { name, roots, fetch_to: None, given: vec![], followed_by: vec![0, 1] }
    };
    let runs = [run("train", &[max, u2, u1]), run("look", &[seen])];
    plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap()
}

/// A group that is over with what the test lets it be over with.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    has: Vec<(NodeId, Buffer)>,
    free: Vec<NodeId>,
    all_free: bool,
    needs_turns: bool,
    fails: bool,
}

impl Held {
    fn free(&self, node: NodeId) {
        self.0.lock().unwrap().free.push(node);
    }

    fn holds(&self, all_held: bool) {
        self.0.lock().unwrap().all_free = !all_held;
    }

    /// How many vectors it has.
    fn has(&self) -> usize {
        self.0.lock().unwrap().has.len()
    }
}

impl Events for Held {
    fn observe(&mut self) {}

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        std::thread::sleep(deadline.remaining().min(Duration::from_millis(1)));
        Ok(())
    }
}

impl GroupOps for Held {
    fn start(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError> {
        self.0.lock().unwrap().has.push((node, tensor.clone()));
        Ok(())
    }

    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        let State { has, free, all_free, fails, .. } = &mut *self.0.lock().unwrap();
        if *fails {
            return Err(ExchangeError::Other { peer: None, what: "a member is gone".to_string() });
        }
        has.retain(|(node, tensor)| {
            let is_over = *all_free || free.contains(node);
            if is_over {
                free.retain(|free| free != node);
                // what the others add
                for value in tensor.write().unwrap().as_chunks_mut::<4>().0 {
                    *value = (f32::from_le_bytes(*value) * 0.5 + 1.0).to_le_bytes();
                }
                finished.push(*node);
            }
            !is_over
        });
        Ok(())
    }

    fn moves_alone(&self) -> bool {
        !self.0.lock().unwrap().needs_turns
    }
}

fn session(plan: &Plan, held: &Held) -> Session {
    let memory = Slab::anonymous(plan.parts[0].memory.registered_bytes).unwrap();
    let storage = Storage::new(&plan.parts[0], &memory).unwrap();
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
    let options = SessionOptions { timeline: true, ..support::options(Duration::from_millis(400)) };
    let ports = Ports::new(held.clone()).with_group(held.clone());
    let session = Session::new(plan, 0, storage, kernels, Some(ports), options).unwrap();
    support::write(&session, "w1", &[0.5f32, -1.0, 2.0, 0.25]);
    support::write(&session, "w2", &[1.0f32, 3.0, -0.5, 0.125]);
    session
}

fn feed(session: &Session, step: u16) {
    let step = f32::from(step);
    support::write(session, "x", &[step, -step, 0.5 * step, 1.0]);
}

fn rate(step: u16) -> f64 {
    1.0 / f64::from(step)
}

/// Gives the session turns until there is nothing that it could do.
fn advance(session: &mut Session) -> Advance {
    loop {
        match session.advance().unwrap() {
            Advance::Progress => {}
            other => return other,
        }
    }
}

/// The weights after so many runs, none of which leaves anything.
fn weights_of_whole_runs(runs: u16) -> [Vec<f32>; 2] {
    let held = Held::default();
    held.holds(false);
    let mut session = session(&plan_of_two_layers(false), &held);
    for step in 1..=runs {
        feed(&session, step);
        session.set_rate_factor(rate(step));
        session.run(TRAIN).unwrap();
    }
    weights(&session)
}

fn weights(session: &Session) -> [Vec<f32>; 2] {
    ["w1", "w2"].map(|name| support::read::<f32>(session, name))
}

#[test]
fn the_next_run_begins_with_what_the_group_is_over_with_and_waits_for_the_rest() {
    let held = Held::default();
    let mut session = session(&plan_of_two_layers(false), &held);
    let [mean1, mean2] = ["mean1", "mean2"].map(|name| session.node(name).unwrap());
    assert!(session.find_tail(TRAIN));
    let mut early = 0;
    for step in 1..=4 {
        feed(&session, step);
        session.set_rate_factor(rate(step));
        session.leave_tail(TRAIN, true);
        session.start(TRAIN);
        if step > 1 {
            // nothing of this run may begin: the first layer's weights are not there
            assert_eq!(advance(&mut session), Advance::Blocked);
            assert_eq!(session.counters().early_kernels, early);
            held.free(mean1);
            assert_eq!(advance(&mut session), Advance::Blocked);
            early += 1;
            assert_eq!(session.counters().early_kernels, early, "h, and not y");
            assert_eq!(held.has(), 1, "the second layer's mean is still of the run before");
            held.free(mean2);
        }
        assert_eq!(advance(&mut session), Advance::Finished);
        assert_eq!(held.has(), 2, "the run is over, and the group has both vectors");
        assert!(support::read::<f32>(&session, "max")[0].is_finite());
        for name in ["w1", "w2", "mean1"] {
            let output = Output::from(session.node(name).unwrap());
            let found = session.read(output).err().unwrap();
            assert!(matches!(&found, SessionError::Unsettled { .. }), "{found}");
            assert!(found.to_string().contains(name), "{found}");
            assert!(session.write(output).is_err());
        }
    }
    held.holds(false);
    session.settle().unwrap();
    assert_eq!(weights(&session), weights_of_whole_runs(4), "and each at the rate of its run");
    // what happened in which run, by the runs' own numbers
    let [h, u1] = ["h", "u1"].map(|name| session.node(name).unwrap());
    let events = session.timeline().unwrap().events().to_vec();
    let of = |what: EventKind, step: u64| {
        let found = events.iter().find(|event| event.what == what && event.step == step);
        *found.unwrap_or_else(|| panic!("no {what:?} in run {step}"))
    };
    for step in 1..4 {
        let last = of(EventKind::Collective(mean2), step);
        assert!(of(EventKind::Kernel(h), step + 1).start_ns < last.end_ns);
        assert!(
            of(EventKind::Kernel(u1), step).end_ns <= of(EventKind::Kernel(h), step + 1).start_ns
        );
    }
    // and all is as ever once nothing is left
    session.leave_tail(TRAIN, false);
    feed(&session, 5);
    session.set_rate_factor(rate(5));
    session.run(TRAIN).unwrap();
    assert_eq!(weights(&session), weights_of_whole_runs(5));
    assert_eq!(session.counters().early_kernels, early);
}

#[test]
fn another_run_waits_for_what_was_left() {
    let held = Held::default();
    let mut session = session(&plan_of_two_layers(false), &held);
    assert!(session.find_tail(TRAIN));
    feed(&session, 1);
    session.leave_tail(TRAIN, true);
    session.run(TRAIN).unwrap();
    session.start(LOOK);
    assert_eq!(advance(&mut session), Advance::Blocked);
    held.holds(false);
    assert_eq!(advance(&mut session), Advance::Finished);
    let [w1, w2] = weights_of_whole_runs(1);
    let sums: Vec<f32> = w1.iter().zip(&w2).map(|(one, two)| one + two).collect();
    assert_eq!(support::read::<f32>(&session, "seen"), sums);
}

#[test]
fn what_does_not_come_or_is_lost_meanwhile_ends_the_run_that_began_early() {
    for fails in [false, true] {
        let held = Held::default();
        let mut session = session(&plan_of_two_layers(false), &held);
        assert!(session.find_tail(TRAIN));
        feed(&session, 1);
        session.leave_tail(TRAIN, true);
        session.run(TRAIN).unwrap();
        held.0.lock().unwrap().fails = fails;
        let found = session.run(TRAIN).unwrap_err().to_string();
        let says: &[&str] = match fails {
            true => &["a member is gone"],
            false => &["the group's 'mean1'", "the group's 'mean2'", "--step-deadline"],
        };
        assert!(says.iter().all(|says| found.contains(says)), "{found}");
    }
}

#[test]
fn nothing_is_left_where_nobody_moves_it_or_it_reads_what_is_fed() {
    let held = Held::default();
    held.0.lock().unwrap().needs_turns = true;
    assert!(!session(&plan_of_two_layers(false), &held).find_tail(TRAIN));

    // of the second layer nothing may be left: its update reads what the next run is fed
    let held = Held::default();
    let mut session = session(&plan_of_two_layers(true), &held);
    let mean2 = session.node("mean2").unwrap();
    assert!(session.find_tail(TRAIN));
    feed(&session, 1);
    session.leave_tail(TRAIN, true);
    session.start(TRAIN);
    assert_eq!(advance(&mut session), Advance::Blocked);
    held.free(mean2);
    assert_eq!(advance(&mut session), Advance::Finished);
    assert_eq!(held.has(), 1);
    feed(&session, 2);
}

/// The two layers with weights that a server has: a worker receives them and sends what changes them.
fn plan_beside_a_server() -> Plan {
    let mut graph = Graph::new();
    let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
    let variable =
        |graph: &mut Graph, name: &str| graph.variable(name, spec.clone(), Init::Zeros).unwrap();
    let (w1, w2) = (variable(&mut graph, "w1"), variable(&mut graph, "w2"));
    let mut add = |name: &str, op: Op, inputs: &[Output]| {
        Output::from(graph.add(name, Hint::Replica(0), op, inputs).unwrap())
    };
    let x = add("x", Op::Input { fact: Fact::known(DType::F32, &[4]) }, &[]);
    let h = add("h", Op::Add, &[x, w1]);
    let y = add("y", Op::Add, &[h, w2]);
    let g2 = add("g2", Op::Relu, &[y]);
    let g1 = add("g1", Op::Mul, &[h, y]);
    let sgd = || Op::Apply { rule: Rule::sgd(0.5), clipped: false };
    let update = |graph: &mut Graph, name: &str, inputs: &[Output]| {
        graph.add(name, Hint::With(inputs[0].node), sgd(), inputs).unwrap()
    };
    let roots = vec![update(&mut graph, "u2", &[w2, g2]), update(&mut graph, "u1", &[w1, g1])];
    let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
}

/// An exchange that has received, and is over with, what the test says.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<OnWire>>);

#[derive(Default)]
struct OnWire {
    /// By edge: the last tensor that has come.
    came: HashMap<EdgeId, u64>,
    sent: Vec<(EdgeId, u64)>,
    over: Vec<EdgeId>,
    needs_turns: bool,
}

impl Wire {
    fn brings(&self, edge: EdgeId, epoch: u64) {
        self.0.lock().unwrap().came.insert(edge, epoch);
    }

    fn is_over(&self, edge: EdgeId) {
        self.0.lock().unwrap().over.push(edge);
    }

    fn sent(&self) -> Vec<(EdgeId, u64)> {
        self.0.lock().unwrap().sent.clone()
    }
}

impl TensorExchange for Wire {
    fn send(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        _tensor: Option<&Buffer>,
    ) -> Result<Sending, ExchangeError> {
        self.0.lock().unwrap().sent.push((edge, epoch));
        Ok(Sending::Started)
    }

    fn announce(
        &mut self,
        edge: EdgeId,
        epoch: u64,
        _spec: &TensorSpec,
        tensor: &Buffer,
    ) -> Result<Sending, ExchangeError> {
        self.send(edge, epoch, Some(tensor))
    }

    fn arrived(&mut self, edge: EdgeId, epoch: u64) -> Result<bool, ExchangeError> {
        Ok(self.0.lock().unwrap().came.get(&edge).is_some_and(|came| *came >= epoch))
    }

    fn announced(&mut self, _edge: EdgeId, _epoch: u64) -> Result<TensorSpec, ExchangeError> {
        Ok(TensorSpec::new(DType::F32, &[4]).unwrap())
    }

    fn fetch(
        &mut self,
        _edge: EdgeId,
        _epoch: u64,
        _into: &Buffer,
        _deadline: Deadline,
    ) -> Result<Sending, ExchangeError> {
        Ok(Sending::Full)
    }

    fn moves_alone(&self) -> bool {
        !self.0.lock().unwrap().needs_turns
    }

    fn finished(&mut self, finished: &mut Vec<EdgeId>) -> Result<(), ExchangeError> {
        finished.append(&mut self.0.lock().unwrap().over);
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, ExchangeError> {
        Ok(Slab::anonymous(bytes).unwrap())
    }

    fn free(&mut self, _slab: &Slab) {}
}

/// The worker, and its edges: of what it receives (`w1`, `w2`) and of what it sends (`g1`, `g2`).
fn worker(wire: &Wire) -> (Session, [EdgeId; 4]) {
    let plan = plan_beside_a_server();
    let here = plan.parts.iter().position(|part| part.graph.find("x").is_some()).unwrap();
    let edge = |name: &str, is_sent: bool| {
        let its = |edge: &&tensorwire_graph::Edge| {
            edge.name.starts_with(name)
                && (edge.from == here) == is_sent
                && edge.bytes() == Some(16)
        };
        plan.edges.iter().find(its).unwrap_or_else(|| panic!("{name}: {:?}", plan.edges)).id
    };
    let edges = [edge("w1", false), edge("w2", false), edge("g1", true), edge("g2", true)];
    let memory = Slab::anonymous(plan.parts[here].memory.registered_bytes).unwrap();
    let storage = Storage::new(&plan.parts[here], &memory).unwrap();
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
    let options = SessionOptions { timeline: true, ..support::options(Duration::from_millis(400)) };
    let ports = Ports::new(Held::default()).with_exchange(wire.clone());
    (Session::new(&plan, here, storage, kernels, Some(ports), options).unwrap(), edges)
}

#[test]
fn the_next_run_begins_while_the_last_ones_sends_are_under_way() {
    let wire = Wire::default();
    wire.0.lock().unwrap().needs_turns = true;
    assert!(!worker(&wire).0.find_tail(TRAIN), "nobody would move them");
    wire.0.lock().unwrap().needs_turns = false;
    let (mut session, [w1, w2, g1, g2]) = worker(&wire);
    assert!(session.find_tail(TRAIN));
    wire.brings(w1, 1);
    wire.brings(w2, 1);
    feed(&session, 1);
    session.leave_tail(TRAIN, true);
    session.start(TRAIN);
    assert_eq!(advance(&mut session), Advance::Finished);
    assert_eq!(wire.sent(), [(g2, 1), (g1, 1)], "and neither is over");

    feed(&session, 2);
    session.leave_tail(TRAIN, true);
    session.start(TRAIN);
    let mut blocked_behind = |early: u64, sends: usize| {
        assert_eq!(advance(&mut session), Advance::Blocked);
        assert_eq!((session.counters().early_kernels, wire.sent().len()), (early, sends));
    };
    blocked_behind(0, 2);
    wire.brings(w1, 2);
    blocked_behind(1, 2);
    // what is made of the second layer's weights is made, but for what is written over what is still sent
    wire.brings(w2, 2);
    blocked_behind(2, 2);
    wire.is_over(g2);
    blocked_behind(3, 3);
    wire.is_over(g1);
    assert_eq!(advance(&mut session), Advance::Finished);
    assert_eq!(wire.sent()[2..], [(g2, 2), (g1, 2)]);

    wire.is_over(g2);
    wire.is_over(g1);
    session.settle().unwrap();
    let sends = session.timeline().unwrap().events().iter().filter_map(|event| match event.what {
        EventKind::Send { epoch, .. } => Some((event.step, epoch)),
        _ => None,
    });
    assert_eq!(sends.collect::<Vec<_>>(), [(1, 1), (1, 1), (2, 2), (2, 2)]);
}
