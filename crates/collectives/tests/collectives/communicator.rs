//! Communicators over every fabric: all calls on memory of anybody and of the group's own, in any order of memory, and what
//! goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::communicator::{
    CallKind, Communicator, CommunicatorCall, CommunicatorError, CommunicatorOptions, Operation,
    Parts,
};
use tensorwire_collectives::{Group, GroupOptions};
use tensorwire_fabric::Fabric;
use tensorwire_memory::{Arena, Buffer, CopyPurpose, Place, Slab};
use tensorwire_testkit::mesh::soon;

use crate::support::{Mean, SHM, TCP, any_order, numbers, write};

/// Runs what `body` does as every member.
fn with_communicator(fabrics: Vec<Fabric>, body: impl Fn(&Communicator) + Sync) {
    let ranks: Vec<Rank> = (0..fabrics.len() as u32).map(Rank).collect();
    let names: Vec<String> =
        ranks.iter().map(|rank| format!("rank {rank} on host{rank}")).collect();
    // small lanes: short vectors go in several chunks
    let options = CommunicatorOptions { lanes: 3, lane_bytes: 4096 };
    let group_options = GroupOptions { deterministic: true, ..GroupOptions::default() };
    thread::scope(|scope| {
        for (me, fabric) in fabrics.into_iter().enumerate() {
            let (ranks, body, names) = (&ranks, &body, names.clone());
            let (options, group_options) = (&options, group_options.clone());
            scope.spawn(move || {
                let group = Group::open(fabric, ranks, me, group_options, soon()).unwrap();
                let communicator = Communicator::new(group, names, options, soon()).unwrap();
                body(&communicator);
                // who is still at it may be waiting for this one
                let _ = communicator.close(soon());
            });
        }
    });
}

/// Memory that no group gave.
fn foreign(len: usize) -> Buffer {
    let bytes = 4 * len;
    let slab = Slab::anonymous(bytes.max(1)).unwrap();
    Arena::new(&slab, &[Place { offset: 0, bytes }]).unwrap().into_buffers().remove(0)
}

/// The number at `at` of what a member has for another in a round.
fn given(round: usize, from: usize, to: usize, at: usize) -> f32 {
    (round * 1000 + from * 100 + to * 10) as f32 + (at % 7) as f32
}

fn fill(buffer: &Buffer, numbers: impl Iterator<Item = f32>) {
    write(&mut buffer.write().unwrap(), numbers);
}

fn check(buffer: &Buffer, wanted: impl Iterator<Item = f32>, what: &str) {
    let found: Vec<f32> = numbers(&buffer.read().unwrap()).collect();
    let wanted: Vec<f32> = wanted.take(found.len()).collect();
    assert_eq!(found, wanted, "{what}");
}

fn wait(communicator: &Communicator, operation: &Operation) -> Result<(), CommunicatorError> {
    communicator.wait(operation, None, || true).map(|_| ())
}

/// What a call is made on: memory of others, or of the group, and what becomes of it.
struct Case {
    kind: CallKind,
    len: usize,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    whole: bool,
}

fn every_kind(size: usize) -> Vec<CallKind> {
    use CallKind::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let root = size - 1;
    vec![
        AllReduce,
        Broadcast { root },
        Reduce { root },
        AllGather,
        Gather { root },
        Scatter { root },
        ReduceScatter,
        AllToAll,
        Barrier,
    ]
}

impl Case {
    /// `own`: memory of the group, in one piece.
    fn new(c: &Communicator, kind: CallKind, round: usize, len: usize, own: bool) -> Case {
        let (me, size) = (c.me(), c.size());
        let memory = |count: usize| match own && count > 0 {
            true => vec![c.alloc(4 * len * count).unwrap()],
            false => (0..count).map(|_| foreign(len)).collect(),
        };
        let at_root = |root: usize| if me == root { size } else { 0 };
        let (inputs, outputs) = match kind {
            CallKind::AllReduce | CallKind::Broadcast { .. } | CallKind::Reduce { .. } => (0, 1),
            CallKind::AllGather => (1, size),
            CallKind::Gather { root } => (1, at_root(root)),
            CallKind::Scatter { root } => (at_root(root), 1),
            CallKind::ReduceScatter => (size, 1),
            CallKind::AllToAll => (size, size),
            CallKind::Barrier => (0, 0),
        };
        let case = Case { kind, len, inputs: memory(inputs), outputs: memory(outputs), whole: own };
        let all = |to: usize| (0..len).map(move |at| given(round, me, to, at));
        let is_in_place = matches!(
            kind,
            CallKind::AllReduce | CallKind::Broadcast { .. } | CallKind::Reduce { .. }
        );
        for (to, buffer) in case.inputs.iter().enumerate() {
            let parts = if own { inputs } else { 1 };
            fill(buffer, (to..to + parts).flat_map(all));
        }
        for buffer in case.outputs.iter().filter(|_| is_in_place) {
            fill(buffer, all(0));
        }
        case
    }

    fn call(&self) -> CommunicatorCall {
        let parts = |buffers: &[Buffer]| match buffers {
            [] => Parts::None,
            [one] if self.whole => Parts::Whole(one.clone()),
            each => Parts::Each(each.to_vec()),
        };
        let reduces = matches!(
            self.kind,
            CallKind::AllReduce | CallKind::Reduce { .. } | CallKind::ReduceScatter
        );
        let bytes = if self.kind == CallKind::Barrier { 0 } else { 4 * self.len };
        CommunicatorCall {
            kind: self.kind,
            bytes,
            reducer: reduces.then(|| Arc::new(Mean) as _),
            elements: "f32".to_string(),
            inputs: parts(&self.inputs),
            outputs: parts(&self.outputs),
        }
    }

    fn verify(&self, round: usize, me: usize, size: usize) {
        let len = self.len;
        let mean = |to: usize| {
            (0..len).map(move |at| {
                let sum = (0..size).map(|from| given(round, from, to, at)).sum::<f32>();
                sum * (1.0 / size as f32)
            })
        };
        let from = |from: usize, to: usize| (0..len).map(move |at| given(round, from, to, at));
        let what = format!("{:?} of {len} in round {round} at {me} of {size}", self.kind);
        let wanted: Vec<Box<dyn Iterator<Item = f32>>> = match self.kind {
            CallKind::AllReduce => vec![Box::new(mean(0))],
            CallKind::Broadcast { root } => vec![Box::new(from(root, 0))],
            CallKind::Reduce { root } if root == me => vec![Box::new(mean(0))],
            CallKind::AllGather => (0..size).map(|j| Box::new(from(j, 0)) as _).collect(),
            CallKind::Gather { root } if root == me => {
                (0..size).map(|j| Box::new(from(j, 0)) as _).collect()
            }
            CallKind::Scatter { root } => vec![Box::new(from(root, me))],
            CallKind::ReduceScatter => vec![Box::new(mean(me))],
            CallKind::AllToAll => (0..size).map(|j| Box::new(from(j, me)) as _).collect(),
            _ => return,
        };
        match self.outputs.as_slice() {
            [one] if self.whole => check(one, wanted.into_iter().flatten(), &what),
            each => each.iter().zip(wanted).for_each(|(out, wanted)| check(out, wanted, &what)),
        }
    }
}

/// Every call at every length, on both kinds of memory, several under way.
fn every_call(c: &Communicator) {
    let mut under_way = Vec::new();
    let mut round = 0;
    for len in [0, 1, 3, 500, 5000] {
        for kind in every_kind(c.size()) {
            for own in [false, true] {
                let case = Case::new(c, kind, round, len, own);
                let operation = c.start(case.call(), soon()).unwrap();
                under_way.push((case, round, operation));
                round += 1;
            }
        }
        for (case, round, operation) in under_way.drain(..) {
            wait(c, &operation).unwrap();
            case.verify(round, c.me(), c.size());
        }
    }
}

#[test]
fn every_call_over_every_fabric() {
    for size in [1, 2, 3] {
        with_communicator(SHM.mesh(size), every_call);
    }
    for size in [2, 3] {
        with_communicator(TCP.mesh(size), every_call);
    }
    for seed in 0..2 {
        with_communicator(any_order(seed, 3), every_call);
    }
}

/// Pieces of memory are given back and taken again in another order at each member, and some members take foreign memory.
#[test]
fn memory_comes_in_any_order() {
    let in_any_order = |c: &Communicator| {
        let mut state = 88_172_645_463_325_252 + c.me() as u64;
        let mut draw = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let mut held: Vec<Buffer> = Vec::new();
        for round in 0..150 {
            // pieces of other sizes between, which go in any order
            held.push(c.alloc(64 * (1 + draw(200) as usize)).unwrap());
            if held.len() > 6 {
                let at = draw(held.len() as u64) as usize;
                held.remove(at);
            }
            let kinds = [CallKind::AllReduce, CallKind::AllGather, CallKind::ReduceScatter];
            let case = Case::new(c, kinds[round % 3], round, 1 + round * 13, draw(8) > 0);
            let operation = c.start(case.call(), soon()).unwrap();
            wait(c, &operation).unwrap();
            case.verify(round, c.me(), c.size());
        }
        assert!(c.stats().in_place > 10, "{:?}", c.stats());
    };
    with_communicator(SHM.mesh(2), in_any_order);
    with_communicator(TCP.mesh(3), in_any_order);
}

/// In memory of the group nothing is copied; elsewhere what goes through lanes is counted.
#[test]
fn copies_are_counted() {
    let staged = |c: &Communicator| c.stats().copies.of(CopyPurpose::Staging);
    let counted = |c: &Communicator| {
        let run = |own| {
            let case = Case::new(c, CallKind::AllReduce, 1, 5000, own);
            let before = staged(c);
            wait(c, &c.start(case.call(), soon()).unwrap()).unwrap();
            staged(c) - before
        };
        assert_eq!((run(true), run(false)), (0, 2 * 4 * 5000));
    };
    with_communicator(SHM.mesh(2), counted);
    with_communicator(TCP.mesh(2), counted);
}

/// What nobody waits for goes on by itself, and says so.
#[test]
fn operations_move_by_themselves() {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    with_communicator(SHM.mesh(2), |c| {
        let cases: Vec<Case> =
            (0..10).map(|round| Case::new(c, CallKind::AllReduce, round, 9000, false)).collect();
        let operations: Vec<Operation> =
            cases.iter().map(|case| c.start(case.call(), soon()).unwrap()).collect();
        for operation in &operations {
            operation.on_over(|outcome| {
                assert!(outcome.is_ok());
                TOLD.fetch_add(1, Ordering::SeqCst);
            });
        }
        c.move_behind();
        let end = soon();
        while !operations.iter().all(Operation::is_over) {
            assert!(!end.passed(), "operations that nobody waits for do not move");
            thread::sleep(Duration::from_millis(1));
        }
        for (round, case) in cases.iter().enumerate() {
            case.verify(round, c.me(), c.size());
        }
        let end = soon();
        while TOLD.load(Ordering::SeqCst) < 20 {
            assert!(!end.passed(), "not all listeners were told");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// A listener may wait until other operations are told of, those behind its own and new ones: whoever calls it.
#[test]
fn a_listener_may_wait_for_other_operations() {
    for is_waited_for in [false, true] {
        with_communicator(SHM.mesh(2), |c| {
            let case = |round| Case::new(c, CallKind::AllReduce, round, 9000, false);
            let (cases, late) = ([0, 1, 2].map(case), case(3));
            let operations = cases.each_ref().map(|case| c.start(case.call(), soon()).unwrap());
            let (tell, told) = std::sync::mpsc::channel();
            operations[1].on_over(move |_| tell.send(()).unwrap());
            let (all_told, all) = std::sync::mpsc::channel();
            let (inner, call) = (c.clone(), late.call());
            operations[0].on_over(move |_| {
                told.recv_timeout(Duration::from_secs(20)).unwrap();
                let (tell, told) = std::sync::mpsc::channel();
                let operation = inner.start(call, soon()).unwrap();
                operation.on_over(move |_| tell.send(()).unwrap());
                inner.move_behind();
                told.recv_timeout(Duration::from_secs(20)).unwrap();
                all_told.send(()).unwrap();
            });
            c.move_behind();
            if is_waited_for {
                wait(c, &operations[2]).unwrap();
            }
            all.recv_timeout(Duration::from_secs(20)).expect("a listener waits for ever");
            cases.iter().enumerate().for_each(|(at, case)| case.verify(at, c.me(), c.size()));
            late.verify(3, c.me(), c.size());
        });
    }
}

#[test]
fn members_that_call_different_things_all_learn_it() {
    for make in [|| SHM.mesh(3), || TCP.mesh(3)] as [fn() -> Vec<Fabric>; 2] {
        with_communicator(make(), |c| {
            let (kind, len) = match c.me() {
                1 => (CallKind::Broadcast { root: 2 }, 100),
                _ => (CallKind::AllReduce, 100),
            };
            let case = Case::new(c, kind, 0, len, false);
            let operation = c.start(case.call(), soon()).unwrap();
            let said = wait(c, &operation).unwrap_err();
            assert!(matches!(said, CommunicatorError::Differs { .. }), "{said}");
            let said = said.to_string();
            let wanted =
                ["all_reduce(400 bytes of f32)", "broadcast(400 bytes of f32, root 2)", "on host"];
            wanted.iter().for_each(|word| assert!(said.contains(word), "{said}"));
            // and from then on nothing goes
            let again = Case::new(c, CallKind::AllReduce, 1, 1, false);
            assert!(c.start(again.call(), soon()).is_err());
        });
    }
}

#[test]
fn who_does_not_come_is_named() {
    with_communicator(SHM.mesh(3), |c| {
        if c.me() == 1 {
            thread::sleep(Duration::from_millis(700));
            return;
        }
        let case = Case::new(c, CallKind::AllReduce, 0, 100, false);
        let begun = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(300));
        let operation = c.start(case.call(), deadline).unwrap();
        let said = wait(c, &operation).unwrap_err();
        // or the other one, which timed out first, has gone
        let named = ["rank 1 on host1", "rank 2 on host2", "rank 0 on host0"];
        assert!(named.iter().any(|name| said.to_string().contains(name)), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{said}");
    });
}

#[test]
fn who_is_lost_is_named() {
    with_communicator(TCP.mesh(2), |c| {
        if c.me() == 1 {
            return;
        }
        let case = Case::new(c, CallKind::AllReduce, 0, 100_000, false);
        let operation = c.start(case.call(), soon()).unwrap();
        let said = wait(c, &operation).unwrap_err();
        assert!(
            matches!(&said, CommunicatorError::Lost { member, .. } if member == "rank 1 on host1"),
            "{said}"
        );
    });
}

#[test]
fn a_call_that_makes_no_sense_is_refused() {
    with_communicator(SHM.mesh(1), |c| {
        let call = |kind, bytes, outputs| CommunicatorCall {
            kind,
            bytes,
            reducer: None,
            elements: String::new(),
            inputs: Parts::None,
            outputs,
        };
        let one = || Parts::Whole(foreign(4));
        let said = |call| c.start(call, soon()).unwrap_err().to_string();
        assert!(said(call(CallKind::Broadcast { root: 7 }, 16, one())).contains("no root 7"));
        assert!(said(call(CallKind::AllReduce, 16, one())).contains("takes a reducer"));
        assert!(
            said(call(CallKind::Broadcast { root: 0 }, 12, one())).contains("outputs of 12 bytes")
        );
    });
}
