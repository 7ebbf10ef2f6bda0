//! As `agreement.rs`, for the operators that move elements, reduce a dimension, update variables or run
//! over sequences.
//!
//! | operators | agree | because |
//! |---|---|---|
//! | Sub, Mul, Div, Scale, SigmoidGrad, TanhGrad, Dropout, Cast | bit for bit | each element is the same few roundings |
//! | Concat, Slice, Pad, Transpose, Gather | byte for byte, of every type | nothing is rounded |
//! | ReduceGrad, ScatterRows | bit for bit | both add in the same order |
//! | Reduce | bit for bit where a dimension is reduced in its order; a maximum is equal (±0 are) | both do |
//! | Apply but for LAMB (`optimizers.rs`), ApplyRows, ApplyAverage | bit for bit | each element is the same roundings in the same order |
//! | Sigmoid, Tanh | 8·eps of the value | f32: within 4 ulp each (`functions.rs`), f64: the same function |
//! | Softmax | (columns + 16)·eps of the value | a sum of as many terms, grouped differently, and exp as above |
//! | SoftmaxGrad | 2·(columns + 4)·eps·Σ\|dy·y\| | a sum of as many products, grouped differently |
//! | Recurrent | 64·(hidden + 16)·eps | sums of `hidden` products of numbers around 1 in another order, through up to 6 steps that do not widen them |
//! | RecurrentGrad | 256·(rows + 4·hidden)·eps of the largest | as above, and sums over rows |
//! | all with bf16 | bit for bit what f32 gives of the same numbers, rounded | it is computed so |

use crate::common::{
    ADDS_IN_ORDER, Real, Tensor, Values, all, assert_same, cpus, profile, reference, run_all,
    run_one, same_sums, try_run, try_run_in_place,
};
use half::bf16;
use proptest::prelude::*;
use tensorwire_graph::{Cell, Method, Op, Reduction, Rule};
use tensorwire_kernels::check::{self, Tolerance};
use tensorwire_tensor::{DType, Element};

/// All back ends' results of an operator of one output are the same bits, apart and over the first input.
fn same_bits<T: Real>(op: &Op, inputs: &[Tensor], dims: &[usize]) {
    let expected = Tensor::new(dims, &run_one::<T>(&reference(), op, inputs, dims));
    check::agreement(&all(), op, inputs, &[expected], Tolerance::Bits).unwrap();
}

/// All back ends' results differ from the reference's by at most `tolerance` of the expected value, and are the same
/// bits apart and over the first input.
fn near<T: Real>(op: &Op, inputs: &[Tensor], dims: &[&[usize]], tolerance: impl Fn(usize, T) -> T) {
    let expected = run_all::<T>(&reference(), op, inputs, dims);
    let expected: Vec<Tensor> =
        dims.iter().zip(&expected).map(|(dims, made)| Tensor::new(dims, made)).collect();
    let most = |output: usize, _: usize, value: f64| tolerance(output, T::of(value)).into();
    check::agreement(&all(), op, inputs, &expected, Tolerance::Within(&most)).unwrap();
}

fn element_wise<T: Real>(len: usize, seed: u64) {
    let mut values = Values(seed);
    let dims = [len];
    let a = Tensor::new(&dims, &values.odd_reals::<T>(len));
    let b = Tensor::new(&dims, &values.odd_reals::<T>(len));
    for parts in 1..5 {
        let all = [&a, &b, &a, &b][..parts].iter().copied().cloned().collect::<Vec<Tensor>>();
        same_bits::<T>(&Op::Mean, &all, &dims);
    }
    for op in [Op::Sub, Op::Mul, Op::Div, Op::SigmoidGrad, Op::TanhGrad] {
        same_bits::<T>(&op, &[a.clone(), b.clone()], &dims);
    }
    let scale = Op::Scale { by: values.uniform() };
    same_bits::<T>(&scale, std::slice::from_ref(&a), &dims);
    let dropout = Op::Dropout { rate: 0.4, key: values.next() };
    let step = Tensor::scalar(values.next() as i64);
    same_bits::<T>(&dropout, &[a.clone(), step], &dims);
    let x = Tensor::new(
        &dims,
        &values.reals::<T>(len).iter().map(|&x| x * T::of(20.0)).collect::<Vec<T>>(),
    );
    for op in [Op::Sigmoid, Op::Tanh] {
        for x in [&a, &x] {
            let tiny = T::min_positive_value();
            let tolerance = |_, y: T| T::of(8.0) * T::epsilon() * y.abs() + tiny;
            near::<T>(&op, std::slice::from_ref(x), &[&dims], tolerance);
        }
    }
    for kernels in cpus() {
        let expected: Vec<f64> =
            run_one(&reference(), &Op::Cast { to: DType::F64 }, std::slice::from_ref(&a), &dims);
        assert_same(
            &run_one::<f64>(
                &kernels,
                &Op::Cast { to: DType::F64 },
                std::slice::from_ref(&a),
                &dims,
            ),
            &expected,
        );
        let to_f32 = Op::Cast { to: DType::F32 };
        let expected: Vec<f32> = run_one(&reference(), &to_f32, std::slice::from_ref(&a), &dims);
        assert_same(&run_one::<f32>(&kernels, &to_f32, std::slice::from_ref(&a), &dims), &expected);
        let to_bf16 = Op::Cast { to: DType::BF16 };
        let expected: Vec<bf16> = run_one(&reference(), &to_bf16, std::slice::from_ref(&a), &dims);
        let found: Vec<bf16> = run_one(&kernels, &to_bf16, std::slice::from_ref(&a), &dims);
        // which bits a NaN has is each back end's own
        let same = |f: &bf16, e: &bf16| f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan());
        assert!(found.iter().zip(&expected).all(|(f, e)| same(f, e)));
    }
}

fn reductions<T: Real>([outer, length, inner]: [usize; 3], odd: bool, seed: u64) {
    let mut values = Values(seed);
    let (dims, reduced) = ([outer, length, inner], [outer, inner]);
    let count = outer * length * inner;
    let x = if odd { values.odd_reals::<T>(count) } else { values.reals::<T>(count) };
    let x = Tensor::new(&dims, &x);
    let dy = Tensor::new(&reduced, &values.reals::<T>(outer * inner));
    for by in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
        if by != Reduction::Sum && length == 0 {
            continue;
        }
        let op = Op::Reduce { by, axis: 1 };
        let given = std::slice::from_ref(&x);
        match by {
            // of zeros of both signs any
            Reduction::Max if !ADDS_IN_ORDER => {
                near::<T>(&op, given, &[&reduced], |_, _| T::zero())
            }
            // in another order infinities may meet that do not in this one
            Reduction::Sum | Reduction::Mean if odd && !ADDS_IN_ORDER => {}
            Reduction::Max => same_bits::<T>(&op, given, &reduced),
            Reduction::Sum | Reduction::Mean => same_sums::<T>(&op, given, &reduced, length),
        }
        let y: Vec<T> = run_one(&reference(), &op, std::slice::from_ref(&x), &reduced);
        let inputs = [dy.clone(), x.clone(), Tensor::new(&reduced, &y)];
        same_bits::<T>(&Op::ReduceGrad { by, axis: 1 }, &inputs, &dims);
    }
}

fn softmax<T: Real>([rows, columns]: [usize; 2], seed: u64) {
    let mut values = Values(seed);
    let dims = [rows, 1, columns];
    let x = Tensor::new(&dims, &values.reals::<T>(rows * columns));
    let eps = T::epsilon();
    let tolerance = |_, y: T| T::of(columns as f64 + 16.0) * eps * y;
    near::<T>(&Op::Softmax, std::slice::from_ref(&x), &[&dims], tolerance);
    let y: Vec<T> = run_one(&reference(), &Op::Softmax, &[x], &dims);
    let dy = Tensor::new(&dims, &values.reals::<T>(rows * columns));
    // |dy| ≤ 2 and Σ y = 1
    let tolerance = |_, _| T::of(4.0 * (columns as f64 + 4.0)) * eps;
    near::<T>(&Op::SoftmaxGrad, &[dy, Tensor::new(&dims, &y)], &[&dims], tolerance);
}

/// Moves of elements whose bytes are all different, of one type.
fn moves<T: Element>(sizes: [usize; 4], permutation: &[usize], values: &mut Values) {
    let raw = |values: &mut Values, dims: &[usize]| {
        let mut tensor = Tensor::unwritten(T::DTYPE, dims);
        tensor.view_mut().bytes().iter_mut().for_each(|byte| *byte = values.next() as u8);
        tensor
    };
    let check = |op: &Op, inputs: &[Tensor], dims: &[usize]| {
        let run = |kernels: &_| {
            let mut outputs = [Tensor::unwritten(T::DTYPE, dims)];
            try_run(kernels, op, inputs, &mut outputs).unwrap();
            outputs[0].view().bytes().to_vec()
        };
        let expected = run(&reference());
        for cpu in cpus() {
            assert!(run(&cpu) == expected, "{op:?} of {dims:?}");
        }
    };
    let x = raw(values, &sizes);
    let turned: Vec<usize> = permutation.iter().map(|&dim| sizes[dim]).collect();
    check(&Op::Transpose { permutation: permutation.to_vec() }, std::slice::from_ref(&x), &turned);
    for axis in 0..4 {
        let with = |size: usize| {
            let mut dims = sizes;
            dims[axis] = size;
            dims
        };
        let (before, after) = (values.below(4), values.below(4));
        let padded = with(before + sizes[axis] + after);
        check(&Op::Pad { axis, before, after }, std::slice::from_ref(&x), &padded);
        let start = values.below(sizes[axis] + 1);
        let length = values.below(sizes[axis] - start + 1);
        check(&Op::Slice { axis, start, length }, std::slice::from_ref(&x), &with(length));
        let other = with(values.below(5));
        let joined = with(2 * sizes[axis] + other[axis]);
        let inputs = [x.clone(), raw(values, &other), x.clone()];
        check(&Op::Concat { axis, size: None }, &inputs, &joined);
        let [a, b, c] = inputs;
        let dy = raw(values, &joined);
        check(&Op::ConcatGrad { axis }, &[dy.clone(), a.clone(), b.clone(), c], &sizes);
        check(&Op::ConcatGrad { axis }, &[dy, a.clone(), b], &other);
        let part = raw(values, &with(length));
        check(&Op::SliceGrad { axis, start }, &[part, a], &sizes);
    }
    let [rows, columns, count, _] = sizes;
    if rows > 0 {
        let indices: Vec<i32> = (0..count).map(|_| values.below(rows) as i32).collect();
        let inputs = [raw(values, &[rows, columns]), Tensor::new(&[count], &indices)];
        check(&Op::Gather, &inputs, &[count, columns]);
    }
}

fn scatter<T: Real>([rows, columns, count]: [usize; 3], seed: u64) {
    let mut values = Values(seed);
    let indices: Vec<i32> = (0..count).map(|_| values.below(rows) as i32).collect();
    let given = Tensor::new(&[count, columns], &values.reals::<T>(count * columns));
    let like = Tensor::unwritten(T::DTYPE, &[rows, columns]);
    let inputs = [given, Tensor::new(&[count], &indices), like];
    same_bits::<T>(&Op::ScatterRows, &inputs, &[rows, columns]);
}

const RULES: [Rule; 7] = [
    Rule::sgd(0.3),
    Rule::momentum(0.3),
    Method::AdaGrad { epsilon: 1e-7 }.at(0.3),
    Method::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-7 }.at(0.3),
    Rule::nesterov(0.3).decaying(0.1),
    Method::RmsProp { alpha: 0.9, epsilon: 1e-7 }.at(0.3),
    Method::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-7 }.at(0.3).decaying(0.1),
];

/// The variable and its slots as a rule has them, of `dims`.
fn state<T: Real>(rule: Rule, dims: &[usize], values: &mut Values) -> Vec<Tensor> {
    let count = dims.iter().product();
    let mut like = |_| {
        Tensor::new(dims, &values.reals::<T>(count).iter().map(|x| x.abs()).collect::<Vec<T>>())
    };
    match rule.method.counts_steps() {
        true => (0..3).map(&mut like).chain([Tensor::scalar(4i64)]).collect(),
        false => (0..=rule.slots()).map(&mut like).collect(),
    }
}

/// An operator that changes `state` changes it alike on all back ends.
fn changes_alike<T: Real>(op: &Op, inputs: &[Tensor], state: &[Tensor]) {
    let run = |kernels: &_| {
        let mut state = state.to_vec();
        try_run(kernels, op, inputs, &mut state).unwrap();
        let count = state.iter().map(|t| t.view().dtype()).filter(|&d| d == DType::I64).count();
        let (reals, counts) = state.split_at(state.len() - count);
        let counts: Vec<i64> = counts.iter().flat_map(Tensor::to_vec::<i64>).collect();
        (reals.iter().flat_map(Tensor::to_vec::<T>).collect::<Vec<T>>(), counts)
    };
    let (expected, counts) = run(&reference());
    for cpu in cpus() {
        let (found, also_counts) = run(&cpu);
        assert_same(&found, &expected);
        assert_eq!(also_counts, counts);
    }
}

fn updates<T: Real>([rows, columns, count]: [usize; 3], world_size: usize, seed: u64) {
    let mut values = Values(seed);
    let dims = [rows, columns];
    for rule in RULES {
        let whole: Vec<Tensor> = (0..world_size)
            .map(|_| Tensor::new(&dims, &values.reals::<T>(rows * columns)))
            .collect();
        let held = state::<T>(rule, &dims, &mut values);
        changes_alike::<T>(&Op::Apply { rule, clipped: false }, &whole, &held);
        let clipped = [&[Tensor::scalar(0.3f64)], &whole[..]].concat();
        changes_alike::<T>(&Op::Apply { rule, clipped: true }, &clipped, &held);
        changes_alike::<T>(&Op::ApplyAverage { rate: 0.1 }, &whole, &held[..1]);
        let mut parts = Vec::new();
        for _ in 0..world_size {
            let named = if rows == 0 { 0 } else { values.below(count + 1) };
            let indices: Vec<i32> = (0..named).map(|_| values.below(rows) as i32).collect();
            parts.push(Tensor::new(&[named], &indices));
            parts.push(Tensor::new(&[named, columns], &values.reals::<T>(named * columns)));
        }
        changes_alike::<T>(&Op::ApplyRows { rule }, &parts, &held);
    }
}

fn recurrent<T: Real>(cell: Cell, [batch, hidden, steps]: [usize; 3], seed: u64) {
    let mut values = Values(seed);
    let active = profile(&mut values, batch, steps);
    let total: usize = active.iter().map(|&rows| rows as usize).sum();
    let (row, square, first) = ([total, hidden], [hidden, hidden], [batch, hidden]);
    let saved = [total, cell.saved() * hidden];
    // matrices whose rows have sums around 1 neither widen nor damp what goes through them
    let narrow = T::of(1.0 / (hidden.max(1) as f64).sqrt());
    let mut real = |dims: [usize; 2], by: T| {
        let reals = values.reals::<T>(dims[0] * dims[1]);
        Tensor::new(&dims, &reals.iter().map(|&x| x * by).collect::<Vec<T>>())
    };
    let (gates, states) = (cell.gates(), cell.states());
    let mut inputs: Vec<Tensor> = (0..gates).map(|_| real(row, T::one())).collect();
    inputs.extend((0..gates).map(|_| real(square, narrow)));
    inputs.extend((0..states).map(|_| real(first, T::one())));
    inputs.push(Tensor::new(&[active.len()], &active));
    let dims: Vec<&[usize]> = [vec![&row[..]], vec![&first; states], vec![&saved]].concat();
    let op = Op::Recurrent { cell };
    let eps = T::epsilon();
    let tolerance = T::of(64.0 * (hidden as f64 + 16.0)) * eps;
    near::<T>(&op, &inputs, &dims, |_, _| tolerance);
    let made = run_all::<T>(&reference(), &op, &inputs, &dims);
    let mut given = vec![real(row, T::one())];
    given.extend((0..states).map(|_| real(first, T::one())));
    given.extend(inputs.split_off(gates));
    given.push(Tensor::new(&row, &made[0]));
    given.push(Tensor::new(&saved, &made[states + 1]));
    let op = Op::RecurrentGrad { cell, sequence: true, finals: [true, states > 1] };
    let dims: Vec<&[usize]> =
        [vec![&row[..]; gates], vec![&square; gates], vec![&first; states]].concat();
    let largest = run_all::<T>(&reference(), &op, &given, &dims)
        .concat()
        .iter()
        .fold(T::one(), |max, &x| max.max(x.abs()));
    let tolerance = T::of(256.0 * (total as f64 + 4.0 * hidden as f64 + 4.0)) * eps * largest;
    near::<T>(&op, &given, &dims, |_, _| tolerance);
}

/// An operator on bf16 gives what it gives on f32 of the same numbers, rounded.
fn stored<const N: usize>(
    op: &Op,
    reals: [&[usize]; N],
    others: &[Tensor],
    outputs: &[&[usize]],
    seed: u64,
) {
    let mut values = Values(seed);
    let numbers = reals.map(|dims| {
        let reals: Vec<f64> = values.reals(dims.iter().product());
        reals.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<bf16>>()
    });
    let narrow = (0..N).map(|i| Tensor::new(reals[i], &numbers[i]));
    let narrow: Vec<Tensor> = narrow.chain(others.iter().cloned()).collect();
    let wide = (0..N).map(|i| {
        let numbers: Vec<f32> = numbers[i].iter().map(|x| x.to_f32()).collect();
        Tensor::new(reals[i], &numbers)
    });
    let wide: Vec<Tensor> = wide.chain(others.iter().cloned()).collect();
    let changed = op.mutated_inputs();
    for kernels in all() {
        let run = |operands: &[Tensor], dtype: DType| {
            let mut made = operands[..changed].to_vec();
            // an optimizer's slots are f32
            made.iter_mut().zip(&wide).skip(1).for_each(|(slot, wide)| slot.clone_from(wide));
            made.extend(outputs.iter().map(|dims| Tensor::unwritten(dtype, dims)));
            try_run(&kernels, op, &operands[changed..], &mut made).unwrap();
            made
        };
        let (found, expected) = (run(&narrow, DType::BF16), run(&wide, DType::F32));
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            if (1..changed).contains(&at) {
                assert_eq!(found.to_vec::<f32>(), expected.to_vec::<f32>(), "{op:?}");
                continue;
            }
            let expected = expected.to_vec::<f32>().into_iter().map(bf16::from_f32);
            assert!(found.to_vec::<bf16>().into_iter().eq(expected), "{op:?}");
        }
        if op.works_in_place() {
            let mut first = [narrow[0].clone()];
            try_run_in_place(&kernels, op, &narrow[1..], &mut first).unwrap();
            assert_eq!(first[0].to_vec::<bf16>(), found[0].to_vec::<bf16>());
        }
    }
}

/// Sizes from 0 up, with the sizes around a vector's and a tile's among them.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..6, 6usize..40, Just(63), Just(64), Just(65)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn element_wise_operators(len in size(), seed: u64) {
        element_wise::<f32>(len, seed);
        element_wise::<f64>(len, seed);
    }

    #[test]
    fn reductions_of_a_dimension(outer in 0usize..9, length in 0usize..9, inner in size(), odd: bool, seed: u64) {
        reductions::<f32>([outer, length, inner], odd, seed);
        reductions::<f64>([outer, length, inner], odd, seed);
    }

    #[test]
    fn softmax_rows(sizes in [size(), size()], seed: u64) {
        softmax::<f32>(sizes, seed);
        softmax::<f64>(sizes, seed);
    }

    #[test]
    fn moves_of_every_type(sizes in [0usize..7, 1usize..20, 0usize..7, 1usize..20], order: [u8; 4], seed: u64) {
        let mut permutation = [0, 1, 2, 3];
        permutation.sort_by_key(|&dim| order[dim]);
        let mut values = Values(seed);
        moves::<f32>(sizes, &permutation, &mut values);
        moves::<f64>(sizes, &permutation, &mut values);
        moves::<bf16>(sizes, &permutation, &mut values);
        moves::<u8>(sizes, &permutation, &mut values);
    }

    #[test]
    fn scattered_rows(rows in 1usize..20, columns in size(), count in 0usize..50, seed: u64) {
        scatter::<f32>([rows, columns, count], seed);
        scatter::<f64>([rows, columns, count], seed);
    }

    #[test]
    fn updates_of_variables(rows in 0usize..12, columns in size(), count in 0usize..20, world_size in 1usize..4, seed: u64) {
        updates::<f32>([rows, columns, count], world_size, seed);
        updates::<f64>([rows, columns, count], world_size, seed);
    }

    #[test]
    fn recurrent_cells(batch in 0usize..20, hidden in size(), steps in 0usize..7, seed: u64) {
        for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
            recurrent::<f32>(cell, [batch, hidden, steps], seed);
            recurrent::<f64>(cell, [batch, hidden, steps], seed);
        }
    }

    #[test]
    fn storage_in_bf16(rows in 1usize..6, columns in 1usize..40, seed: u64) {
        let dims: &[usize] = &[rows, columns];
        let step = Tensor::scalar(3i64);
        stored(&Op::Add, [dims, dims], &[], &[dims], seed);
        stored(&Op::Sigmoid, [dims], &[], &[dims], seed);
        stored(&Op::BiasAdd, [dims, &[columns]], &[], &[dims], seed);
        stored(&Op::Dropout { rate: 0.5, key: 1 }, [dims], std::slice::from_ref(&step), &[dims], seed);
        stored(&Op::SumRows, [dims], &[], &[&[columns]], seed);
        let product = Op::MatMul { transpose_a: false, transpose_b: true };
        stored(&product, [dims, &[3, columns]], &[], &[&[rows, 3]], seed);
        stored(&Op::Apply { rule: Rule::momentum(0.1), clipped: false }, [dims; 4], &[], &[], seed);
        let active = Tensor::new(&[1], &[1i32]);
        let square: &[usize] = &[columns, columns];
        let row: &[usize] = &[1, columns];
        stored(&Op::Recurrent { cell: Cell::Rnn }, [row, square, row], &[active], &[row, row, &[1, 0]], seed);
    }
}

/// Shapes at which the cpu cuts its work into pieces.
#[test]
fn large_operands() {
    element_wise::<f32>(140_003, 1);
    element_wise::<f64>(70_001, 2);
    for sizes in [[1, 300_001, 1], [70_003, 5, 1], [3, 700, 301], [1, 3, 100_001], [90, 40, 70]] {
        reductions::<f32>(sizes, false, 3);
        reductions::<f64>(sizes, true, 4);
    }
    softmax::<f32>([700, 301], 5);
    let mut values = Values(6);
    for permutation in [[0, 2, 1, 3], [3, 2, 1, 0], [0, 3, 1, 2], [1, 0, 3, 2], [2, 3, 0, 1]] {
        moves::<f32>([5, 33, 17, 70], &permutation, &mut values);
        moves::<f64>([3, 1, 300, 200], &permutation, &mut values);
    }
    scatter::<f32>([3001, 130, 5000], 7);
    updates::<f32>([3001, 65, 300], 2, 8);
    updates::<f32>([2, 70_001, 5], 2, 9);
    for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
        for sizes in [[1, 260, 5], [9, 200, 4], [33, 130, 4]] {
            recurrent::<f32>(cell, sizes, 10);
            recurrent::<f64>(cell, sizes, 11);
        }
    }
}
