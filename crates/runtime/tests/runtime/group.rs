//! Collective operations of a part: a session without a group is refused, one with a group hands it the vector, waits
//! on the events, and goes on once the group says so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support;
use tensorwire_base::Deadline;
use tensorwire_graph::{
    Cluster, Graph, Hint, NodeId, Op, Placement, Plan, PlanOptions, RunId, RunSpec,
};
use tensorwire_graph::{place, plan};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{Buffer, Slab};
use tensorwire_runtime::{
    Events, ExchangeError, GroupOps, Ports, RunError, Session, SessionError, Storage,
};
use tensorwire_tensor::{DType, Fact};

/// x → relu → mean (of a group) → max.
fn plan_of_a_group() -> Plan {
    let mut graph = Graph::new();
    let here = Hint::Replica(0);
    let fact = Fact::known(DType::F32, &[4]);
    let x = graph.add("x", here, Op::Input { fact }, &[]).unwrap();
    let relu = graph.add("relu", here, Op::Relu, &[x.into()]).unwrap();
    let mean = graph.add("mean", here, Op::AllReduce { vector: 0 }, &[relu.into()]).unwrap();
    let max = graph.add("max", here, Op::ReduceMax, &[mean.into()]).unwrap();
    let cluster = Cluster::Workers { workers: 1 };
    let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
    let roots = vec![max];
    let run = RunSpec { name: "run", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
}

fn try_session(plan: &Plan, ports: Option<Ports>) -> Result<Session, SessionError> {
    let memory = Slab::anonymous(plan.parts[0].memory.registered_bytes).unwrap();
    let storage = Storage::new(&plan.parts[0], &memory).unwrap();
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
    let options = support::options(Duration::from_millis(200));
    Session::new(plan, 0, storage, kernels, ports, options)
}

/// A group whose other members come when somebody has waited for them `left` times.
#[derive(Clone, Default)]
struct Late(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    left: Option<u32>,
    started: Vec<(NodeId, Buffer)>,
}

impl Events for Late {
    fn observe(&mut self) {}

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        match &mut self.0.lock().unwrap().left {
            Some(left) => *left -= 1,
            None => std::thread::sleep(deadline.remaining()),
        }
        Ok(())
    }
}

impl GroupOps for Late {
    fn start(&mut self, node: NodeId, tensor: &Buffer) -> Result<(), ExchangeError> {
        self.0.lock().unwrap().started.push((node, tensor.clone()));
        Ok(())
    }

    fn finished(&mut self, finished: &mut Vec<NodeId>) -> Result<(), ExchangeError> {
        let mut state = self.0.lock().unwrap();
        if state.left == Some(0) {
            for (node, tensor) in state.started.drain(..) {
                // what the others add
                let mut bytes = tensor.write().unwrap();
                for value in bytes.as_chunks_mut::<4>().0 {
                    *value = (f32::from_le_bytes(*value) + 100.0).to_le_bytes();
                }
                finished.push(node);
            }
        }
        Ok(())
    }
}

#[test]
fn a_session_that_has_a_collective_operation_and_no_group_is_refused() {
    let plan = plan_of_a_group();
    for ports in [None, Some(Ports::new(Late::default()))] {
        let error = try_session(&plan, ports).unwrap_err();
        assert!(
            matches!(&error, SessionError::NoGroup { part: 0, node } if node == "mean"),
            "{error}"
        );
        assert!(error.to_string().contains("'mean' in part 0"), "{error}");
    }
}

#[test]
fn what_the_group_made_of_a_vector_is_what_the_next_operator_reads() {
    let plan = plan_of_a_group();
    let late = Late::default();
    let ports = Ports::new(late.clone()).with_group(late.clone());
    let mut session = try_session(&plan, Some(ports)).unwrap();
    for waits in [0, 3] {
        late.0.lock().unwrap().left = Some(waits);
        support::write(&session, "x", &[-1.0f32, 2.0, 7.0, 0.0]);
        let before = session.counters().waits;
        session.run(RunId(0)).unwrap();
        assert_eq!(support::read::<f32>(&session, "max"), [107.0]);
        assert_eq!(session.counters().waits - before, u64::from(waits));
    }
    assert_eq!(session.copies().bytes(), 0, "the vector lies where it was made");
}

#[test]
fn a_group_that_does_not_come_is_named_when_the_deadline_passes() {
    let plan = plan_of_a_group();
    let late = Late::default();
    let ports = Ports::new(late.clone()).with_group(late.clone());
    let mut session = try_session(&plan, Some(ports)).unwrap();
    let error = session.run(RunId(0)).unwrap_err();
    let RunError::Stalled { step: 1, missing, .. } = &error else { panic!("{error}") };
    assert!(missing.contains("'mean'"), "{missing}");
}
