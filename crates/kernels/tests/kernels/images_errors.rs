//! Operands over images that do not fit are told apart by the error, on every back end; none panics.

use crate::common::{Tensor, all, try_run};
use tensorwire_graph::{Op, Window};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_tensor::DType;

/// The error of a call on every back end, which must be the same one.
#[track_caller]
fn error(op: &Op, inputs: &[Tensor], outputs: &[Tensor]) -> KernelError {
    let mut errors =
        all().into_iter().map(|k| try_run(&k, op, inputs, &mut outputs.to_vec()).unwrap_err());
    let first = errors.next().unwrap();
    assert!(errors.all(|e| e == first));
    first
}

/// (operator, inputs' dimensions, outputs' dimensions)
type Fitting = (Op, Vec<Vec<usize>>, Vec<Vec<usize>>);

/// Every operator, with operands that fit.
fn fitting() -> Vec<Fitting> {
    let window = Window::padded([3, 2], [2, 1], [1, 0]);
    let (x, w, y) = (vec![2, 6, 4, 6], vec![4, 3, 3, 2], vec![2, 3, 3, 4]);
    let pooled = vec![2, 3, 3, 6];
    let (c, groups, size) = (vec![6], 2, [6, 4]);
    let copies = |first: &[&Vec<usize>], vectors: usize| {
        let mut all: Vec<Vec<usize>> = first.iter().map(|&dims| dims.clone()).collect();
        all.resize(first.len() + vectors, c.clone());
        all
    };
    let (epsilon, alpha, beta, bias) = (0.1, 1.0, 0.75, 1.0);
    vec![
        (Op::Conv2d { window, groups }, vec![x.clone(), w.clone()], vec![y.clone()]),
        (Op::Conv2dGradInput { window, groups, size }, vec![y.clone(), w.clone()], vec![x.clone()]),
        (Op::Conv2dGradWeight { window, groups }, vec![y, x.clone()], vec![w]),
        (Op::MaxPool { window }, vec![x.clone()], vec![pooled.clone(), pooled.clone()]),
        (Op::MaxPoolGrad { window, size }, vec![pooled.clone(), pooled.clone()], vec![x.clone()]),
        (Op::AvgPool { window }, vec![x.clone()], vec![pooled.clone()]),
        (Op::AvgPoolGrad { window, size }, vec![pooled], vec![x.clone()]),
        (Op::BatchNorm { epsilon, scaled: true }, copies(&[&x], 2), copies(&[&x], 2)),
        (Op::BatchNorm { epsilon, scaled: false }, copies(&[&x], 1), copies(&[&x], 2)),
        (Op::BatchNormGrad { epsilon, scaled: true }, copies(&[&x, &x], 3), copies(&[&x], 2)),
        (Op::BatchNormGrad { epsilon, scaled: false }, copies(&[&x, &x], 2), copies(&[&x], 1)),
        (Op::Normalize { epsilon, scaled: true }, copies(&[&x], 4), copies(&[&x], 0)),
        (Op::Normalize { epsilon, scaled: false }, copies(&[&x], 3), copies(&[&x], 0)),
        (Op::LocalResponseNorm { size: 3, alpha, beta, bias }, vec![x.clone()], vec![x.clone()]),
        (Op::LocalResponseNormGrad { size: 3, alpha, beta, bias }, vec![x.clone(); 3], vec![x]),
    ]
}

/// The element type that `op` gives or takes at one of its operands, if its floats are f32.
fn dtype(op: &Op, operand: Operand) -> DType {
    match (op, operand) {
        (Op::MaxPool { .. }, Operand::Output(1)) => DType::U8,
        (Op::MaxPoolGrad { .. }, Operand::Input(1)) => DType::U8,
        _ => DType::F32,
    }
}

fn tensors(op: &Op, dims: &[Vec<usize>], operand: fn(usize) -> Operand) -> Vec<Tensor> {
    let tensor = |(i, dims): (usize, &Vec<usize>)| zeros(dtype(op, operand(i)), dims);
    dims.iter().enumerate().map(tensor).collect()
}

fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
    let mut tensor = Tensor::unwritten(dtype, dims);
    tensor.view_mut().bytes().fill(0);
    tensor
}

#[test]
fn every_operand_of_another_shape_or_type_or_count_is_refused() {
    for (op, inputs, outputs) in fitting() {
        let inputs_fit = tensors(&op, &inputs, Operand::Input);
        let outputs_fit = tensors(&op, &outputs, Operand::Output);
        for kernels in all() {
            try_run(&kernels, &op, &inputs_fit, &mut outputs_fit.clone()).unwrap();
        }
        let found = error(&op, &inputs_fit[..inputs.len() - 1], &outputs_fit);
        assert!(matches!(found, KernelError::InputCount { .. }), "{op:?}: {found}");
        let found = error(&op, &inputs_fit, &outputs_fit[1..]);
        assert!(matches!(found, KernelError::OutputCount { .. }), "{op:?}: {found}");
        let all_fit = inputs.iter().chain(&outputs);
        for (place, dims) in all_fit.enumerate() {
            let operand = match place.checked_sub(inputs.len()) {
                None => Operand::Input(place),
                Some(output) => Operand::Output(output),
            };
            let mut others: Vec<Vec<usize>> = (0..dims.len())
                .flat_map(|d| {
                    let mut more = dims.clone();
                    more[d] += 1;
                    let mut none = dims.clone();
                    none[d] = 0;
                    [more, none]
                })
                .collect();
            others.extend([vec![], vec![6, 6], [&dims[..], &[1]].concat()]);
            for other in others {
                let (mut inputs, mut outputs) = (inputs_fit.clone(), outputs_fit.clone());
                match operand {
                    Operand::Input(i) => inputs[i] = zeros(dtype(&op, operand), &other),
                    Operand::Output(i) => outputs[i] = zeros(dtype(&op, operand), &other),
                }
                let found = error(&op, &inputs, &outputs);
                assert!(
                    matches!(found, KernelError::Shape { .. } | KernelError::NoElements { .. }),
                    "{op:?}, {operand}, {other:?}: {found}"
                );
            }
            let (mut inputs, mut outputs) = (inputs_fit.clone(), outputs_fit.clone());
            match operand {
                Operand::Input(i) => inputs[i] = zeros(DType::I64, dims),
                Operand::Output(i) => outputs[i] = zeros(DType::I64, dims),
            }
            let found = error(&op, &inputs, &outputs);
            assert!(
                matches!(&found, KernelError::DType { operand: named, .. } if *named == operand),
                "{op:?}, {operand}: {found}"
            );
        }
    }
}

#[test]
fn operators_that_make_no_sense_are_refused() {
    let window = Window::valid([1, 1], [1, 1]);
    let f32s = |all: &[&[usize]]| all.iter().map(|d| zeros(DType::F32, d)).collect::<Vec<_>>();
    let image: &[usize] = &[1, 2, 2, 4];
    let w: &[usize] = &[4, 4, 1, 1];
    let huge = usize::MAX;
    let windows = [
        Window { stride: [0, 1], ..window },
        Window { dilation: [1, 0], ..window },
        Window { kernel: [0, 1], ..window },
        Window { kernel: [3, 1], ..window },
        Window { before: [1, 0], ..window },
        Window { after: [0, huge], ..window },
        Window { kernel: [2, 1], dilation: [huge, 1], ..window },
        Window { kernel: [2, 1], dilation: [huge / 4 * 2, 1], before: [huge / 2, 0], ..window },
        Window { stride: [huge, huge], ..window },
    ];
    for window in windows {
        let (groups, size) = (1, [2, 2]);
        for op in [
            Op::Conv2d { window, groups },
            Op::Conv2dGradInput { window, groups, size },
            Op::Conv2dGradWeight { window, groups },
        ] {
            let found = error(&op, &f32s(&[image, w]), &f32s(&[image]));
            assert!(matches!(found, KernelError::Shape { .. }), "{op:?}: {found}");
        }
        for op in [Op::AvgPool { window }, Op::AvgPoolGrad { window, size }] {
            let found = error(&op, &f32s(&[image]), &f32s(&[image]));
            assert!(matches!(found, KernelError::Shape { .. }), "{op:?}: {found}");
        }
    }
    for groups in [0, 3, huge] {
        for op in [
            Op::Conv2d { window, groups },
            Op::Conv2dGradInput { window, groups, size: [2, 2] },
            Op::Conv2dGradWeight { window, groups },
        ] {
            let found = error(&op, &f32s(&[image, w]), &f32s(&[image]));
            assert!(matches!(found, KernelError::Shape { .. }), "{op:?}: {found}");
        }
    }
    // a place in a window of 257 has no byte
    let window = Window::valid([257, 1], [1, 1]);
    let (x, y): (&[usize], &[usize]) = (&[1, 257, 1, 1], &[1, 1, 1, 1]);
    let outputs = [zeros(DType::F32, y), zeros(DType::U8, y)];
    let found = error(&Op::MaxPool { window }, &f32s(&[x]), &outputs);
    assert!(found.to_string().contains("at most 256"), "{found}");
    let op = Op::MaxPoolGrad { window, size: [257, 1] };
    let found = error(&op, &outputs, &f32s(&[x]));
    assert!(found.to_string().contains("at most 256"), "{found}");
    let op = Op::LocalResponseNorm { size: 4, alpha: 1.0, beta: 1.0, bias: 1.0 };
    let found = error(&op, &f32s(&[image]), &f32s(&[image]));
    assert!(found.to_string().contains("odd number"), "{found}");
    let op = Op::BatchNorm { epsilon: 0.1, scaled: false };
    let found = error(&op, &f32s(&[&[0, 3], &[3]]), &f32s(&[&[0, 3], &[3], &[3]]));
    assert!(matches!(found, KernelError::NoElements { .. }), "{found}");
}
