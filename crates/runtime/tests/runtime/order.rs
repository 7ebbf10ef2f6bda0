//! The order in which variables leave their server: that in which readers need them or, to compare with, that in which they were
//! changed.

use std::time::Duration;

use crate::support::parts::Parts;
use crate::support::{options, sessions};
use tensorwire_base::Deadline;
use tensorwire_fabric::Backend;
use tensorwire_graph::{Hint, Init, Op, PlanOptions, Rule, RunId};
use tensorwire_runtime::{Advance, EventKind, Session, SessionOptions};
use tensorwire_tensor::{DType, TensorSpec};
use tensorwire_testkit::mesh;

/// Variables a, b and c of a server. Their worker makes the gradient of the last first.
fn workload() -> Parts {
    let mut parts = Parts::new(1);
    let spec = TensorSpec::new(DType::F32, &[16]).unwrap();
    let mut variable = |name| parts.graph.variable(name, spec.clone(), Init::Zeros).unwrap();
    let variables = ["a", "b", "c"].map(|name| (name, variable(name)));
    for (name, variable) in variables.into_iter().rev() {
        let read = parts.root(&format!("read {name}"), Hint::Replica(0), Op::Relu, &[variable]);
        let rule = Op::Apply { rule: Rule::sgd(1.0), clipped: false };
        let at = Hint::With(variable.node);
        parts.root(&format!("update {name}"), at, rule, &[variable, read]);
    }
    parts
}

/// A step, in which the server does all that it can before the worker does one more thing.
fn step(sessions: &mut [Session]) {
    let deadline = Deadline::after(Duration::from_secs(60));
    sessions.iter_mut().for_each(|session| session.start(RunId(0)));
    let mut is_over = [false; 2];
    while is_over.contains(&false) {
        for part in [1, 0].into_iter().filter(|part| !is_over[*part]).collect::<Vec<_>>() {
            loop {
                let advanced = sessions[part].advance().unwrap();
                is_over[part] = advanced == Advance::Finished;
                if advanced != Advance::Progress || part == 0 {
                    break;
                }
            }
        }
        assert!(!deadline.passed(), "nothing moves any more: {is_over:?}");
    }
}

/// The names of the variables that the server sent in each of two steps, in order.
fn sent(prepare: fn(&mut Session)) -> [Vec<String>; 2] {
    let plan = workload().plan(PlanOptions::default());
    let fabrics = mesh::open(&Backend::Shm, 2, |_| {});
    mesh::connect(&fabrics);
    let told = SessionOptions { timeline: true, ..options(Duration::from_secs(60)) };
    let mut sessions = sessions(&plan, &fabrics, told);
    prepare(&mut sessions[1]);
    (0..2).for_each(|_| step(&mut sessions));
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
