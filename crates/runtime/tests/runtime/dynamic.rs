//! Tensors whose size is known only when they exist (Xue et al. §3.3), over every fabric: all that may
//! cross crosses, nothing leaks, and what a peer announces is believed only as far as the plan agrees.

use crate::support::parts::{BACKENDS, Parts, each_on_a_thread, feed, open, open_all, patient};
use crate::support::{self, DYNAMIC_BYTES_MAX, read};
use tensorwire_base::Rank;
use tensorwire_fabric::{
    Direction, Fabric, LocalSlice, Memcpy, RegionDescriptor, RemoteSlice, Signal,
};
use tensorwire_graph::{Hint, Lane, Op, Output, Plan, PlanOptions, ReuseRule, RunId, Transfer};
use tensorwire_memory::{Arena, LoanError, Place};
use tensorwire_runtime::{
    Advance, AllocError, ConnectEdgesError, ExchangeError, LaneUse, OneSided, OneSidedOptions,
    Opening, RunError, Sending, Session, SessionError, Storage, TensorExchange,
};
use tensorwire_tensor::{DType, Dim, RANK_MAX};
use tensorwire_testkit::mesh;

const STEP: RunId = RunId(0);
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8];
const WORKERS: [Hint; 2] = [Hint::Replica(0), Hint::Replica(1)];

/// The byte of a tensor in a step: no two tensors, steps or places have the same pattern.
fn byte(tensor: usize, step: usize, at: usize) -> u8 {
    let mixed = (at + (step << 24) + (tensor << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 // the top byte is meant
}

fn flat(symbol: u32) -> Op {
    Op::Reshape { to: vec![open(symbol)] }
}

/// The tensor that was received from `task` under the name `name`.
fn received(session: &Session, name: &str, task: &str) -> Output {
    session.node(&format!("recv {name} from {task}")).unwrap().into()
}

#[test]
fn every_type_and_rank_crosses_and_dimensions_change_every_step() {
    let mut parts = Parts::new(2);
    let mut names = Vec::new();
    let is_open = |at: usize| at.is_multiple_of(2);
    for dtype in DTYPES {
        for rank in 1..=RANK_MAX {
            let dim = |at: usize| if is_open(at) { open(at as u32) } else { Dim::Known(2) };
            let name = format!("{dtype}^{rank}");
            let dims: Vec<Dim> = (0..rank).map(dim).collect();
            let x = parts.input(&name, WORKERS[0], dtype, &dims);
            parts.root(&format!("flat {name}"), WORKERS[1], flat(99), &[x]);
            names.push((name, rank));
        }
    }
    let plan = parts.plan(PlanOptions::default());
    let dynamic = plan.edges.iter().filter(|edge| edge.transfer == Transfer::Dynamic).count();
    assert_eq!(dynamic, DTYPES.len() * RANK_MAX);
    let dims_in = |rank: usize, step: usize| -> Vec<usize> {
        (0..rank).map(|at| if is_open(at) { (at / 2 + step) % 3 } else { 2 }).collect()
    };
    for (backend, make) in BACKENDS {
        let (mut sessions, fabrics) = open_all(&plan, make, |_| DYNAMIC_BYTES_MAX);
        each_on_a_thread(&mut sessions, |part, session| {
            for step in 0..6 {
                for (tensor, (name, rank)) in names.iter().enumerate() {
                    feed(session, name, &dims_in(*rank, step), |at| byte(tensor, step, at));
                }
                session.run(STEP).unwrap();
                for (tensor, (name, rank)) in names.iter().enumerate().filter(|_| part == 1) {
                    let (spec, bytes) = session.read(received(session, name, "worker 0")).unwrap();
                    assert_eq!(spec.dims(), dims_in(*rank, step), "{backend}, {name}, step {step}");
                    let found = (0..bytes.len()).find(|at| bytes[*at] != byte(tensor, step, *at));
                    assert_eq!(found, None, "{backend}, {name}, step {step}: the first wrong byte");
                }
            }
        });
        mesh::close(&fabrics);
    }
}

/// Rows of 3 f32 in each step: 1 KiB, then 8 MiB, then nothing, then everything in between.
const ROWS: [usize; 9] = [86, 699_051, 1, 0, 20_000, 699_051, 5, 700, 0];

/// x goes from worker 0 to worker 1 and to the server, which scales it and sends it on to worker 1;
/// y goes from worker 1 to worker 0.
fn triangle() -> Parts {
    let mut parts = Parts::new(2);
    let server = parts.server;
    let x = parts.input("x", WORKERS[0], DType::F32, &[open(0), Dim::Known(3)]);
    let y = parts.input("y", WORKERS[1], DType::F32, &[open(1)]);
    let two = parts.input("two", server, DType::F32, &[]);
    parts.root("x at worker", WORKERS[1], Op::Relu, &[x]);
    let scaled = parts.add("scaled", server, Op::ScaleBy, &[x, two]);
    parts.root("scaled at worker", WORKERS[1], Op::Relu, &[scaled]);
    parts.root("y at worker", WORKERS[0], flat(2), &[y]);
    parts
}

fn element(step: usize, at: usize) -> f32 {
    ((at * 31 + step * 7) % 1_048_573) as f32
}

fn feed_elements(session: &mut Session, name: &str, dims: &[usize], step: usize) {
    feed(session, name, dims, |at| element(step, at / 4).to_le_bytes()[at % 4]);
}

#[test]
fn sizes_grow_and_shrink_between_several_parts_and_nothing_leaks() {
    let plan = triangle().plan(PlanOptions::default());
    assert_eq!(plan.traffic(STEP).dynamic, 4);
    for (backend, make) in BACKENDS {
        let (mut sessions, fabrics) = open_all(&plan, make, |_| DYNAMIC_BYTES_MAX);
        each_on_a_thread(&mut sessions, |part, session| {
            if part == 2 {
                support::write(session, "two", &[2f32]);
            }
            for (step, rows) in ROWS.into_iter().enumerate() {
                feed_elements(session, "x", &[rows, 3], step);
                feed_elements(session, "y", &[rows], step + 100);
                session.run(STEP).unwrap();
                let verify = |name: &str, count: usize, expected: &dyn Fn(usize) -> f32| {
                    let found = read::<f32>(session, name);
                    assert_eq!(found.len(), count, "{backend}, {name}, step {step}");
                    let wrong = (0..count).find(|at| found[*at] != expected(*at));
                    assert_eq!(wrong, None, "{backend}, {name}, step {step}: the first wrong one");
                };
                match part {
                    0 => verify("y at worker", rows, &|at| element(step + 100, at)),
                    1 => {
                        verify("x at worker", rows * 3, &|at| element(step, at));
                        verify("scaled at worker", rows * 3, &|at| 2.0 * element(step, at));
                    }
                    _ => {}
                }
            }
        });
        for (part, session) in sessions.iter().enumerate() {
            for lane in [Lane::Registered, Lane::Private] {
                // the last tensors are empty: whatever else were in use had leaked
                let LaneUse { in_use, peak, .. } = session.dynamic_use(lane);
                assert_eq!(in_use, 0, "{backend}, part {part}, {lane:?}");
                // two tensors of the largest size are the most that any part has in a lane
                assert!(peak <= 2 * (8 << 20) + (4 << 20), "{backend}, part {part}: {peak}");
            }
            let registered = session.dynamic_use(Lane::Registered);
            assert!(registered.peak >= 2_796_204, "{backend}, part {part}: {registered:?}");
        }
        mesh::close(&fabrics);
    }
}

/// One dynamic edge from worker 0 to worker 1: x, of these dimensions.
fn one_edge(dtype: DType, dims: &[Dim]) -> Plan {
    let mut parts = Parts::new(2);
    let x = parts.input("x", WORKERS[0], dtype, dims);
    parts.root("flat", WORKERS[1], flat(9), &[x]);
    // nothing is read here while another step goes on
    parts.plan(PlanOptions { reuse: ReuseRule::Trusted, ..PlanOptions::default() })
}

/// Starts a run of a sender and lets it do all it can without its receiver.
fn send(session: &mut Session) {
    session.start(STEP);
    // a queue that is full now and then has room when it is asked again and again
    for _ in 0..100 {
        while session.advance().unwrap() == Advance::Progress {}
    }
}

#[test]
fn a_tensor_larger_than_the_receiver_takes_is_refused() {
    let plan = one_edge(DType::F32, &[open(0)]);
    for (backend, make) in BACKENDS {
        let limits = |part| if part == 1 { 4000 } else { DYNAMIC_BYTES_MAX };
        let (mut sessions, _fabrics) = open_all(&plan, make, limits);
        feed(&mut sessions[0], "x", &[1001], |_| 0);
        send(&mut sessions[0]);
        let error = sessions[1].run(STEP).unwrap_err();
        let RunError::Exchange { step: 1, source: ExchangeError::Metadata { edge, peer, what } } =
            &error
        else {
            panic!("{backend}: {error}")
        };
        assert_eq!((&edge[..], *peer), ("x", Rank(0)), "{backend}");
        assert!(what.contains("4004 bytes") && what.contains("dynamic_bytes_max"), "{what}");
        assert_eq!(sessions[1].dynamic_use(Lane::Registered), LaneUse::default(), "{backend}");
    }
}

#[test]
fn an_arena_that_is_full_says_what_did_not_fit_and_what_to_raise() {
    let mut parts = Parts::new(2);
    for name in ["x", "y"] {
        let input = parts.input(name, WORKERS[0], DType::U8, &[open(0)]);
        parts.root(&format!("flat {name}"), WORKERS[1], flat(9), &[input]);
    }
    let plan = parts.plan(PlanOptions::default());
    for (backend, make) in BACKENDS {
        let limits = |part| if part == 1 { 1 << 16 } else { DYNAMIC_BYTES_MAX };
        let (mut sessions, _fabrics) = open_all(&plan, make, limits);
        for name in ["x", "y"] {
            feed(&mut sessions[0], name, &[40_000], |_| 0);
        }
        send(&mut sessions[0]);
        let error = sessions[1].run(STEP).unwrap_err();
        let RunError::Memory { step: 1, node, source: AllocError::Exhausted { .. } } = &error
        else {
            panic!("{backend}: {error}")
        };
        assert!(["'x' from worker 0", "'y' from worker 0"].contains(&&node[..]), "{node}");
        let text = error.to_string();
        for part in ["40000 bytes", "registered arena", "at most 65536 bytes", "dynamic_bytes_max"]
        {
            assert!(text.contains(part), "{backend}: {text}");
        }
    }
    // and so does the sender's own
    let (mut sessions, _fabrics) = open_all(&plan, BACKENDS[0].1, |_| 1 << 16);
    let x = sessions[0].node("x").unwrap();
    let error = sessions[0].feed(x.into(), &[65_537]).unwrap_err();
    assert!(matches!(error, SessionError::Memory { .. }), "{error}");
    assert!(error.to_string().contains("65537 bytes do not fit the private arena"), "{error}");
}

#[test]
fn memory_that_lies_idle_in_small_pieces_is_not_exhausted() {
    // each tensor fits, and outgrows all pieces that were reserved for those before it
    let plan = one_edge(DType::U8, &[open(0)]);
    for (backend, make) in BACKENDS {
        let (mut sessions, fabrics) = open_all(&plan, make, |_| 12 << 20);
        each_on_a_thread(&mut sessions, |part, session| {
            for (step, size) in [1, 2, 4, 8, 12, 1, 11].into_iter().enumerate() {
                feed(session, "x", &[size << 20], |at| byte(0, step, at));
                session.run(STEP).unwrap();
                if part == 1 {
                    let (_, bytes) = session.read(received(session, "x", "worker 0")).unwrap();
                    assert_eq!(bytes.len(), size << 20, "{backend}");
                    let wrong = (0..bytes.len()).find(|at| bytes[*at] != byte(0, step, *at));
                    assert_eq!(wrong, None, "{backend}, step {step}: the first wrong byte");
                }
            }
        });
        mesh::close(&fabrics);
    }
}

#[test]
fn parts_that_disagree_about_a_tensor_notice_it() {
    let believed = [open(0), Dim::Known(3)];
    let wrong: [(DType, &[Dim], &[usize], &str); 3] = [
        (DType::F32, &[open(0)], &[6], "1 dimensions, the plan says 2"),
        (DType::I32, &[open(0), Dim::Known(3)], &[2, 3], "elements are i32, the plan says f32"),
        (DType::F32, &[open(0), Dim::Known(4)], &[2, 4], "dimension 1 is 4, the plan says 3"),
    ];
    let mine = one_edge(DType::F32, &believed);
    for (backend, make) in BACKENDS {
        for (dtype, dims, fed, says) in wrong {
            let theirs = one_edge(dtype, dims);
            let fabrics = mesh::mesh(make, 3);
            let opening = |(part, plan): (usize, &Plan)| {
                let told = OneSidedOptions::new(plan, 4, DYNAMIC_BYTES_MAX);
                Opening::new(&fabrics[part], plan, part, told, mesh::soon()).unwrap()
            };
            let openings = [&theirs, &mine].into_iter().enumerate().map(opening).collect();
            let opened = Opening::complete_all(openings, mesh::soon()).unwrap();
            let mut sessions = opened.into_iter().zip([&theirs, &mine]).enumerate().map(
                |(part, (exchange, plan))| {
                    support::try_session(plan, part, Some(exchange), patient()).unwrap()
                },
            );
            let (mut sender, mut receiver) = (sessions.next().unwrap(), sessions.next().unwrap());
            feed(&mut sender, "x", fed, |_| 1);
            send(&mut sender);
            let error = receiver.run(STEP).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(says), "{backend}: {text}");
            assert!(text.starts_with("step 1: rank 0 announced 'x'"), "{backend}: {text}");
            assert_eq!(receiver.dynamic_use(Lane::Registered), LaneUse::default(), "{backend}");
        }
    }
}

#[test]
fn parts_that_disagree_whether_a_size_is_known_notice_it_before_the_first_step() {
    let dynamic = one_edge(DType::F32, &[open(0)]);
    let fixed = one_edge(DType::F32, &[Dim::Known(5)]);
    for (theirs, mine) in [(&dynamic, &fixed), (&fixed, &dynamic)] {
        let fabrics = mesh::mesh(BACKENDS[0].1, 3);
        let opening = |(part, plan): (usize, &Plan)| {
            let told = OneSidedOptions::new(plan, 4, DYNAMIC_BYTES_MAX);
            Opening::new(&fabrics[part], plan, part, told, mesh::soon()).unwrap()
        };
        let openings = [theirs, mine].into_iter().enumerate().map(opening).collect();
        let error = Opening::complete_all(openings, mesh::soon()).unwrap_err();
        assert!(matches!(error, ConnectEdgesError::Nonsense { .. }), "{error}");
        assert!(error.to_string().contains("'x'"), "{error}");
    }
}

/// A peer that has introduced itself as the plan's worker 0 and writes what it likes.
struct Forger<'a> {
    fabric: &'a Fabric,
    /// The victim's slots for metadata, and the arrival slot and the place of its edge.
    slots: RegionDescriptor,
    arrival: u32,
    offset: u64,
}

impl Forger<'_> {
    /// Speaks for part 0 of a plan with one dynamic edge, and opens part 1.
    fn meet<'a>(fabrics: &'a [Fabric], plan: &Plan) -> (Forger<'a>, Session) {
        let (forger, exchange) = Forger::connect(fabrics, plan);
        (forger, support::try_session(plan, 1, Some(exchange), patient()).unwrap())
    }

    /// The same, and the exchange of part 1 alone.
    fn connect<'a>(fabrics: &'a [Fabric], plan: &Plan) -> (Forger<'a>, (OneSided, Storage)) {
        let told = OneSidedOptions::new(plan, 4, 1 << 16);
        let opening = Opening::new(&fabrics[1], plan, 1, told, mesh::soon()).unwrap();
        let fabric = &fabrics[0];
        let ack = fabric.alloc_arrival().unwrap();
        let lane = fabric.alloc_region(4096).unwrap();
        // the introduction: lane, slots, where it hears of a step that is given up, no devices, and the one edge where it awaits
        // acknowledgements
        let mut body = lane.descriptor().to_bytes().repeat(2);
        let withdrawal = fabric.alloc_arrival().unwrap();
        body.extend_from_slice(&withdrawal.0.to_le_bytes());
        body.extend_from_slice(&0u64.to_le_bytes());
        body.extend_from_slice(&0u32.to_le_bytes());
        body.extend_from_slice(&ack.0.to_le_bytes());
        body.extend_from_slice(&[0; 16]);
        fabric.channel(Rank(1), 0).unwrap().send_message(&body, mesh::soon()).unwrap();
        let exchange = opening.complete(mesh::soon()).unwrap();
        let heard = fabric.receive_message(mesh::soon()).unwrap().body;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| heard[at + i]));
        let forger = Forger {
            fabric,
            slots: RegionDescriptor::from_bytes(&heard[16..32]).unwrap(),
            arrival: (word(44) >> 32) as u32,
            offset: word(52),
        };
        (forger, exchange)
    }

    /// Writes a slot of these words and two bytes, and says that the first tensor is there.
    fn announce(&self, slot: &[u8; 128]) {
        let channel = self.fabric.channel(Rank(1), 0).unwrap();
        let remote = channel.open_region(&self.slots, mesh::soon()).unwrap();
        let source = self.fabric.alloc_region(128).unwrap();
        let place = Place { offset: 0, bytes: 128 };
        let buffer = Arena::new(&source.slab(), &[place]).unwrap().into_buffers().remove(0);
        buffer.write().unwrap().copy_from_slice(slot);
        channel
            .memcpy(Memcpy {
                local: LocalSlice { region: &source, offset: 0 },
                remote: RemoteSlice { region: &remote, offset: self.offset },
                bytes: 128,
                direction: Direction::Write,
                signal: Some(Signal {
                    slot: tensorwire_fabric::ArrivalSlot(self.arrival),
                    epoch: 1,
                }),
                token: 0,
            })
            .unwrap();
        mesh::completions(self.fabric, 1);
    }
}

/// Epoch, region (key, bytes), offset; element type and rank; dimensions.
type Words = ([u64; 4], [u8; 2], [u64; 2]);

fn slot((head, kind, dims): Words) -> [u8; 128] {
    let mut slot = [0; 128];
    for (at, word) in [0, 8, 16, 24].into_iter().zip(head).chain([40, 48].into_iter().zip(dims)) {
        slot[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
    }
    slot[32..34].copy_from_slice(&kind);
    slot
}

#[test]
fn a_forged_slot_is_an_error_and_never_an_allocation() {
    let plan = one_edge(DType::F32, &[open(0), open(1)]);
    let forgeries: [(Words, &str); 10] = [
        (([0; 4], [0; 2], [0; 2]), "of tensor 0, 1 is awaited"),
        (([u64::MAX, 7, 4096, 0], [1, 2], [1, 1]), "1 is awaited"),
        (([1, 7, 4096, 0], [0, 2], [1, 1]), "no element type 0"),
        (([1, 7, 4096, 0], [255, 2], [1, 1]), "no element type 255"),
        (([1, 7, 4096, 0], [2, 2], [1, 1]), "elements are f64"),
        (([1, 7, 4096, 0], [1, 255], [1, 1]), "255 dimensions"),
        (([1, 7, u64::MAX, 0], [1, 2], [1 << 40, 1]), "dynamic_bytes_max"),
        (([1, 7, u64::MAX, 0], [1, 2], [u64::MAX, u64::MAX]), "more bytes than this machine"),
        (([1, 7, u64::MAX, 0], [1, 2], [0, u64::MAX]), "more bytes than this machine"),
        (([1, 7, 4096, u64::MAX - 3], [1, 2], [1, 1]), "outside of its region"),
    ];
    for (backend, make) in BACKENDS {
        for (words, says) in forgeries {
            let fabrics = mesh::mesh(make, 3);
            let (forger, mut session) = Forger::meet(&fabrics, &plan);
            forger.announce(&slot(words));
            let text = session.run(STEP).unwrap_err().to_string();
            assert!(text.starts_with("step 1: rank 0 announced 'x'"), "{backend}: {text}");
            assert!(text.contains(says), "{backend}: {text}");
            assert_eq!(session.dynamic_use(Lane::Registered), LaneUse::default(), "{backend}");
        }
    }
}

#[test]
fn a_region_that_the_announcer_does_not_have_is_not_read() {
    let plan = one_edge(DType::F32, &[open(0), open(1)]);
    for (backend, make) in BACKENDS {
        let announced = |change: fn(RegionDescriptor) -> RegionDescriptor| {
            let fabrics = mesh::mesh(make, 3);
            let (forger, mut session) = Forger::meet(&fabrics, &plan);
            let region = forger.fabric.alloc_region(64).unwrap();
            let RegionDescriptor { key, bytes } = change(region.descriptor());
            forger.announce(&slot(([1, key, bytes, 0], [1, 2], [4, 4])));
            session.run(STEP).map(|()| read::<f32>(&session, "flat"))
        };
        let unknown = announced(|real| RegionDescriptor { key: real.key ^ 1, ..real });
        let too_long = announced(|real| RegionDescriptor { bytes: 4096, ..real });
        for error in [unknown.unwrap_err(), too_long.unwrap_err()] {
            let RunError::Exchange { source: ExchangeError::Open { edge, peer, .. }, .. } = &error
            else {
                panic!("{backend}: {error}")
            };
            assert_eq!((&edge[..], *peer), ("x", Rank(0)), "{backend}");
        }
        assert_eq!(announced(|real| real).unwrap(), [0.0; 16], "{backend}: what is there is read");
    }
}

#[test]
fn nobody_sees_what_a_read_fills_before_it_is_over() {
    let plan = one_edge(DType::F32, &[open(0), open(1)]);
    let edge = plan.edges[0].id;
    for (backend, make) in BACKENDS {
        let fabrics = mesh::mesh(make, 3);
        let (forger, (mut exchange, _storage)) = Forger::connect(&fabrics, &plan);
        let region = forger.fabric.alloc_region(64).unwrap();
        let RegionDescriptor { key, bytes } = region.descriptor();
        forger.announce(&slot(([1, key, bytes, 0], [1, 2], [4, 4])));
        let (deadline, mut finished) = (mesh::soon(), Vec::new());
        while !exchange.arrived(edge, 1).unwrap() {
            exchange.finished(&mut finished).unwrap();
            assert!(!deadline.passed(), "{backend}: no announcement came");
        }
        exchange.announced(edge, 1).unwrap();
        let slab = exchange.alloc(64).unwrap();
        let place = Place { offset: 0, bytes: 64 };
        let into = Arena::new(&slab, &[place]).unwrap().into_buffers().remove(0);
        assert_eq!(exchange.fetch(edge, 1, &into, deadline).unwrap(), Sending::Started);
        assert_eq!(into.read().unwrap_err(), LoanError::BeingWritten, "{backend}");
        while finished.is_empty() {
            exchange.finished(&mut finished).unwrap();
            assert!(!deadline.passed(), "{backend}: the read does not end");
        }
        assert_eq!(*into.read().unwrap(), [0; 64], "{backend}");
    }
}

#[test]
fn an_input_is_fed_as_the_graph_says_or_the_caller_is_told() {
    let plan = one_edge(DType::F32, &[open(0), Dim::Known(3)]);
    let (mut sessions, _fabrics) = open_all(&plan, BACKENDS[0].1, |_| DYNAMIC_BYTES_MAX);
    let sender = &mut sessions[0];
    let x = sender.node("x").unwrap();
    for dims in [&[2, 4][..], &[2], &[2, 3, 1], &[], &[usize::MAX, 3]] {
        let error = sender.feed(x.into(), dims).unwrap_err();
        assert!(matches!(error, SessionError::Dims { .. }), "{error}");
        assert!(error.to_string().starts_with("'x' is f32"), "{error}");
    }
    assert_eq!(sender.dynamic_use(Lane::Private), LaneUse::default());
    let error = sender.run(STEP).unwrap_err();
    assert!(matches!(error, RunError::NotFed { step: 1, .. }), "{error}");
    assert!(error.to_string().contains("'x' has no value"), "{error}");
}
