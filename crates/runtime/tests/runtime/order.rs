//! The order in which variables leave their server: that in which readers need them or, to compare with, that in which they were
//! changed.

use crate::support::parts::{Parts, each_on_a_thread};
use crate::support::{options, sessions};
use std::time::Duration;
use tensorwire_fabric::Backend;
use tensorwire_graph::{Hint, Init, Op, PlanOptions, Rule, RunId};
use tensorwire_runtime::{EventKind, Session, SessionOptions};
use tensorwire_tensor::{DType, TensorSpec};
use tensorwire_testkit::mesh;

/// Variables a, b and c of a server, of which the last is changed first, as gradients come.
fn workload() -> Parts {
    let mut parts = Parts::new(1);
    let spec = TensorSpec::new(DType::F32, &[16]).unwrap();
    let mut later: Option<tensorwire_graph::Output> = None;
    for name in ["a", "b", "c"] {
        let variable = parts.graph.variable(name, spec.clone(), Init::Zeros).unwrap();
        let read = parts.root(&format!("read {name}"), Hint::Replica(0), Op::Relu, &[variable]);
        let rule = Op::Apply { rule: Rule::sgd(1.0), clipped: false };
        let at = Hint::With(variable.node);
        let update = parts.root(&format!("update {name}"), at, rule, &[variable, read]);
        if let Some(earlier) = later.replace(update) {
            parts.graph.control(update.node, earlier.node);
        }
    }
    parts
}

/// The names of the variables that the server sent in each of two steps, in order.
fn sent(prepare: fn(&mut Session)) -> [Vec<String>; 2] {
    let plan = workload().plan(PlanOptions::default());
    let fabrics = mesh::open(&Backend::Shm, 2, |_| {});
    mesh::connect(&fabrics);
    let told = SessionOptions { timeline: true, ..options(Duration::from_secs(60)) };
    let mut sessions = sessions(&plan, &fabrics, told);
    prepare(&mut sessions[1]);
    each_on_a_thread(&mut sessions, |_, session| {
        for _step in 0..2 {
            session.run(RunId(0)).unwrap();
        }
    });
    let mut events = sessions[1].timeline().unwrap().events().to_vec();
    events.sort_by_key(|event| event.start_ns);
    let graph = &plan.parts[1].graph;
    [1, 2].map(|step| {
        let of_step = events.iter().filter(|event| event.step == step);
        let sends = of_step.filter_map(|event| match event.what {
            EventKind::Send { node, .. } => graph.node(node).op.edge(),
            _ => None,
        });
        let names = sends.map(|edge| plan.edges[edge.index()].name.clone());
        // beside them it says what it has read
        names.filter(|name| ["a", "b", "c"].contains(&name.as_str())).collect()
    })
}

#[test]
fn what_is_needed_first_leaves_first_unless_told_otherwise() {
    let declared = ["a", "b", "c"].map(str::to_string).to_vec();
    let backwards = ["c", "b", "a"].map(str::to_string).to_vec();
    assert_eq!(sent(|_| {}), [declared.clone(), declared.clone()]);
    // before the first change there is no other order
    assert_eq!(sent(Session::send_as_changed), [declared, backwards]);
}
