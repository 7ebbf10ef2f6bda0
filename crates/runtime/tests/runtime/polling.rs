//! Polling-async (Xue et al. §4): a Recv whose tensor is not there goes to the tail of the ready queue, so
//! that polls never keep a kernel from running that could.

use std::time::Duration;

use crate::support::parts::{Parts, hostile};
use crate::support::{options, sessions};
use tensorwire_fabric::{Backend, SimNetwork};
use tensorwire_graph::{Hint, Op, PlanOptions, RunId};
use tensorwire_runtime::{Advance, Counters, Session};
use tensorwire_tensor::{DType, Dim};
use tensorwire_testkit::mesh;

/// Tensors that worker 1 receives, each for one kernel.
const RECVS: u64 = 40;
/// Kernels of worker 1 that wait for nothing but its own inputs, and kernels that wait for each other.
const APART: u64 = 60;
const CHAIN: u64 = 30;
const OWN: u64 = APART + CHAIN;
const STEPS: u64 = 3;

fn workload() -> Parts {
    let (sender, receiver) = (Hint::Replica(0), Hint::Replica(1));
    let mut parts = Parts::new(2);
    for index in 0..RECVS {
        let x = parts.input(&format!("x{index}"), sender, DType::F32, &[Dim::Known(16)]);
        parts.root(&format!("received{index}"), receiver, Op::Relu, &[x]);
    }
    for index in 0..APART {
        let x = parts.input(&format!("own{index}"), receiver, DType::F32, &[Dim::Known(16)]);
        parts.root(&format!("apart{index}"), receiver, Op::Relu, &[x]);
    }
    let mut last = parts.input("first", receiver, DType::F32, &[Dim::Known(16)]);
    for index in 0..CHAIN {
        last = parts.root(&format!("chain{index}"), receiver, Op::Relu, &[last]);
    }
    parts
}

fn since(earlier: Counters, now: Counters) -> (u64, u64) {
    (now.polls - earlier.polls, now.kernels - earlier.kernels)
}

/// Lets a session do all that it can until it waits or is done; each Recv is asked at most once between
/// any two things that it does.
fn advance_while_able(session: &mut Session) -> Advance {
    loop {
        let before = session.counters();
        let advanced = session.advance().unwrap();
        let (polls, kernels) = since(before, session.counters());
        assert!(polls <= RECVS, "{polls} polls before the next turn that did something");
        assert!(kernels <= 1);
        if advanced != Advance::Progress {
            return advanced;
        }
    }
}

#[test]
fn polls_never_keep_a_kernel_that_could_run_from_running() {
    let plan = workload().plan(PlanOptions::default());
    let mut found_together = 0;
    for seed in 0..20 {
        let network = SimNetwork::new(seed, hostile());
        let fabrics = mesh::open(&Backend::Sim(network.clone()), 3, |_| {});
        mesh::connect(&fabrics);
        let mut sessions = sessions(&plan, &fabrics, options(Duration::ZERO));
        let (sender, rest) = sessions.split_first_mut().unwrap();
        let receiver = &mut rest[0];
        for _step in 0..STEPS {
            let start = receiver.counters();
            receiver.start(RunId(0));
            // nothing was sent, and all that can run does, before it waits
            assert_eq!(advance_while_able(receiver), Advance::Blocked);
            let (polls, kernels) = since(start, receiver.counters());
            assert_eq!(kernels, OWN);
            // in each round of the queue every Recv is asked once, and in each but the last the next node
            // of the longest chain runs: an input and its kernels
            assert!(polls <= RECVS * (1 + CHAIN + 1), "{polls} polls");
            sender.start(RunId(0));
            let (mut is_sent, mut blocked) = (false, 0);
            loop {
                is_sent = is_sent || advance_while_able(sender) == Advance::Finished;
                let before = receiver.counters();
                let advanced = advance_while_able(receiver);
                let (polls, kernels) = since(before, receiver.counters());
                let misses = receiver.counters().poll_misses - before.poll_misses;
                // what was found was computed at once, before it waited again
                assert_eq!(polls - misses, kernels);
                found_together += u64::from(kernels > 1);
                if is_sent && advanced == Advance::Finished {
                    break;
                }
                blocked += 1;
                network.advance();
            }
            // no Recv is asked twice between two things that it did or waited for; a node takes one turn
            // that does something, a Send two: it is posted, and it is over
            let total = receiver.counters();
            let did = 2 * plan.runs[0].nodes[1].len() as u64;
            let misses = total.poll_misses - start.poll_misses;
            assert!(misses <= RECVS * (did + blocked + 1), "{misses} polls in vain");
            assert_eq!(since(start, total).1, OWN + RECVS);
        }
    }
    assert!(found_together > 0, "several tensors were found between two waits");
}
