//! Each rule against its formula in f64, and bit by bit against the operator that trains.

use tensorwire_kernels::KernelChoice;

use super::*;
use tensorwire_nn::{Method, Optimizer};

const PART: ShardKey = ShardKey(70);
const KEY: Key = Key(7);
const ROWS: usize = 5;
const COLUMNS: usize = 3;
const N: usize = ROWS * COLUMNS;
const WORKERS: usize = 3;
const STEPS_MADE: usize = 4;

const SGD: StoreRule = StoreRule::Optimizer(Optimizer::sgd(0.1));
const ADAM: StoreRule =
    StoreRule::Optimizer(Method::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 }.at(0.1));
/// Those that move along a gradient.
const OPTIMIZERS: [StoreRule; 7] = [
    SGD,
    StoreRule::Optimizer(Method::Momentum { momentum: 0.8 }.at(0.1)),
    StoreRule::Optimizer(Method::Nesterov { momentum: 0.8 }.at(0.1).decaying(0.05)),
    StoreRule::Optimizer(Method::AdaGrad { epsilon: 1e-6 }.at(0.1)),
    StoreRule::Optimizer(Method::RmsProp { alpha: 0.9, epsilon: 1e-6 }.at(0.1)),
    ADAM,
    StoreRule::Optimizer(
        Method::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 }.at(0.1).decaying(0.2),
    ),
];

fn spec(dtype: DType) -> ValueSpec {
    ValueSpec { dtype, rows: ROWS, columns: COLUMNS }
}

fn kernels() -> Arc<Kernels> {
    Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap())
}

/// With a shard of this type, under this rule.
fn arithmetic(rule: StoreRule, dtype: DType) -> Arithmetic {
    let mut arithmetic = Arithmetic::new(kernels());
    arithmetic.set(&StoreRules::all(rule).to_bytes()).unwrap();
    arithmetic.create(PART, KEY, &spec(dtype)).unwrap();
    arithmetic
}

fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    let one = |value: &f64| match dtype {
        DType::F32 => (*value as f32).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(*value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let one = |chunk: &[u8]| match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(chunk.try_into().unwrap())),
        DType::BF16 => half::bf16::from_le_bytes(chunk.try_into().unwrap()).to_f64(),
        _ => f64::from_le_bytes(chunk.try_into().unwrap()),
    };
    bytes.chunks_exact(dtype.bytes()).map(one).collect()
}

fn first() -> Vec<f64> {
    (0..N).map(|at| 1.0 + at as f64 / 7.0).collect()
}

/// What a worker pushes: of all sizes and signs.
fn pushed(step: usize, worker: usize, elements: usize) -> Vec<f64> {
    let one = |at: usize| ((at * 13 + step * 5 + worker * 7) % 11) as f64 / 3.0 - 1.5;
    (0..elements).map(one).collect()
}

/// The formulas.
#[derive(Default)]
struct Model {
    slots: [Vec<f64>; 2],
    steps: i32,
}

impl Model {
    fn new() -> Model {
        Model { slots: [vec![0.0; N], vec![0.0; N]], steps: 0 }
    }

    /// Moves the elements that have a gradient.
    fn step(&mut self, rule: StoreRule, w: &mut [f64], gradients: &[Option<f64>]) {
        self.steps += 1;
        let [first, second] = &mut self.slots;
        let StoreRule::Optimizer(Optimizer { method, rate, decay }) = rule else {
            panic!("{rule:?} moves along no gradient")
        };
        for (at, g) in gradients.iter().enumerate() {
            let Some(g) = *g else { continue };
            let (w, first, second) = (&mut w[at], &mut first[at], &mut second[at]);
            let g = match method {
                Method::AdamW { .. } => {
                    *w *= 1.0 - rate * decay;
                    g
                }
                _ => g + decay * *w,
            };
            match method {
                Method::Sgd => *w -= rate * g,
                Method::Momentum { momentum } => {
                    *first = momentum * *first + g;
                    *w -= rate * *first;
                }
                Method::Nesterov { momentum } => {
                    *first = momentum * *first + g;
                    *w -= rate * (g + momentum * *first);
                }
                Method::RmsProp { alpha, epsilon } => {
                    *first = alpha * *first + (1.0 - alpha) * g * g;
                    *w -= rate * g / (first.sqrt() + epsilon);
                }
                Method::AdaGrad { epsilon } => {
                    *first += g * g;
                    *w -= rate * g / (first.sqrt() + epsilon);
                }
                Method::Adam { beta1, beta2, epsilon }
                | Method::AdamW { beta1, beta2, epsilon } => {
                    *first = beta1 * *first + (1.0 - beta1) * g;
                    *second = beta2 * *second + (1.0 - beta2) * g * g;
                    let (m, s) = (
                        *first / (1.0 - beta1.powi(self.steps)),
                        *second / (1.0 - beta2.powi(self.steps)),
                    );
                    *w -= rate * m / (s.sqrt() + epsilon);
                }
                _ => panic!("{method:?} is not modelled"),
            }
        }
    }
}

fn are_close(dtype: DType, found: &[u8], expected: &[f64], what: &dyn std::fmt::Debug) {
    let tolerance = if dtype == DType::F64 { 1e-12 } else { 2e-5 };
    let found = numbers(dtype, found);
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        assert!(error < tolerance, "{what:?} of {dtype}, {at}: {found}, not {expected}");
    }
}

#[test]
fn optimizers_move_along_the_mean_of_what_was_pushed() {
    for (rule, dtype) in
        OPTIMIZERS.iter().flat_map(|rule| [(*rule, DType::F32), (*rule, DType::F64)])
    {
        let (mut arithmetic, mut model) = (arithmetic(rule, dtype), Model::new());
        let (mut weights, mut expected) = (bytes(dtype, &first()), first());
        for step in 0..STEPS_MADE {
            let pushes: Vec<Vec<f64>> = (0..WORKERS).map(|w| pushed(step, w, N)).collect();
            let told: Vec<Vec<u8>> = pushes.iter().map(|push| bytes(dtype, push)).collect();
            let told: Vec<&[u8]> = told.iter().map(Vec::as_slice).collect();
            arithmetic.apply(PART, &mut weights, &told).unwrap();
            let mean = |at: usize| pushes.iter().map(|push| push[at]).sum::<f64>() / WORKERS as f64;
            let means: Vec<Option<f64>> = (0..N).map(|at| Some(mean(at))).collect();
            model.step(rule, &mut expected, &means);
            are_close(dtype, &weights, &expected, &rule);
        }
    }
}

#[test]
fn a_fold_has_the_bits_of_the_operator_that_trains() {
    let dtype = DType::F32;
    let tensor = TensorSpec::new(dtype, &[ROWS, COLUMNS]).unwrap();
    for rule in OPTIMIZERS {
        let mut arithmetic = arithmetic(rule, dtype);
        let op = Op::Apply { rule: rule.optimizer().unwrap(), clipped: false };
        let mut weights = bytes(dtype, &first());
        let mut trained = weights.clone();
        let kept = rule.optimizer().unwrap().slots_of(&tensor).unwrap();
        let mut slots: Vec<(&TensorSpec, Vec<u8>)> =
            kept.iter().map(|(_, spec)| (spec, vec![0; spec.bytes()])).collect();
        for step in 0..STEPS_MADE {
            let pushes: Vec<Vec<u8>> =
                (0..WORKERS).map(|worker| bytes(dtype, &pushed(step, worker, N))).collect();
            let told: Vec<&[u8]> = pushes.iter().map(Vec::as_slice).collect();
            arithmetic.apply(PART, &mut weights, &told).unwrap();
            let inputs: Vec<TensorRef<'_>> =
                told.iter().map(|push| TensorRef::new(&tensor, push).unwrap()).collect();
            let mut outputs = vec![TensorMut::new(&tensor, &mut trained).unwrap()];
            for (spec, bytes) in &mut slots {
                outputs.push(TensorMut::new(spec, bytes).unwrap());
            }
            kernels().run(&op, &inputs, &mut outputs).unwrap();
            assert_eq!(weights, trained, "{rule:?}, step {step}");
        }
        let kept: Vec<Vec<u8>> =
            arithmetic.state(PART).unwrap().into_iter().map(|slot| slot.bytes).collect();
        assert_eq!(kept, slots.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>());
    }
}

/// What workers push of rows: indices with repetitions, none, and others.
fn row_indices(step: usize) -> [Vec<i32>; WORKERS] {
    let last = ROWS as i32 - 1;
    [vec![0, 2, 2, 2, last], Vec::new(), vec![2, (step % ROWS) as i32].into_iter().rev().collect()]
        .map(|mut indices: Vec<i32>| {
            indices.sort_unstable();
            indices
        })
}

/// One fold of rows; returns their sums by element, none where nothing was pushed.
fn fold_rows(
    arithmetic: &mut Arithmetic,
    dtype: DType,
    weights: &mut [u8],
    step: usize,
) -> Vec<Option<f64>> {
    let mut sums = vec![None; N];
    let all = row_indices(step).into_iter().enumerate().map(|(worker, indices)| {
        let rows = pushed(step, worker, indices.len() * COLUMNS);
        for (at, row) in rows.iter().enumerate() {
            let element = indices[at / COLUMNS] as usize * COLUMNS + at % COLUMNS;
            *sums[element].get_or_insert(0.0) += row;
        }
        let told: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        (told, bytes(dtype, &rows))
    });
    let all: Vec<(Vec<u8>, Vec<u8>)> = all.collect();
    let pushes: Vec<PushedRows<'_>> =
        all.iter().map(|(indices, rows)| PushedRows { indices, rows }).collect();
    arithmetic.apply_rows(PART, weights, &pushes).unwrap();
    sums
}

#[test]
fn optimizers_move_the_rows_that_were_pushed_and_no_others() {
    for rule in OPTIMIZERS {
        for dtype in [DType::F32, DType::F64] {
            let (mut arithmetic, mut model) = (arithmetic(rule, dtype), Model::new());
            let (mut weights, mut expected) = (bytes(dtype, &first()), first());
            for step in 0..STEPS_MADE {
                let sums = fold_rows(&mut arithmetic, dtype, &mut weights, step);
                let mean = |sum: Option<f64>| sum.map(|sum| sum / WORKERS as f64);
                let means: Vec<Option<f64>> = sums.into_iter().map(mean).collect();
                model.step(rule, &mut expected, &means);
                are_close(dtype, &weights, &expected, &rule);
            }
        }
    }
}

#[test]
fn without_an_optimizer_values_become_sums_and_rows_are_added() {
    let dtype = DType::F32;
    let mut arithmetic = arithmetic(StoreRule::Sum, dtype);
    let mut weights = bytes(dtype, &first());
    for workers in 1..=4 {
        let pushes: Vec<Vec<f64>> = (0..workers).map(|worker| pushed(1, worker, N)).collect();
        let told: Vec<Vec<u8>> = pushes.iter().map(|push| bytes(dtype, push)).collect();
        let told: Vec<&[u8]> = told.iter().map(Vec::as_slice).collect();
        arithmetic.apply(PART, &mut weights, &told).unwrap();
        // in the order of ranks, in f32
        let sum = |at: usize| pushes.iter().map(|p| p[at] as f32).reduce(|a, b| a + b).unwrap();
        let sums: Vec<f64> = (0..N).map(|at| f64::from(sum(at))).collect();
        assert_eq!(weights, bytes(dtype, &sums), "{workers} workers");
    }
    let before = numbers(dtype, &weights);
    let sums = fold_rows(&mut arithmetic, dtype, &mut weights, 2);
    let after: Vec<f64> =
        before.iter().zip(sums).map(|(before, sum)| before + sum.unwrap_or(0.0)).collect();
    are_close(dtype, &weights, &after, &"rows");
}

#[test]
fn averages_move_towards_what_was_pushed() {
    type Formula = fn(f64, &[f64]) -> f64;
    let rules: [(StoreRule, Formula); 2] = [
        (StoreRule::Average { rate: 0.25 }, |w, x| {
            w + 0.25 * (x.iter().sum::<f64>() / x.len() as f64 - w)
        }),
        (StoreRule::Elastic { alpha: 0.1 }, |w, x| w + 0.1 * x.iter().map(|x| x - w).sum::<f64>()),
    ];
    for (rule, formula) in rules {
        for dtype in [DType::F32, DType::F64] {
            let mut arithmetic = arithmetic(rule, dtype);
            let (mut weights, mut expected) = (bytes(dtype, &first()), first());
            for step in 0..STEPS_MADE {
                // of as many workers as live
                let pushes: Vec<Vec<f64>> = (0..=step).map(|w| pushed(step, w, N)).collect();
                let told: Vec<Vec<u8>> = pushes.iter().map(|push| bytes(dtype, push)).collect();
                let told: Vec<&[u8]> = told.iter().map(Vec::as_slice).collect();
                arithmetic.apply(PART, &mut weights, &told).unwrap();
                for (at, w) in expected.iter_mut().enumerate() {
                    let pushed: Vec<f64> = pushes.iter().map(|push| push[at]).collect();
                    *w = formula(*w, &pushed);
                }
                are_close(dtype, &weights, &expected, &rule);
            }
            let refused = arithmetic.apply_rows(PART, &mut weights, &[]).unwrap_err();
            assert!(refused.contains("key 7: averages are of whole values"), "{refused}");
        }
    }
}

#[test]
fn integers_are_summed_and_have_no_optimizer() {
    let wide = |values: [i64; 3]| values.map(i64::to_le_bytes).concat();
    let mut sums = Arithmetic::new(kernels());
    let mut into = wide([1, -2, i64::MAX]);
    sums.add(DType::I64, &mut into, &wide([10, 20, 1])).unwrap();
    assert_eq!(into, wide([11, 18, i64::MIN]));
    let narrow = |values: [i32; 2]| values.map(i32::to_le_bytes).concat();
    let mut into = narrow([7, i32::MAX]);
    sums.add(DType::I32, &mut into, &narrow([-8, 1])).unwrap();
    assert_eq!(into, narrow([-1, i32::MIN]));
    let mut into = [250u8, 1];
    sums.add(DType::U8, &mut into, &[10, 2]).unwrap();
    assert_eq!(into, [4, 3]);
    let mut of_shards = arithmetic(StoreRule::Sum, DType::I64);
    let one = [3i64; N].map(i64::to_le_bytes).concat();
    let mut weights = vec![9; one.len()];
    of_shards.apply(PART, &mut weights, &[&one, &one, &one]).unwrap();
    assert_eq!(weights, [9i64; N].map(i64::to_le_bytes).concat());
    let mut of_steps = arithmetic(SGD, DType::I64);
    let refused = of_steps.apply(PART, &mut weights, &[&one]).unwrap_err();
    assert!(refused.contains("key 7"), "{refused}");
}

#[test]
fn what_is_restored_goes_on_with_the_same_bits() {
    for (rule, dtype) in
        OPTIMIZERS.iter().flat_map(|rule| [(*rule, DType::F32), (*rule, DType::BF16)])
    {
        let fold = |arithmetic: &mut Arithmetic, weights: &mut [u8], step: usize| {
            let push = bytes(dtype, &pushed(step, 0, N));
            arithmetic.apply(PART, weights, &[&push]).unwrap();
        };
        let (mut whole, mut weights) = (arithmetic(rule, dtype), bytes(dtype, &first()));
        (0..3).for_each(|step| fold(&mut whole, &mut weights, step));
        let kept = whole.state(PART).unwrap();
        let names: Vec<&str> = kept.iter().map(|slot| slot.name.as_str()).collect();
        let spec = TensorSpec::new(dtype, &[ROWS, COLUMNS]).unwrap();
        let expected = rule.optimizer().unwrap().slots_of(&spec).unwrap();
        let expected: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, expected);
        if dtype == DType::BF16 {
            let is_wide = |slot: &StateTensor| [DType::F32, DType::I64].contains(&slot.dtype);
            assert!(kept.iter().all(is_wide), "what is summed up loses small changes in bf16");
        }
        let (mut other, mut again) = (arithmetic(rule, dtype), weights.clone());
        other.restore(PART, kept.clone()).unwrap();
        fold(&mut whole, &mut weights, 3);
        fold(&mut other, &mut again, 3);
        assert_eq!(weights, again, "{rule:?} of {dtype}");
        if let Some((last, others)) = kept.split_last() {
            let refused = other.restore(PART, others.to_vec()).unwrap_err();
            assert!(refused.contains(&format!("there is no {}", last.name)), "{refused}");
        }
    }
}

#[test]
fn rules_are_of_all_keys_or_of_one_and_start_afresh() {
    let of_keys = [(KEY.0, ADAM)].into_iter().collect();
    let rules = StoreRules { default: SGD, of_keys, masters: false };
    let mut arithmetic = Arithmetic::new(kernels());
    arithmetic.create(PART, KEY, &spec(DType::F32)).unwrap();
    arithmetic.create(ShardKey(71), Key(8), &spec(DType::F32)).unwrap();
    arithmetic.set(&rules.to_bytes()).unwrap();
    let names = |arithmetic: &Arithmetic, shard: ShardKey| {
        arithmetic.state(shard).unwrap().into_iter().map(|slot| slot.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&arithmetic, PART), ["first_moment", "second_moment", "steps"]);
    assert!(names(&arithmetic, ShardKey(71)).is_empty());
    let push = bytes(DType::F32, &pushed(0, 0, N));
    let mut weights = bytes(DType::F32, &first());
    arithmetic.apply(PART, &mut weights, &[&push]).unwrap();
    let fresh: fn(&StateTensor) -> bool = |slot| slot.bytes.iter().all(|byte| *byte == 0);
    assert!(!arithmetic.state(PART).unwrap().iter().any(fresh));
    let refused = arithmetic.set(b"{\"default\":\"magic\"}").unwrap_err();
    assert!(refused.contains("no rules of a store"), "{refused}");
    assert!(!arithmetic.state(PART).unwrap().iter().any(fresh), "what is refused changes nothing");
    arithmetic.set(&rules.to_bytes()).unwrap();
    assert!(arithmetic.state(PART).unwrap().iter().all(fresh));
    let unknown = arithmetic.apply(ShardKey(9), &mut weights, &[&push]).unwrap_err();
    assert_eq!(unknown, "shard 9 is unknown");
}

/// What travels rounded is changed as f32: the master has the bits of a shard of f32 that the same numbers are pushed to, and the
/// shard those of the master, rounded.
#[test]
fn a_rounded_shard_keeps_what_it_is_rounded_from() {
    let rounded = |values: &[f64]| bytes(DType::BF16, values);
    let widened = |narrow: &[u8]| bytes(DType::F32, &numbers(DType::BF16, narrow));
    for rule in OPTIMIZERS.into_iter().chain([StoreRule::Mean, StoreRule::Average { rate: 0.1 }]) {
        let rules = StoreRules { masters: true, ..StoreRules::all(rule) };
        let mut narrow = Arithmetic::new(kernels());
        narrow.set(&rules.to_bytes()).unwrap();
        narrow.create(PART, KEY, &spec(DType::BF16)).unwrap();
        let mut wide = arithmetic(rule, DType::F32);
        let mut weights = rounded(&first());
        let mut whole = widened(&weights);
        assert_eq!(narrow.wide(PART, &weights).unwrap(), whole, "before anything is pushed");
        for step in 0..STEPS_MADE {
            let pushes: Vec<Vec<u8>> =
                (0..WORKERS).map(|worker| rounded(&pushed(step, worker, N))).collect();
            let wide_pushes: Vec<Vec<u8>> = pushes.iter().map(|push| widened(push)).collect();
            let narrow_slices: Vec<&[u8]> = pushes.iter().map(Vec::as_slice).collect();
            let wide_slices: Vec<&[u8]> = wide_pushes.iter().map(Vec::as_slice).collect();
            narrow.apply(PART, &mut weights, &narrow_slices).unwrap();
            wide.apply(PART, &mut whole, &wide_slices).unwrap();
            assert_eq!(narrow.wide(PART, &weights).unwrap(), whole, "{rule:?} step {step}");
            assert_eq!(weights, rounded(&numbers(DType::F32, &whole)), "{rule:?} step {step}");
            // another server goes on from a snapshot
            let state = narrow.state(PART).unwrap();
            assert!(state.iter().any(|kept| kept.name == MASTER && kept.bytes == whole));
            narrow = Arithmetic::new(kernels());
            narrow.set(&rules.to_bytes()).unwrap();
            narrow.create(PART, KEY, &spec(DType::BF16)).unwrap();
            narrow.restore(PART, state).unwrap();
        }
    }
}

#[test]
fn values_of_bf16_are_changed_as_they_are_where_no_masters_are_asked_for() {
    let narrow = arithmetic(SGD, DType::BF16);
    assert_eq!(narrow.wide(PART, &bytes(DType::BF16, &first())), None);
    assert!(narrow.state(PART).unwrap().iter().all(|kept| kept.name != MASTER));
}

#[test]
fn a_state_that_cannot_be_read_is_an_error_and_no_empty_tensor() {
    let rules = StoreRules { masters: true, ..StoreRules::all(ADAM) };
    let mut arithmetic = Arithmetic::new(kernels());
    arithmetic.set(&rules.to_bytes()).unwrap();
    arithmetic.create(PART, KEY, &spec(DType::BF16)).unwrap();
    let mut weights = bytes(DType::BF16, &first());
    let push = bytes(DType::BF16, &pushed(0, 0, N));
    arithmetic.apply(PART, &mut weights, &[&push]).unwrap();
    let kept = &arithmetic.shards[&PART].kept;
    let master = kept.master.as_ref().map(|master| &master.slot);
    for slot in kept.slots.iter().chain(master) {
        // whoever writes there keeps readers out
        let written = slot.buffer.write().unwrap();
        let failed = arithmetic.state(PART).unwrap_err();
        assert!(failed.starts_with(&format!("key 7: {}: ", slot.name)), "{failed}");
        drop(written);
    }
    assert_eq!(arithmetic.state(PART).unwrap().len(), kept.slots.len() + 1);
}
