//! Allocation-site tracing (Xue et al. §3.4): who allocates a tensor is not who sends it where operators
//! work in place. The first step copies and notes the site; from the second on nothing is copied.

use crate::support::parts::{BACKENDS, Parts, each_on_a_thread, feed, open, open_all};
use crate::support::{DYNAMIC_BYTES_MAX, read};
use tensorwire_graph::{Hint, Lane, Op, Output, PlanOptions, RunId, SendFrom};
use tensorwire_tensor::{DType, Dim};
use tensorwire_testkit::mesh;

const STEP: RunId = RunId(0);
const HERE: Hint = Hint::Replica(0);
const THERE: Hint = Hint::Replica(1);
const PRODUCT: Op = Op::MatMul { transpose_a: false, transpose_b: false };
const ROWS: usize = 5;
const COLUMNS: usize = 7;
const DEPTH: usize = 4;
/// Bytes that cross in a step.
const BYTES: u64 = (ROWS * COLUMNS * 4) as u64;

/// The sender's bytes copied after each step, and what the receiver found in each.
struct Found {
    copied: Vec<u64>,
    values: Vec<Vec<f32>>,
}

/// Is the number of rows known to the plan?
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    Known,
    Open,
}

/// x·w + b, its positive part times s, all of it one row: the product allocates, and three operators in
/// place and a view later the tensor is sent.
fn chain(rows: Rows) -> Parts {
    let (row, flat) = match rows {
        Rows::Known => (Dim::Known(ROWS), Dim::Known(ROWS * COLUMNS)),
        Rows::Open => (open(0), open(1)),
    };
    let mut parts = Parts::new(2);
    let x = parts.input("x", HERE, DType::F32, &[row, Dim::Known(DEPTH)]);
    let w = parts.input("w", HERE, DType::F32, &[Dim::Known(DEPTH), Dim::Known(COLUMNS)]);
    let b = parts.input("b", HERE, DType::F32, &[Dim::Known(COLUMNS)]);
    let s = parts.input("s", HERE, DType::F32, &[]);
    let y = parts.add("product", HERE, PRODUCT, &[x, w]);
    let y = parts.add("biased", HERE, Op::BiasAdd, &[y, b]);
    let y = parts.add("positive", HERE, Op::Relu, &[y]);
    let y = parts.add("scaled", HERE, Op::ScaleBy, &[y, s]);
    let y = parts.add("flat", HERE, Op::Reshape { to: vec![flat] }, &[y]);
    parts.root("found", THERE, Op::Relu, &[y]);
    parts
}

fn value(step: usize, at: usize) -> [u8; 4] {
    (((step * 17 + at * 29) % 23) as f32 / 7.0 - 1.0).to_le_bytes()
}

fn run(parts: &Parts, send_from: SendFrom, backend: usize) -> Found {
    let plan = parts.plan(PlanOptions { send_from, ..PlanOptions::default() });
    let (mut sessions, fabrics) = open_all(&plan, BACKENDS[backend].1, |_| DYNAMIC_BYTES_MAX);
    let (copied, values) = (std::sync::Mutex::new(Vec::new()), std::sync::Mutex::new(Vec::new()));
    each_on_a_thread(&mut sessions, |part, session| {
        for step in 0..5 {
            let fed: [(&str, &[usize]); 4] =
                [("x", &[ROWS, DEPTH]), ("w", &[DEPTH, COLUMNS]), ("b", &[COLUMNS]), ("s", &[])];
            for (name, dims) in fed {
                feed(session, name, dims, |at| value(step, at / 4)[at % 4]);
            }
            session.run(STEP).unwrap();
            match part {
                0 => copied.lock().unwrap().push(session.copies().bytes()),
                1 => values.lock().unwrap().push(read::<f32>(session, "found")),
                _ => {}
            }
            assert!(part == 0 || session.copies().bytes() == 0, "only the sender may copy");
        }
    });
    mesh::close(&fabrics);
    Found { copied: copied.into_inner().unwrap(), values: values.into_inner().unwrap() }
}

#[test]
fn a_tensor_that_was_allocated_three_operators_earlier_is_copied_once_and_never_again() {
    for (backend, (name, _)) in BACKENDS.iter().enumerate() {
        let traced = run(&chain(Rows::Open), SendFrom::Origin, backend);
        assert_eq!(traced.copied, [BYTES; 5], "{name}: the first step copies, no other does");
        let copying = run(&chain(Rows::Open), SendFrom::Staging, backend);
        assert_eq!(copying.copied, [1, 2, 3, 4, 5].map(|step| step * BYTES), "{name}");
        let planned = run(&chain(Rows::Known), SendFrom::Origin, backend);
        assert_eq!(planned.copied, [0; 5], "{name}: the plan knew");
        let planned_copying = run(&chain(Rows::Known), SendFrom::Staging, backend);
        assert_eq!(planned_copying.copied, copying.copied, "{name}");
        // the same bits whoever allocates, and other bits in each step
        for other in [&copying, &planned, &planned_copying] {
            assert_eq!(traced.values, other.values, "{name}");
        }
        assert!(traced.values.windows(2).all(|pair| pair[0] != pair[1]), "{name}");
        assert!(traced.values.iter().flatten().any(|value| *value > 0.0), "{name}");
    }
}

#[test]
fn every_receiver_of_a_tensor_has_its_copy_once() {
    let mut parts = Parts::new(2);
    let server = parts.server;
    let x = parts.input("x", HERE, DType::F32, &[open(0)]);
    let y = parts.add("y", HERE, Op::Relu, &[x]);
    parts.root("found", THERE, Op::Relu, &[y]);
    parts.root("found too", server, Op::Relu, &[y]);
    let plan = parts.plan(PlanOptions::default());
    let (mut sessions, fabrics) = open_all(&plan, BACKENDS[0].1, |_| DYNAMIC_BYTES_MAX);
    each_on_a_thread(&mut sessions, |part, session| {
        // dimensions may change: what is traced is the site
        for (step, rows) in [10, 300, 0, 7].into_iter().enumerate() {
            feed(session, "x", &[rows], |at| value(step, at / 4)[at % 4]);
            session.run(STEP).unwrap();
            assert_eq!(session.copies().bytes(), if part == 0 { 2 * 40 } else { 0 });
        }
    });
    mesh::close(&fabrics);
}

#[test]
fn an_operator_that_is_not_in_place_is_a_site_of_its_own() {
    const WIDE: usize = 512;
    let mut parts = Parts::new(2);
    let input = |parts: &mut Parts, name: &str, dims: &[Dim]| -> Output {
        parts.input(name, HERE, DType::F32, dims)
    };
    let x = input(&mut parts, "x", &[open(0), Dim::Known(1)]);
    let w = input(&mut parts, "w", &[Dim::Known(1), Dim::Known(WIDE)]);
    let v = input(&mut parts, "v", &[Dim::Known(WIDE), Dim::Known(1)]);
    let wide = parts.add("wide", HERE, PRODUCT, &[x, w]);
    let wide = parts.add("wide relu", HERE, Op::Relu, &[wide]);
    let narrow = parts.add("narrow", HERE, PRODUCT, &[wide, v]);
    let narrow = parts.add("narrow relu", HERE, Op::Relu, &[narrow]);
    parts.root("found", THERE, Op::Relu, &[narrow]);
    let plan = parts.plan(PlanOptions::default());
    let (mut sessions, fabrics) = open_all(&plan, BACKENDS[0].1, |_| DYNAMIC_BYTES_MAX);
    each_on_a_thread(&mut sessions, |part, session| {
        for step in 0..4 {
            for (name, dims) in [("x", [16, 1]), ("w", [1, WIDE]), ("v", [WIDE, 1])] {
                feed(session, name, &dims, |at| value(step, at / 4)[at % 4]);
            }
            session.run(STEP).unwrap();
            assert_eq!(session.copies().bytes(), if part == 0 { 16 * 4 } else { 0 });
        }
    });
    // what crosses is 64 bytes; the wide product stays this process's own
    assert_eq!(sessions[0].dynamic_use(Lane::Registered).peak, 64);
    assert!(sessions[0].dynamic_use(Lane::Private).peak >= 16 * WIDE * 4);
    mesh::close(&fabrics);
}
