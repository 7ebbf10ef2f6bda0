//! As `agreement.rs`, for attention and rotary positions; and its gradients against central differences.
//!
//! | operators | agree | because |
//! |---|---|---|
//! | Attention | 16·(s + d + 16)·eps of the largest product | products are sums of d terms, softmax and y sums of s, in any order; an error of a product is a relative one of its exponential |
//! | AttentionGrad | 64·(s + t + d + 16)·eps, times what sums to an element | as above, with a difference of two such sums |
//! | Rotary | 4·eps·(\|x₁\| + \|x₂\|) | two products and a sum of the same sines |
//! | all with bf16 | bit for bit what f32 gives of the same numbers, rounded; the log-sum-exp is f32 | it is computed so |

use crate::agreement_elements::near;
use crate::common::{self, Real, Tensor, Values, all, reference, run_all, try_run};
use half::bf16;
use proptest::prelude::*;
use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Op, Rotary};
use tensorwire_tensor::DType;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Masked {
    None,
    Causal,
    /// Added, with dimensions of 1 where a bit is set.
    Added(u8),
    /// Of bytes.
    Shown(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) depth: usize,
    pub(crate) order: HeadOrder,
    pub(crate) mask: Masked,
}

impl Shape {
    pub(crate) fn by(&self) -> Attention {
        let mask = match self.mask {
            Masked::None => AttentionMask::None,
            Masked::Causal => AttentionMask::Causal,
            Masked::Added(_) | Masked::Shown(_) => AttentionMask::Given,
        };
        Attention { mask, heads: self.order, scale: 1.0 / (self.depth as f64).sqrt() }
    }

    pub(crate) fn dims(&self, heads: usize, positions: usize) -> [usize; 4] {
        match self.order {
            HeadOrder::Outer => [self.batch, heads, positions, self.depth],
            HeadOrder::Inner => [self.batch, positions, heads, self.depth],
        }
    }

    pub(crate) fn q(&self) -> [usize; 4] {
        self.dims(self.heads, self.queries)
    }

    pub(crate) fn k(&self) -> [usize; 4] {
        self.dims(self.groups, self.keys)
    }

    pub(crate) fn mask<T: Real>(&self, values: &mut Values) -> Option<Tensor> {
        let full = [self.batch, self.heads, self.queries, self.keys];
        let dims = |ones: u8| -> Vec<usize> {
            (0..4).map(|d| if ones >> d & 1 == 1 { 1 } else { full[d] }).collect()
        };
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        match self.mask {
            Masked::None | Masked::Causal => None,
            Masked::Added(ones) => {
                let dims = dims(ones);
                let mut one = |_| match values.below(4) {
                    0 => T::neg_infinity(),
                    _ => T::of(values.uniform()),
                };
                Some(Tensor::new(&dims, &(0..count(&dims)).map(&mut one).collect::<Vec<T>>()))
            }
            Masked::Shown(ones) => {
                let dims = dims(ones);
                let shown: Vec<u8> = (0..count(&dims)).map(|_| values.below(3) as u8).collect();
                Some(Tensor::new(&dims, &shown))
            }
        }
    }
}

fn attention<T: Real>(shape: Shape, seed: u64) {
    let mut values = Values(seed);
    let (q, k) = (shape.q(), shape.k());
    let mut tensor = |dims: &[usize]| Tensor::new(dims, &values.reals::<T>(dims.iter().product()));
    let (dy, mut inputs) = (tensor(&q), vec![tensor(&q), tensor(&k), tensor(&k)]);
    inputs.extend(shape.mask::<T>(&mut values));
    let statistic = [shape.batch, shape.heads, shape.queries];
    let op = Op::Attention(shape.by());
    let (keys, queries, depth) = (shape.keys as f64, shape.queries as f64, shape.depth as f64);
    // a product is of numbers up to 2, scaled by 1/√d
    let unit = T::epsilon() * T::of(4.0 * depth.sqrt() + 4.0);
    let tolerance = unit * T::of(16.0 * (keys.sqrt() + depth.sqrt() + 16.0));
    near::<T>(&op, &inputs, &[&q, &statistic], |_, _, _| tolerance);
    let made = run_all::<T>(&reference(), &op, &inputs, &[&q, &statistic]);
    let mut given = vec![dy];
    given.extend_from_slice(&inputs[..3]);
    given.extend([Tensor::new(&q, &made[0]), Tensor::new(&statistic, &made[1])]);
    given.extend_from_slice(&inputs[3..]);
    let op = Op::AttentionGrad(shape.by());
    let made = run_all::<T>(&reference(), &op, &given, &[&q, &k, &k]);
    let largest = made.concat().iter().fold(T::one(), |most, x| most.max(x.abs()));
    let tolerance = tolerance * T::of(4.0 * (1.0 + depth.sqrt() + queries.sqrt())) * largest;
    near::<T>(&op, &given, &[&q, &k, &k], |_, _, _| tolerance);
}

fn shapes(most: usize) -> impl Strategy<Value = Shape> {
    let mask = prop_oneof![
        Just(Masked::None),
        Just(Masked::Causal),
        (0u8..16).prop_map(Masked::Added),
        (0u8..16).prop_map(Masked::Shown)
    ];
    let order = prop_oneof![Just(HeadOrder::Outer), Just(HeadOrder::Inner)];
    let sizes = [1usize..3, 1..3, 1..3, 0..most, 0..most, 1..10];
    (sizes, mask, order).prop_map(|([batch, groups, many, queries, keys, depth], mask, order)| {
        let keys = if matches!(mask, Masked::Causal) { queries } else { keys };
        let heads = groups * many;
        Shape { batch, heads, groups, queries, keys, depth, order, mask }
    })
}

/// The first position.
const OFFSET: usize = 3;

fn rotary<T: Real>(dims: [usize; 4], seed: u64) {
    let x: Vec<T> = Values(seed).reals(dims.iter().product());
    for heads in [HeadOrder::Outer, HeadOrder::Inner] {
        for inverse in [false, true] {
            let op = Op::Rotary(Rotary { base: 10_000.0, offset: OFFSET, heads, inverse });
            // angles are f64: the last bits of a frequency, which is a power, count as often as its position
            let positions = (OFFSET + dims[1].max(dims[2])) as f64;
            let angle = T::of(4.0 * f64::EPSILON * positions);
            near::<T>(&op, &[Tensor::new(&dims, &x)], &[&dims], |_, _, _| {
                T::of(16.0) * T::epsilon() + angle
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_attention(shape in shapes(40), seed: u64) {
        attention::<f32>(shape, seed);
        attention::<f64>(shape, seed);
    }

    #[test]
    fn gradients_of_attention(shape in shapes(6), seed: u64) {
        let mut values = Values(seed);
        let mut net = common::net();
        let mut tensor = |dims: &[usize]| Tensor::new(dims, &values.reals::<f64>(dims.iter().product()));
        let mut inputs = Vec::new();
        for dims in [shape.q(), shape.k(), shape.k()] {
            inputs.push(net.differentiated(tensor(&dims)).unwrap());
        }
        if let Some(mask) = shape.mask::<f64>(&mut values) {
            inputs.push(net.fixed(mask).unwrap());
        }
        let outputs = net.add(Op::Attention(shape.by()), &inputs).unwrap();
        net.check(&outputs[..1]).unwrap();
    }

    #[test]
    fn rotary_positions(dims in [0usize..3, 1..4, 1..70, 1..20], seed: u64) {
        let dims = [dims[0], dims[1], dims[2], 2 * dims[3]];
        rotary::<f32>(dims, seed);
        rotary::<f64>(dims, seed);
        let x = Tensor::new(&dims, &Values(seed).reals::<f64>(dims.iter().product()));
        let by = Rotary { base: 100.0, offset: 2, heads: HeadOrder::Inner, inverse: false };
        if dims.iter().product::<usize>() < 200 {
            common::gradient(&Op::Rotary(by), &[x]).unwrap();
        }
    }
}

/// Lengths at which keys are cut into blocks, and queries into pieces.
#[test]
fn long_attention() {
    let (outer, inner) = (HeadOrder::Outer, HeadOrder::Inner);
    let shape = |queries, keys, order, mask| Shape {
        batch: 1,
        heads: 2,
        groups: 1,
        queries,
        keys,
        depth: 20,
        order,
        mask,
    };
    attention::<f32>(shape(1100, 1100, inner, Masked::Causal), 1);
    attention::<f32>(shape(700, 300, outer, Masked::None), 2);
    attention::<f32>(shape(3, 900, outer, Masked::Shown(0b0110)), 3);
    attention::<f64>(shape(520, 600, inner, Masked::Added(0b0011)), 4);
    attention::<f32>(Shape { depth: 64, ..shape(260, 260, outer, Masked::Causal) }, 5);
    rotary::<f32>([2, 3, 300, 64], 6);
}

/// Each query that sees one key alone has that key's value, and one that sees none has 0.
#[test]
fn what_is_not_seen_counts_for_nothing() {
    let by = Attention { mask: AttentionMask::Given, heads: HeadOrder::Outer, scale: 1.0 };
    let q = Tensor::new(&[1, 1, 3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let v = Tensor::new(&[1, 1, 2, 2], &[7.0f32, 8.0, 9.0, 10.0]);
    let mask = Tensor::new(&[1, 1, 3, 2], &[1u8, 0, 0, 1, 0, 0]);
    let inputs = [q, v.clone(), v, mask];
    for kernels in all() {
        let made =
            run_all::<f32>(&kernels, &Op::Attention(by), &inputs, &[&[1, 1, 3, 2], &[1, 1, 3]]);
        assert_eq!(made[0], [7.0, 8.0, 9.0, 10.0, 0.0, 0.0]);
        assert_eq!(made[1][2], f32::NEG_INFINITY);
        let [y, lse] = [Tensor::new(&[1, 1, 3, 2], &made[0]), Tensor::new(&[1, 1, 3], &made[1])];
        let [q, k, v, mask] = inputs.clone();
        let given = [q.clone(), q, k, v, y, lse, mask];
        let dims: [&[usize]; 3] = [&[1, 1, 3, 2], &[1, 1, 2, 2], &[1, 1, 2, 2]];
        let made = run_all::<f32>(&kernels, &Op::AttentionGrad(by), &given, &dims);
        assert_eq!(made[0], [0.0; 6]);
        assert_eq!(made[2], [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn storage_in_bf16() {
    let dims = [1, 2, 5, 4];
    let numbers = |seed: u64| -> Vec<bf16> {
        Values(seed).reals::<f64>(40).iter().map(|&x| bf16::from_f64(x)).collect()
    };
    let narrow = |x: &[bf16]| Tensor::new(&dims, x);
    let wide = |x: &[bf16]| Tensor::new(&dims, &x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
    let by = Attention { mask: AttentionMask::Causal, heads: HeadOrder::Outer, scale: 0.5 };
    let given = [numbers(1), numbers(2), numbers(3)];
    for kernels in all() {
        let run = |dtype: DType, inputs: Vec<Tensor>| {
            let mut outputs =
                [Tensor::unwritten(dtype, &dims), Tensor::unwritten(DType::F32, &[1, 2, 5])];
            try_run(&kernels, &Op::Attention(by), &inputs, &mut outputs).unwrap();
            outputs
        };
        let found = run(DType::BF16, given.iter().map(|x| narrow(x)).collect());
        let expected = run(DType::F32, given.iter().map(|x| wide(x)).collect());
        assert_eq!(found[1].to_vec::<f32>(), expected[1].to_vec::<f32>());
        let rounded: Vec<bf16> =
            expected[0].to_vec::<f32>().iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(found[0].to_vec::<bf16>(), rounded);
    }
}
