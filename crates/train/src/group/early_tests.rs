//! A step that begins while another member has not begun what the step before waits for: the other one is the test itself, so that
//! nothing depends on how fast anything is.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{CollectiveCall, Collectives, Group, GroupOptions, VectorId};
use tensorwire_fabric::{Backend, Fabric};
use tensorwire_graph::{
    Cluster, Graph, Hint, Init, Op, Output, Placement, Plan, PlanOptions, Rule, RunId, RunSpec,
    place, plan,
};
use tensorwire_kernels::{FoldKind, KernelChoice, Kernels};
use tensorwire_memory::{Arena, Buffer, Place, TensorMut, TensorRef};
use tensorwire_runtime::{Advance, Session, SessionOptions, Storage};
use tensorwire_tensor::{DType, Element, Fact, TensorSpec};
use tensorwire_testkit::mesh::{mesh, soon};

use super::{VectorReducer, bind_part, member_ports};
use crate::carried::Carried;

const TRAIN: RunId = RunId(0);
const LEN: usize = 4;

/// x + w1 → h, h + w2 → y; what the group makes of relu(y) changes w2, and of h · y w1.
fn plan_of_two_layers() -> Plan {
    let mut graph = Graph::new();
    let here = Hint::Replica(0);
    let spec = TensorSpec::new(DType::F32, &[LEN]).unwrap();
    let variable = |graph: &mut Graph, name: &str| {
        graph.variable_at(name, here, spec.clone(), Init::Zeros).unwrap()
    };
    let (w1, w2) = (variable(&mut graph, "w1"), variable(&mut graph, "w2"));
    let mut add = |name: &str, op: Op, inputs: &[Output]| {
        Output::from(graph.add(name, here, op, inputs).unwrap())
    };
    let x = add("x", Op::Input { fact: Fact::known(DType::F32, &[LEN]) }, &[]);
    let h = add("h", Op::Add, &[x, w1]);
    let y = add("y", Op::Add, &[h, w2]);
    let g2 = add("g2", Op::Relu, &[y]);
    let g1 = add("g1", Op::Mul, &[h, y]);
    let mean2 = add("mean2", Op::AllReduce { vector: 1 }, &[g2]);
    let mean1 = add("mean1", Op::AllReduce { vector: 0 }, &[g1]);
    let sgd = || Op::Apply { rule: Rule::sgd(0.5), clipped: false };
    let roots = vec![add("u2", sgd(), &[w2, mean2]).node, add("u1", sgd(), &[w1, mean1]).node];
    let cluster = Cluster::Workers { workers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
}

fn group(fabric: Fabric, me: usize) -> Group {
    let options =
        GroupOptions { deterministic: true, posted_bytes_max: Some(8), ..GroupOptions::default() };
    Group::open(fabric, &[Rank(0), Rank(1)], me, options, soon()).unwrap()
}

/// The member that trains.
fn session(fabric: Fabric) -> Session {
    let plan = plan_of_two_layers();
    let group = Arc::new(Mutex::new(group(fabric, 0)));
    let memory = group.lock().alloc(plan.parts[0].memory.registered_bytes).unwrap();
    let storage = Storage::new(&plan.parts[0], &memory).unwrap();
    let bound = bind_part(&group, &plan.parts[0], &storage, soon()).unwrap();
    let ports = member_ports(&group, bound, Carried::default());
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
    let options = SessionOptions {
        step_deadline: Duration::from_secs(30),
        timeline: false,
        dynamic_bytes_max: 1 << 20,
        variables_shared: false,
    };
    Session::new(&plan, 0, storage, kernels, Some(ports), options).unwrap()
}

/// The other one: its gradients of the first layer and of the second.
struct Other {
    group: Group,
    vectors: Vec<VectorId>,
    buffers: Vec<Buffer>,
}

impl Other {
    fn open(fabric: Fabric) -> Other {
        let mut group = group(fabric, 1);
        let bytes = 4 * LEN;
        let slab = group.alloc(2 * 64).unwrap();
        let places = [0, 64].map(|offset| Place { offset, bytes });
        let buffers = Arena::new(&slab, &places).unwrap().into_buffers();
        let vectors = group.bind(&buffers, soon()).unwrap();
        Other { group, vectors, buffers }
    }

    /// Gives its gradient of a layer, which is `value` everywhere, and waits for the mean. Nobody gives the session turns meanwhile.
    fn reduce(&mut self, layer: usize, value: f32) {
        let values = [value; LEN];
        self.buffers[layer].write().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
        let reducer = VectorReducer::new(DType::F32, FoldKind::Mean).unwrap();
        let call = CollectiveCall::AllReduce(Arc::new(reducer));
        let handle = self.group.start(self.vectors[layer], call).unwrap();
        let soon = soon();
        while !self.group.is_done(handle) {
            assert!(!soon.passed(), "nobody moved the session's end");
            self.group.progress().unwrap();
        }
    }
}

fn set<T: Element>(session: &Session, name: &str, values: &[T]) {
    let (spec, mut bytes) = session.write(session.node(name).unwrap().into()).unwrap();
    TensorMut::new(spec, &mut bytes).unwrap().elements::<T>().unwrap().copy_from_slice(values);
}

fn get(session: &Session, name: &str) -> Vec<f32> {
    let (spec, bytes) = session.read(session.node(name).unwrap().into()).unwrap();
    TensorRef::new(spec, &bytes).unwrap().elements::<f32>().unwrap().to_vec()
}

/// What a step makes of the weights, in the order of the arithmetic above.
fn step(x: f32, others: [f32; 2], [w1, w2]: [f32; 2]) -> [f32; 2] {
    let h = x + w1;
    let y = h + w2;
    let means = [(h * y + others[0]) / 2.0, (y.max(0.0) + others[1]) / 2.0];
    [w1 - 0.5 * means[0], w2 - 0.5 * means[1]]
}

#[test]
fn a_step_begins_before_another_member_has_begun_what_the_step_before_waits_for() {
    let mut fabrics = mesh(|| Backend::Tcp, 2).into_iter();
    let (first, second) = (fabrics.next().unwrap(), fabrics.next().unwrap());
    let (mut session, mut other) = std::thread::scope(|scope| {
        let opening = scope.spawn(|| session(first));
        let other = Other::open(second);
        (opening.join().unwrap(), other)
    });
    let mut weights = [0.5, -0.25];
    set(&session, "w1", &[weights[0]; LEN]);
    set(&session, "w2", &[weights[1]; LEN]);
    assert!(session.find_tail(TRAIN), "a thread moves what crosses a wire");
    for (number, x) in [1.0f32, -2.0, 0.75].into_iter().enumerate() {
        let early = session.counters().early_kernels;
        set(&session, "x", &[x; LEN]);
        session.leave_tail(TRAIN, true);
        session.start(TRAIN);
        if number > 0 {
            // the other has not begun the second layer's reduction of the step before, and the first layer computes
            let soon = soon();
            while session.counters().early_kernels == early {
                assert!(!soon.passed(), "the step did not begin");
                if session.advance().unwrap() == Advance::Blocked {
                    session.wait().unwrap();
                }
            }
            assert_eq!(session.counters().early_kernels, early + 1);
            other.reduce(1, 1.5);
        }
        loop {
            match session.advance().unwrap() {
                Advance::Progress => {}
                Advance::Blocked => session.wait().unwrap(),
                Advance::Finished => break,
            }
        }
        // by the thread alone
        other.reduce(0, 0.5);
        weights = step(x, [0.5, 1.5], weights);
    }
    other.reduce(1, 1.5);
    session.settle().unwrap();
    assert_eq!(get(&session, "w1"), [weights[0]; LEN]);
    assert_eq!(get(&session, "w2"), [weights[1]; LEN]);
    assert_eq!(session.counters().early_kernels, 2);
}

#[test]
fn a_member_that_leaves_meanwhile_ends_the_step_that_began_early() {
    let mut fabrics = mesh(|| Backend::Tcp, 2).into_iter();
    let (first, second) = (fabrics.next().unwrap(), fabrics.next().unwrap());
    let (mut session, mut other) = std::thread::scope(|scope| {
        let opening = scope.spawn(|| session(first));
        let other = Other::open(second);
        (opening.join().unwrap(), other)
    });
    assert!(session.find_tail(TRAIN));
    set(&session, "x", &[1.0f32; LEN]);
    session.leave_tail(TRAIN, true);
    session.run(TRAIN).unwrap();
    other.reduce(0, 0.5);
    session.start(TRAIN);
    let soon: Deadline = soon();
    while session.counters().early_kernels == 0 {
        assert!(!soon.passed(), "the step did not begin");
        session.advance().unwrap();
    }
    drop(other);
    let lost = loop {
        assert!(!soon.passed(), "nobody noticed");
        match session.advance() {
            Ok(Advance::Finished) => panic!("it had the mean of a member that is gone"),
            Ok(Advance::Blocked) => {
                if let Err(lost) = session.wait() {
                    break lost;
                }
            }
            Ok(Advance::Progress) => {}
            Err(lost) => break lost,
        }
    };
    assert_eq!(lost.lost_peer(), Some(Rank(1)), "{lost}");
}
