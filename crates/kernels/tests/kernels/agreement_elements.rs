//! As `agreement.rs`, for functions of elements whose shapes may differ, products of many matrices, losses with a
//! smoothed target, and what normalises samples.
//!
//! | operators | agree | because |
//! |---|---|---|
//! | Binary, Compare, Select, SelectGrad, ExpandTo, AddRows | bit for bit | each element is the same roundings |
//! | SumTo | bit for bit over one run of dimensions, else 2·n·eps·Σ\|x\| | both add in the order of the dimension; of several the last is added first |
//! | Unary | 32·eps·(\|y\| + \|x\|) | exp, ln, tanh and erf are within 8 ulp each (`functions.rs`), and 1 + erf cancels where x is far below 0 |
//! | UnaryGrad | 64·eps·\|dy\|·(1 + \|f'\| + \|x\|) | as above, with one factor x more |
//! | BatchMatMul | as MatMul | each is one |
//! | CrossEntropy | as SoftmaxCrossEntropy, and c·eps of the mean logit | one more sum over the classes |
//! | CountWithin | equal | nothing is rounded |
//! | SampleNorm | 64·(n + 8)·eps | sums of n terms in any order; \|x\| ≤ 2 and epsilon ≥ 1/4 |
//! | SampleNormGrad | dx as above, times 16; dscale and dshift times the rows | one more such sum |

use crate::common::{Real, Tensor, Values, all, cpus, reference, run_all, run_one, try_run};
use half::bf16;
use proptest::prelude::*;
use tensorwire_graph::{Binary, Comparison, Op, SampleNorm, Unary};
use tensorwire_kernels::check::{self, Tolerance};
use tensorwire_tensor::{DType, Dim, Element};

pub(crate) const UNARY: [Unary; 15] = [
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Silu,
    Unary::Softplus,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Pow { exponent: 2.0 },
    Unary::Pow { exponent: 3.0 },
    Unary::Pow { exponent: -0.5 },
    Unary::Pow { exponent: 0.0 },
    Unary::Abs,
    Unary::Neg,
    Unary::Clamp { least: -0.5, most: 0.75 },
];

/// All back ends' results of an operator of one output are the same bits, apart and over the first input.
fn same_bits<T: Element>(op: &Op, inputs: &[Tensor], dims: &[usize]) {
    let expected = Tensor::new(dims, &run_one::<T>(&reference(), op, inputs, dims));
    check::agreement(&all(), op, inputs, &[expected], Tolerance::Bits).unwrap();
}

/// The back ends of the cpu agree with the reference to within a tolerance for each element of each output.
pub(crate) fn near<T: Real>(
    op: &Op,
    inputs: &[Tensor],
    dims: &[&[usize]],
    tolerance: impl Fn(usize, usize, T) -> T,
) {
    let expected = run_all::<T>(&reference(), op, inputs, dims);
    let expected: Vec<Tensor> =
        dims.iter().zip(&expected).map(|(dims, made)| Tensor::new(dims, made)).collect();
    let most =
        |output: usize, element: usize, value: f64| tolerance(output, element, T::of(value)).into();
    check::agreement(&cpus(), op, inputs, &expected, Tolerance::Within(&most)).unwrap();
}

fn count(dims: &[usize]) -> usize {
    dims.iter().product()
}

fn known(dims: &[usize]) -> Vec<Dim> {
    dims.iter().copied().map(Dim::Known).collect()
}

fn unary<T: Real>(len: usize, seed: u64) {
    let mut values = Values(seed);
    let reals: Vec<T> = values.reals(len);
    // near 0, around 1, and far
    let x: Vec<T> =
        reals.iter().enumerate().map(|(i, &x)| x * T::of([0.01, 1.0, 8.0][i % 3])).collect();
    let dy: Vec<T> = values.reals(len);
    for by in UNARY {
        let from_zero = matches!(by, Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Pow { .. });
        let x: Vec<T> = match from_zero {
            true => x.iter().map(|x| x.abs() + T::of(0.01)).collect(),
            false => x.clone(),
        };
        let unit = T::epsilon();
        let given = [Tensor::new(&[len], &x)];
        let op = Op::Unary { by };
        near::<T>(&op, &given, &[&[len]], |_, at, y| T::of(32.0) * unit * (y.abs() + x[at].abs()));
        let y: Vec<T> = run_one(&reference(), &op, &given, &[len]);
        let of = if by.derives_from_value() { y } else { x.clone() };
        let inputs = [Tensor::new(&[len], &dy), Tensor::new(&[len], &of)];
        near::<T>(&Op::UnaryGrad { by }, &inputs, &[&[len]], |_, at, dx| {
            T::of(64.0) * unit * (dx.abs() + dy[at].abs() * (T::one() + x[at].abs()))
        });
    }
}

/// What is not finite comes out alike, but for functions whose value there is nothing.
#[test]
fn odd_numbers() {
    fn of<T: Real>() {
        let infinity = T::infinity();
        let x =
            [T::zero(), T::neg_zero(), infinity, -infinity, T::nan(), T::of(1e30), T::of(-1e30)];
        for by in UNARY {
            let inputs = [Tensor::new(&[x.len()], &x)];
            let bound = |_, _, y: T| T::of(1e-5) * y.abs();
            near::<T>(&Op::Unary { by }, &inputs, &[&[x.len()]], bound);
        }
        let far = [T::of(1e30), T::of(-1e30), T::of(30.0), T::of(-30.0)];
        for by in [Unary::Gelu, Unary::GeluTanh, Unary::Silu, Unary::Softplus] {
            let ones = Tensor::new(&[4], &[T::one(); 4]);
            let inputs = [ones, Tensor::new(&[4], &far)];
            for kernels in all() {
                let slope: Vec<T> = run_one(&kernels, &Op::UnaryGrad { by }, &inputs, &[4]);
                for (slope, wanted) in slope.into_iter().zip([1.0, 0.0, 1.0, 0.0]) {
                    assert!((slope - T::of(wanted)).abs() < T::of(1e-6), "{by:?}: {slope:?}");
                }
            }
        }
    }
    of::<f32>();
    of::<f64>();
}

fn broadcasts<T: Real>(full: &[usize], ones: [u8; 2], seed: u64) {
    let mut values = Values(seed);
    let mut operand = |ones: u8| {
        let dims: Vec<usize> =
            full.iter().enumerate().map(|(d, &s)| if ones >> d & 1 == 1 { 1 } else { s }).collect();
        // those of 1 before the first other may be left out
        let from = if ones >= 128 { dims.iter().take_while(|d| **d == 1).count() } else { 0 };
        let reals: Vec<T> = values.odd_reals(count(&dims));
        (dims[from..].to_vec(), reals)
    };
    let [(a_dims, a), (b_dims, b)] = ones.map(&mut operand);
    let rank = a_dims.len().max(b_dims.len());
    let side = |dims: &[usize], at: usize| match (at + dims.len()).checked_sub(rank) {
        Some(at) => dims[at],
        None => 1,
    };
    let dims: Vec<usize> = (0..rank)
        .map(|at| match (side(&a_dims, at), side(&b_dims, at)) {
            (1, other) => other,
            (one, _) => one,
        })
        .collect();
    let inputs = [Tensor::new(&a_dims, &a), Tensor::new(&b_dims, &b)];
    for by in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min] {
        same_bits::<T>(&Op::Binary { by }, &inputs, &dims);
    }
    for by in [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessEqual,
        Comparison::Greater,
        Comparison::GreaterEqual,
    ] {
        same_bits::<u8>(&Op::Compare { by }, &inputs, &dims);
    }
    let large = Op::ExpandTo { to: known(&dims) };
    same_bits::<T>(&large, &inputs[..1], &dims);
    // back: numbers, so that a sum is one
    let x: Vec<T> = values.reals(count(&dims));
    let absolute: Vec<T> = x.iter().map(|x| x.abs()).collect();
    let op = Op::SumTo { to: known(&a_dims) };
    let scale: Vec<T> = run_one(&reference(), &op, &[Tensor::new(&dims, &absolute)], &a_dims);
    let terms = T::of(2.0 * count(&dims) as f64);
    near::<T>(&op, &[Tensor::new(&dims, &x)], &[&a_dims], |_, at, _| {
        terms * T::epsilon() * scale[at]
    });
}

fn choices<T: Real>(len: usize, seed: u64) {
    let mut values = Values(seed);
    let dims = [len];
    let a = Tensor::new(&dims, &values.odd_reals::<T>(len));
    let b = Tensor::new(&dims, &values.odd_reals::<T>(len));
    let condition: Vec<u8> = (0..len).map(|_| values.below(3) as u8).collect();
    let condition = Tensor::new(&dims, &condition);
    same_bits::<T>(&Op::Select, &[a.clone(), b, condition.clone()], &dims);
    for holds in [true, false] {
        same_bits::<T>(&Op::SelectGrad { holds }, &[a.clone(), condition.clone()], &dims);
    }
}

fn added_rows<T: Real>([rows, columns, named]: [usize; 3], seed: u64) {
    let mut values = Values(seed);
    let indices: Vec<i32> = (0..named).map(|_| values.below(rows) as i32).collect();
    let x = Tensor::new(&[rows, columns], &values.reals::<T>(rows * columns));
    let given = Tensor::new(&[named, columns], &values.reals::<T>(named * columns));
    let inputs = [x, given, Tensor::new(&[named], &indices)];
    same_bits::<T>(&Op::AddRows, &inputs, &[rows, columns]);
}

fn products<T: Real>(many: &[usize], [m, n, k]: [usize; 3], transposed: [bool; 2], seed: u64) {
    let mut values = Values(seed);
    let [transpose_a, transpose_b] = transposed;
    let a_dims = [many, &if transpose_a { [k, m] } else { [m, k] }].concat();
    let b_dims = [many, &if transpose_b { [n, k] } else { [k, n] }].concat();
    let y_dims = [many, &[m, n]].concat();
    let (a, b): (Vec<T>, Vec<T>) = (values.reals(count(&a_dims)), values.reals(count(&b_dims)));
    let absolute = |x: &[T]| x.iter().map(|x| x.abs()).collect::<Vec<T>>();
    let op = Op::BatchMatMul { transpose_a, transpose_b };
    let operands = |a: &[T], b: &[T]| [Tensor::new(&a_dims, a), Tensor::new(&b_dims, b)];
    let scale: Vec<T> =
        run_one(&reference(), &op, &operands(&absolute(&a), &absolute(&b)), &y_dims);
    near::<T>(&op, &operands(&a, &b), &[&y_dims], |_, at, _| {
        T::of(2.0 * k as f64) * T::epsilon() * scale[at]
    });
}

fn losses<T: Real>(rows: usize, classes: usize, smoothing: f64, seed: u64) {
    let mut values = Values(seed);
    let ignored = [-100, 0][values.below(2)];
    let mut labels = values.labels(rows, classes);
    labels.iter_mut().filter(|label| **label < 0).for_each(|label| *label = ignored);
    let counted = labels.iter().filter(|label| **label != ignored).count().max(1);
    let logits = Tensor::new(&[rows, classes], &values.reals::<T>(rows * classes));
    let inputs = [logits.clone(), Tensor::new(&[rows], &labels)];
    let op = Op::CrossEntropy { smoothing, ignored };
    near::<T>(&op, &inputs, &[&[], &[rows, classes]], |output, _, value| match output {
        0 => T::of((rows + classes + 8) as f64) * T::epsilon() * (T::of(4.0) + value),
        _ => T::of(16.0 / counted as f64) * T::epsilon(),
    });
    let inputs = [logits, Tensor::new(&[rows], &values.labels(rows, classes))];
    for k in [0, 1, 2, 5] {
        same_bits::<i64>(&Op::CountWithin { k }, &inputs, &[]);
    }
}

fn norms<T: Real>(dims: &[usize], groups: usize, seed: u64) {
    let mut values = Values(seed);
    let channels = dims[dims.len() - 1];
    let rows = count(dims) / channels.max(1);
    let mut tensor = |dims: &[usize]| Tensor::new(dims, &values.reals::<T>(count(dims)));
    let (x, dy) = (tensor(dims), tensor(dims));
    let (scale, shift) = (tensor(&[channels]), tensor(&[channels]));
    let positions = count(&dims[1..dims.len() - 1]);
    for by in [SampleNorm::Layer, SampleNorm::Rms, SampleNorm::Group { groups }] {
        let (statistic, terms) = match by {
            SampleNorm::Group { groups } => {
                (vec![dims[0], groups], positions * channels / groups.max(1))
            }
            _ => (dims[..dims.len() - 1].to_vec(), channels),
        };
        let more = usize::from(by.is_centred());
        let op = Op::SampleNorm { by, epsilon: 0.25 };
        let inputs = [x.clone(), scale.clone(), shift.clone()];
        let mut outputs: Vec<&[usize]> = vec![dims];
        outputs.resize(2 + more, &statistic);
        let unit = T::of(64.0 * (terms as f64 + 8.0)) * T::epsilon();
        near::<T>(&op, &inputs[..2 + more], &outputs, |_, _, _| unit);
        let made = run_all::<T>(&reference(), &op, &inputs[..2 + more], &outputs);
        let mut given = vec![dy.clone(), x.clone()];
        given.extend(made[1..].iter().map(|made| Tensor::new(&statistic, made)));
        given.push(scale.clone());
        let vector = [channels];
        let mut outputs: Vec<&[usize]> = vec![dims];
        outputs.resize(2 + more, &vector);
        near::<T>(&Op::SampleNormGrad { by }, &given, &outputs, |output, _, _| match output {
            0 => T::of(16.0) * unit,
            _ => T::of(16.0 * (rows + 1) as f64) * unit,
        });
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..6, 6usize..40, Just(63), Just(64), Just(65)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn functions(len in size(), seed: u64) {
        unary::<f32>(len, seed);
        unary::<f64>(len, seed);
        choices::<f32>(len, seed);
        choices::<f64>(len, seed);
    }

    #[test]
    fn broadcasting(full in prop::collection::vec(0usize..5, 0..5), ones: [u8; 2], seed: u64) {
        broadcasts::<f32>(&full, ones, seed);
        broadcasts::<f64>(&full, ones, seed);
    }

    #[test]
    fn rows_are_added(rows in 1usize..20, columns in 0usize..20, named in 0usize..30, seed: u64) {
        added_rows::<f32>([rows, columns, named], seed);
        added_rows::<f64>([rows, columns, named], seed);
    }

    #[test]
    fn batches_of_products(
        many in prop::collection::vec(0usize..4, 0..3), sizes in [0usize..12, 0..12, 0..12],
        transposed: [bool; 2], seed: u64,
    ) {
        products::<f32>(&many, sizes, transposed, seed);
        products::<f64>(&many, sizes, transposed, seed);
    }

    #[test]
    fn smoothed_losses(rows in size(), classes in size(), smoothing in 0.0f64..1.0, seed: u64) {
        losses::<f32>(rows, classes, 0.0, seed);
        losses::<f32>(rows, classes, smoothing, seed);
        losses::<f64>(rows, classes, smoothing, seed);
    }

    #[test]
    fn normalisations(
        dims in [0usize..4, 1..5], groups in 1usize..5, group in prop_oneof![1usize..9, Just(33)], seed: u64,
    ) {
        let dims = [dims[0], dims[1], 2, groups * group];
        norms::<f32>(&dims, groups, seed);
        norms::<f64>(&dims, groups, seed);
    }
}

/// Shapes at which the cpu cuts its work into pieces.
#[test]
fn large_operands() {
    unary::<f32>(70_001, 1);
    choices::<f32>(70_001, 2);
    for (full, ones) in [
        (&[3, 700, 65][..], [0u8, 0b011]),
        (&[300, 301], [0b10, 0b01]),
        (&[70_001], [0b1, 0]),
        (&[90, 1001], [0b01, 0b10]),
        (&[5, 70, 3, 90], [0b1101, 0b0010]),
    ] {
        broadcasts::<f32>(full, ones, 3);
        broadcasts::<f64>(full, ones, 4);
    }
    added_rows::<f32>([3001, 65, 500], 5);
    for transposed in [[false, false], [false, true], [true, false], [true, true]] {
        products::<f32>(&[3], [70, 90, 65], transposed, 6);
        products::<f32>(&[4, 5], [70, 90, 65], transposed, 7);
    }
    losses::<f32>(9000, 10, 0.1, 8);
    losses::<f32>(3, 5001, 0.1, 9);
    norms::<f32>(&[4, 300, 130], 13, 10);
    norms::<f64>(&[700, 1, 96], 4, 11);
}

#[test]
fn integers_are_compared() {
    let (a, b) = (Tensor::new(&[3], &[1i32, 5, -2]), Tensor::new(&[], &[1i32]));
    for kernels in all() {
        let op = Op::Compare { by: Comparison::Greater };
        assert_eq!(run_one::<u8>(&kernels, &op, &[a.clone(), b.clone()], &[3]), [0, 1, 0]);
    }
    assert_eq!(DType::U8, <u8 as Element>::DTYPE);
}

/// What is stored in bf16 is computed in f32 and rounded; statistics are f32.
#[test]
fn samples_are_normalised_in_bf16() {
    let (dims, c) = ([3, 5, 8], [8]);
    let numbers = |seed: u64, count: usize| -> Vec<bf16> {
        Values(seed).reals::<f64>(count).iter().map(|&x| bf16::from_f64(x)).collect()
    };
    let given = [numbers(1, 120), numbers(2, 8), numbers(3, 8)];
    let wide = |x: &[bf16]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
    let op = Op::SampleNorm { by: SampleNorm::Layer, epsilon: 0.25 };
    for kernels in all() {
        let run = |dtype: DType, inputs: [Tensor; 3]| {
            let statistic = Tensor::unwritten(DType::F32, &[3, 5]);
            let mut outputs = [Tensor::unwritten(dtype, &dims), statistic.clone(), statistic];
            try_run(&kernels, &op, &inputs, &mut outputs).unwrap();
            outputs
        };
        let [x, scale, shift] = &given;
        let narrow = [Tensor::new(&dims, x), Tensor::new(&c, scale), Tensor::new(&c, shift)];
        let found = run(DType::BF16, narrow);
        let [x, scale, shift] = given.each_ref().map(|x| wide(x));
        let wide = [Tensor::new(&dims, &x), Tensor::new(&c, &scale), Tensor::new(&c, &shift)];
        let expected = run(DType::F32, wide);
        let rounded: Vec<bf16> =
            expected[0].to_vec::<f32>().iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(found[0].to_vec::<bf16>(), rounded);
        for statistic in 1..3 {
            assert_eq!(found[statistic].to_vec::<f32>(), expected[statistic].to_vec::<f32>());
        }
    }
}
