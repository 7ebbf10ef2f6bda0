//! Gradients of more ranks than one launch takes, and rates that change from step to step.

use tensorwire_graph::{Method, Op, Rule};
use tensorwire_kernels::check::Tensor;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::DType;

use crate::common::{Values, all, reference, run_one, try_run};

fn reals(values: &mut Values, dims: &[usize]) -> Tensor {
    Tensor::new(dims, &values.reals::<f32>(dims.iter().product()))
}

fn narrow(values: &mut Values, dims: &[usize]) -> Tensor {
    let reals = values.reals::<f32>(dims.iter().product());
    Tensor::new(dims, &reals.into_iter().map(half::bf16::from_f32).collect::<Vec<_>>())
}

/// What is changed, bit for bit.
#[track_caller]
fn same_bytes(op: &Op, inputs: &[Tensor], outputs: &[Tensor]) {
    let run = |target: &_| {
        let mut outputs = outputs.to_vec();
        try_run(target, op, inputs, &mut outputs).unwrap();
        outputs.iter().map(|output| output.view().bytes().to_vec()).collect::<Vec<_>>()
    };
    let expected = run(&reference());
    for device in all() {
        assert!(run(&device) == expected, "{op:?}");
    }
}

#[test]
fn many_ranks_are_added_in_their_order() {
    let mut values = Values(1);
    let dims = [3, 70];
    for ranks in [32, 33, 65, 97] {
        let wide: Vec<Tensor> = (0..ranks).map(|_| reals(&mut values, &dims)).collect();
        let stored: Vec<Tensor> = (0..ranks).map(|_| narrow(&mut values, &dims)).collect();
        for (gradients, v) in [(&wide, reals(&mut values, &dims)), (&stored, stored[0].clone())] {
            let dtype = v.spec().dtype;
            same_bytes(&Op::Mean, gradients, &[Tensor::unwritten(dtype, &dims)]);
            let velocity = reals(&mut values, &dims);
            let clipped = [&[Tensor::scalar(0.3f64)], &gradients[..]].concat();
            let op = Op::Apply { rule: Rule::momentum(0.1), clipped: true };
            same_bytes(&op, &clipped, &[v.clone(), velocity]);
            same_bytes(&Op::ApplyAverage { rate: 0.2 }, gradients, std::slice::from_ref(&v));
            let sums: Vec<f64> = run_one(&reference(), &Op::SquareSums, gradients, &[3]);
            for device in all() {
                let found: Vec<f64> = run_one(&device, &Op::SquareSums, gradients, &[3]);
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b;
                assert!(found.iter().zip(&sums).all(near));
            }
        }
    }
}

#[test]
fn rows_of_many_ranks_are_added_in_their_order() {
    let mut values = Values(2);
    for (ranks, columns) in [(1, 5), (19, 3), (20, 3), (45, 1)] {
        let mut inputs = Vec::new();
        for rank in 0..ranks {
            let count = values.below(4) + rank % 2;
            let indices: Vec<i32> = (0..count).map(|_| values.below(7) as i32).collect();
            inputs.push(Tensor::new(&[count], &indices));
            inputs.push(reals(&mut values, &[count, columns]));
        }
        let state = [reals(&mut values, &[7, columns]), reals(&mut values, &[7, columns])];
        same_bytes(&Op::ApplyRows { rule: Rule::momentum(0.1) }, &inputs, &state);
    }
    // long chains of one index, and links over many warps
    let indices: Vec<i32> = (0..900).map(|i| if i % 3 == 0 { 4 } else { i % 11 }).collect();
    let inputs = [Tensor::new(&[900], &indices), reals(&mut values, &[900, 2])];
    let rule = Method::AdaGrad { epsilon: 1e-7 }.at(0.3);
    let positive = Tensor::new(&[11, 2], &[0.5f32; 22]);
    same_bytes(&Op::ApplyRows { rule }, &inputs, &[reals(&mut values, &[11, 2]), positive]);
}

#[test]
fn gradients_of_many_variables_are_clipped_together() {
    let mut values = Values(3);
    for count in [1, 64, 65, 200] {
        let mut sums = |_| {
            let squares: Vec<f64> = values.reals::<f64>(5).iter().map(|x| x * x).collect();
            Tensor::new(&[5], &squares)
        };
        let sums: Vec<Tensor> = (0..count).map(&mut sums).collect();
        let op = Op::ClipScale { norm: 1.5 };
        let expected: f64 = run_one(&reference(), &op, &sums, &[])[0];
        for device in all() {
            let found: f64 = run_one(&device, &op, &sums, &[])[0];
            assert!((found - expected).abs() <= 1e-14, "{found} {expected}");
        }
    }
    // of more tensors than one launch joins
    let parts: Vec<Tensor> = (0..40).map(|i| reals(&mut values, &[3, i % 4, 2])).collect();
    let joined: usize = (0..40).map(|i| i % 4).sum();
    let op = Op::Concat { axis: 1, size: None };
    same_bytes(&op, &parts, &[Tensor::unwritten(DType::F32, &[3, joined, 2])]);
}

/// A factor that a step reads gives the bits of a rule at so much the rate.
#[test]
fn the_rate_is_multiplied_when_a_step_runs() {
    let adam = Method::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-7 };
    let rules = [
        Rule::sgd(0.3),
        Rule::momentum(0.3),
        Rule::nesterov(0.3).decaying(0.1),
        Method::AdaGrad { epsilon: 1e-7 }.at(0.3),
        Method::RmsProp { alpha: 0.9, epsilon: 1e-7 }.at(0.3),
        adam.at(0.3),
        Method::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-7 }.at(0.3).decaying(0.1),
    ];
    let mut values = Values(4);
    let dims = [4, 6];
    let factor = 0.3712345;
    for rule in rules {
        let mut state: Vec<Tensor> = (0..=rule.slots())
            .map(|_| {
                let reals = values.reals::<f32>(24);
                Tensor::new(&dims, &reals.iter().map(|x| x.abs()).collect::<Vec<f32>>())
            })
            .collect();
        if rule.method.counts_steps() {
            state[3] = Tensor::scalar(2i64);
        }
        let rows = [Tensor::new(&[2], &[3i32, 1]), reals(&mut values, &[2, 6])];
        let whole = [reals(&mut values, &dims)];
        for (op, inputs) in
            [(Op::Apply { rule, clipped: false }, &whole[..]), (Op::ApplyRows { rule }, &rows[..])]
        {
            let mut expected = state.clone();
            try_run(&reference(), &op.at_rate(factor), inputs, &mut expected).unwrap();
            for device in all() {
                let mut found = state.clone();
                let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
                let mut outputs: Vec<TensorMut<'_>> =
                    found.iter_mut().map(Tensor::view_mut).collect();
                device.run_at(&op, &inputs, &mut outputs, factor).unwrap();
                drop(outputs);
                for (found, expected) in found.iter().zip(&expected) {
                    let same = found.view().bytes() == expected.view().bytes();
                    assert!(same, "{op:?} on {}", device.description());
                }
            }
        }
    }
}
