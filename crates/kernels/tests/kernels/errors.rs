//! Operands that do not fit are told apart by the error, on every back end; none panics.

use crate::common::{Tensor, all, try_run, try_run_in_place};
use tensorwire_graph::{Cell, EdgeId, Init, Method, Op, Reduction, Rule};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, Fact, TensorSpec};

const F32: DType = DType::F32;
const PRODUCT: Op = Op::MatMul { transpose_a: false, transpose_b: false };

fn tensor(dtype: DType, dims: &[usize]) -> Tensor {
    // labels of 0 and reals of 0: whatever is wrong with a call, it is not the values
    let mut tensor = Tensor::unwritten(dtype, dims);
    tensor.view_mut().bytes().fill(0);
    tensor
}

/// The error of a call on every back end, which must be the same one.
#[track_caller]
fn error(op: &Op, inputs: &[Tensor], outputs: &[Tensor]) -> KernelError {
    let mut errors =
        all().into_iter().map(|k| try_run(&k, op, inputs, &mut outputs.to_vec()).unwrap_err());
    let first = errors.next().unwrap();
    assert!(errors.all(|e| e == first));
    first
}

fn f32s(dims: &[&[usize]]) -> Vec<Tensor> {
    dims.iter().map(|dims| tensor(F32, dims)).collect()
}

#[test]
fn the_runtimes_operators_have_no_kernel() {
    let spec = TensorSpec::new(F32, &[]).unwrap();
    let fact = Fact::known(F32, &[]);
    let ops = [
        Op::Input { fact: fact.clone() },
        Op::Variable { spec, init: Init::Zeros },
        Op::NoOp,
        Op::Send { edge: EdgeId(0) },
        Op::Recv { edge: EdgeId(0), fact },
    ];
    for op in ops {
        let expected = KernelError::NoKernel { op: op.name() };
        assert_eq!(error(&op, &[], &[]), expected);
        assert_eq!(error(&op, &f32s(&[&[]]), &f32s(&[&[]])), expected);
        assert_eq!(error(&op, &[tensor(DType::U8, &[1])], &[]), expected);
    }
}

#[test]
fn counts() {
    let two = f32s(&[&[1, 1], &[1, 1]]);
    let found = error(&PRODUCT, &two[..1], &two[..1]);
    assert_eq!(found, KernelError::InputCount { op: "MatMul", expected: 2, found: 1 });
    assert_eq!(found.to_string(), "MatMul takes 2 inputs, found 1");
    let found = error(&PRODUCT, &two, &two);
    assert_eq!(found, KernelError::OutputCount { op: "MatMul", expected: 1, found: 2 });
    for op in [Op::BiasAdd, Op::SumRows, Op::Relu, Op::ReluGrad, Op::Add, Op::ScaleBy] {
        assert!(matches!(error(&op, &[], &[]), KernelError::InputCount { .. }), "{op:?}");
    }
    for op in [Op::SoftmaxCrossEntropy, Op::CountCorrect, Op::ReduceMax] {
        assert!(matches!(error(&op, &[], &[]), KernelError::InputCount { .. }), "{op:?}");
    }
    let op = Op::Apply { rule: Rule::sgd(1.0), clipped: false };
    assert_eq!(error(&op, &[], &two[..1]), KernelError::NoGradients { op: "ApplySgd" });
    let op = Op::Apply { rule: Method::Momentum { momentum: 1.0 }.at(1.0), clipped: false };
    let found = error(&op, &two[..1], &two[..1]);
    assert_eq!(found, KernelError::OutputCount { op: "ApplyMomentum", expected: 2, found: 1 });
    let op = Op::Fill { value: 0.0, spec: TensorSpec::new(F32, &[]).unwrap() };
    let found = error(&op, &two[..1], &two[..1]);
    assert_eq!(found, KernelError::InputCount { op: "Fill", expected: 0, found: 1 });
}

/// (operator, inputs' dimensions, outputs' dimensions, the operand that does not fit)
type Misfit = (Op, Vec<Vec<usize>>, Vec<Vec<usize>>, Operand);

#[test]
fn shapes() {
    use Operand::{Input, Output};
    let momentum = Op::Apply { rule: Method::Momentum { momentum: 1.0 }.at(1.0), clipped: false };
    let turned = Op::MatMul { transpose_a: false, transpose_b: true };
    let fill = Op::Fill { value: 0.0, spec: TensorSpec::new(F32, &[2]).unwrap() };
    let misfits: Vec<Misfit> = vec![
        (PRODUCT, vec![vec![2, 3], vec![2, 4]], vec![vec![2, 4]], Input(1)),
        (PRODUCT, vec![vec![6], vec![3, 4]], vec![vec![2, 4]], Input(0)),
        (PRODUCT, vec![vec![2, 3], vec![3, 4]], vec![vec![4, 2]], Output(0)),
        (turned, vec![vec![2, 3], vec![3, 4]], vec![vec![2, 3]], Input(1)),
        (Op::BiasAdd, vec![vec![2, 3], vec![2]], vec![vec![2, 3]], Input(1)),
        (Op::BiasAdd, vec![vec![2, 3], vec![3]], vec![vec![6]], Output(0)),
        (Op::SumRows, vec![vec![2, 3]], vec![vec![2]], Output(0)),
        (Op::SumRows, vec![vec![3]], vec![vec![3]], Input(0)),
        (Op::Relu, vec![vec![2, 3]], vec![vec![3, 2]], Output(0)),
        (Op::ReluGrad, vec![vec![2], vec![3]], vec![vec![2]], Input(1)),
        (Op::Add, vec![vec![2], vec![]], vec![vec![2]], Input(1)),
        (Op::Add, vec![vec![2], vec![2]], vec![vec![]], Output(0)),
        (Op::ScaleBy, vec![vec![2], vec![1]], vec![vec![2]], Input(1)),
        (Op::ReduceMax, vec![vec![2]], vec![vec![1]], Output(0)),
        (
            Op::Apply { rule: Rule::sgd(1.0), clipped: false },
            vec![vec![2], vec![3]],
            vec![vec![2]],
            Input(1),
        ),
        (momentum, vec![vec![2]], vec![vec![2], vec![1]], Output(1)),
        (fill, vec![], vec![vec![3]], Output(0)),
    ];
    for (op, inputs, outputs, misfit) in misfits {
        let tensors = |all: &[Vec<usize>]| all.iter().map(|d| tensor(F32, d)).collect::<Vec<_>>();
        let found = error(&op, &tensors(&inputs), &tensors(&outputs));
        assert!(
            matches!(&found, KernelError::Shape { op: name, operand, .. }
                if *name == op.name() && *operand == misfit),
            "{op:?} {inputs:?} {outputs:?}: {found}"
        );
    }
    let found = error(&Op::BiasAdd, &f32s(&[&[2, 3], &[2]]), &f32s(&[&[2, 3]]));
    assert_eq!(found.to_string(), "BiasAdd, input 1: expected dimensions [3], found f32[2]");
}

#[test]
fn element_types() {
    let f64s = |dims: &[usize]| tensor(DType::F64, dims);
    let found = error(&Op::Add, &[tensor(F32, &[1]), f64s(&[1])], &[tensor(F32, &[1])]);
    assert_eq!(found.to_string(), "Add, input 1: expected f32, found f64");
    let found = error(&Op::Relu, &[tensor(F32, &[1])], &[f64s(&[1])]);
    assert_eq!(found.to_string(), "Relu, output 0: expected f32, found f64");
    let found = error(&Op::Relu, &[tensor(DType::I32, &[1])], &f32s(&[&[1]]));
    assert_eq!(found.to_string(), "Relu, input 0: expected f32, f64 or bf16, found i32");
    // an empty tensor has a type as well
    let found = error(&Op::Relu, &[tensor(F32, &[0])], &[f64s(&[0])]);
    assert!(matches!(found, KernelError::DType { .. }), "{found}");
    let inputs = [tensor(F32, &[2, 3]), tensor(DType::I64, &[2])];
    let found = error(&Op::CountCorrect, &inputs, &[tensor(DType::I64, &[])]);
    assert_eq!(found.to_string(), "CountCorrect, input 1: expected i32, found i64");
    let inputs = [tensor(F32, &[2, 3]), tensor(DType::I32, &[2])];
    let found = error(&Op::CountCorrect, &inputs, &f32s(&[&[]]));
    assert_eq!(found.to_string(), "CountCorrect, output 0: expected i64, found f32");
    let op = Op::Apply { rule: Rule::sgd(1.0), clipped: false };
    let found = error(&op, &[f64s(&[1])], &f32s(&[&[1]]));
    assert_eq!(found.to_string(), "ApplySgd, input 0: expected f32, found f64");
}

#[test]
fn labels() {
    for (label, classes) in [(-2, 3), (3, 3), (i32::MIN, 3), (i32::MAX, 3), (0, 0)] {
        let inputs = |labels: &[i32]| {
            [tensor(F32, &[labels.len(), classes]), Tensor::new(&[labels.len()], labels)]
        };
        let expected = |op| KernelError::Label { op, row: 1, label, classes, ignored: -1 };
        let found = error(&Op::CountCorrect, &inputs(&[-1, label]), &[tensor(DType::I64, &[])]);
        assert_eq!(found, expected("CountCorrect"));
        let outputs = f32s(&[&[], &[2, classes]]);
        let found = error(&Op::SoftmaxCrossEntropy, &inputs(&[-1, label]), &outputs);
        assert_eq!(found, expected("SoftmaxCrossEntropy"));
    }
}

#[test]
fn values_and_emptiness() {
    for (dtype, value) in [
        (DType::I32, 0.5),
        (DType::I32, f64::NAN),
        (DType::I32, 3e9),
        (DType::I64, 1e19),
        (DType::I64, f64::INFINITY),
        (DType::U8, -1.0),
        (DType::U8, 256.0),
    ] {
        let op = Op::Fill { value, spec: TensorSpec::new(dtype, &[1]).unwrap() };
        let found = error_of_fill(&op, dtype);
        assert!(matches!(found, KernelError::FillValue { .. }), "{value} as {dtype}: {found}");
    }
    let found = error(&Op::ReduceMax, &f32s(&[&[3, 0]]), &f32s(&[&[]]));
    assert_eq!(
        found.to_string(),
        "ReduceMax, input 0: expected at least one element, found f32[3×0]"
    );
}

/// The error of a call over the first of `outputs`, on every back end.
#[track_caller]
fn error_in_place(op: &Op, rest: &[Tensor], outputs: &[Tensor]) -> String {
    let mut errors = all()
        .into_iter()
        .map(|k| try_run_in_place(&k, op, rest, &mut outputs.to_vec()).unwrap_err().to_string());
    let first = errors.next().unwrap();
    assert!(errors.all(|e| e == first));
    first
}

#[test]
fn operators_that_cannot_work_in_place_say_so() {
    let spec = TensorSpec::new(F32, &[]).unwrap();
    let fact = Fact::known(F32, &[]);
    let ops = [
        Op::Input { fact: fact.clone() },
        Op::Variable { spec: spec.clone(), init: Init::Zeros },
        Op::Fill { value: 0.0, spec },
        PRODUCT,
        Op::SumRows,
        Op::SoftmaxCrossEntropy,
        Op::CountCorrect,
        Op::ReduceMax,
        Op::Apply { rule: Rule::sgd(1.0), clipped: false },
        Op::Apply { rule: Method::Momentum { momentum: 1.0 }.at(1.0), clipped: false },
        Op::NoOp,
        Op::Send { edge: EdgeId(0) },
        Op::Recv { edge: EdgeId(0), fact },
    ];
    for op in ops {
        assert!(!op.works_in_place());
        let found = try_run_in_place(&all()[0], &op, &[], &mut f32s(&[&[]])).unwrap_err();
        assert_eq!(found, KernelError::NotInPlace { op: op.name() });
    }
}

#[test]
fn in_place_operands_are_named_as_the_operator_does() {
    let found = error_in_place(&Op::Add, &[], &f32s(&[&[2]]));
    assert_eq!(found, "Add takes 2 inputs, found 1");
    let found = error_in_place(&Op::Relu, &f32s(&[&[2]]), &f32s(&[&[2]]));
    assert_eq!(found, "Relu takes 1 inputs, found 2");
    let found = error_in_place(&Op::Relu, &[], &[]);
    assert_eq!(found, "Relu writes 1 outputs, found 0");
    let found = error_in_place(&Op::ReluGrad, &f32s(&[&[3]]), &f32s(&[&[2]]));
    assert_eq!(found, "ReluGrad, input 1: expected dimensions [2], found f32[3]");
    let found = error_in_place(&Op::BiasAdd, &f32s(&[&[2]]), &f32s(&[&[2]]));
    assert_eq!(found, "BiasAdd, input 0: expected dimensions [rows×columns], found f32[2]");
    let found = error_in_place(&Op::ScaleBy, &[tensor(DType::F64, &[])], &f32s(&[&[2]]));
    assert_eq!(found, "ScaleBy, input 1: expected f32, found f64");
    let found = error_in_place(&Op::Relu, &[], &[tensor(DType::I32, &[2])]);
    assert_eq!(found, "Relu, output 0: expected f32, f64 or bf16, found i32");
}

/// NaN is not equal to itself, so the errors of the back ends cannot be compared.
fn error_of_fill(op: &Op, dtype: DType) -> KernelError {
    let errors = all().into_iter().map(|k| try_run(&k, op, &[], &mut [tensor(dtype, &[1])]));
    errors.map(Result::unwrap_err).last().unwrap()
}

#[test]
fn misaligned_buffers_are_refused_unless_empty() {
    let words = [0u64; 4];
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let one = TensorSpec::new(F32, &[1]).unwrap();
    let none = TensorSpec::new(F32, &[0]).unwrap();
    let mut y = [0u64; 1];
    for kernels in all() {
        let x = TensorRef::new(&one, &bytes[1..5]).unwrap();
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut y);
        let outputs = &mut [TensorMut::new(&one, &mut target[..4]).unwrap()];
        let found = kernels.run(&Op::Relu, &[x], outputs).unwrap_err();
        assert!(matches!(found, KernelError::Buffer { operand: Operand::Input(0), .. }), "{found}");
        let x = TensorRef::new(&none, &bytes[1..1]).unwrap();
        let outputs = &mut [TensorMut::new(&none, &mut target[1..1]).unwrap()];
        kernels.run(&Op::Relu, &[x], outputs).unwrap();
    }
}

/// Operators whose operands do not fit, and which does not.
#[test]
fn shapes_of_moves_and_reductions() {
    use Operand::{Input, Output};
    let reduce = |axis| Op::Reduce { by: Reduction::Sum, axis };
    let grad = Op::ReduceGrad { by: Reduction::Max, axis: 0 };
    let slice = |start, length| Op::Slice { axis: 1, start, length };
    let pad = |before, after| Op::Pad { axis: 1, before, after };
    let turn = |permutation: &[usize]| Op::Transpose { permutation: permutation.to_vec() };
    let misfits: Vec<Misfit> = vec![
        (reduce(2), vec![vec![2, 3]], vec![vec![2]], Input(0)),
        (reduce(1), vec![vec![2, 3]], vec![vec![3]], Output(0)),
        (grad.clone(), vec![vec![2], vec![2, 3], vec![3]], vec![vec![2, 3]], Input(0)),
        (grad.clone(), vec![vec![3], vec![2, 3], vec![2]], vec![vec![2, 3]], Input(2)),
        (grad, vec![vec![3], vec![2, 3], vec![3]], vec![vec![3, 2]], Output(0)),
        (Op::Softmax, vec![vec![]], vec![vec![]], Input(0)),
        (Op::SoftmaxGrad, vec![vec![2, 3], vec![3, 2]], vec![vec![3, 2]], Input(0)),
        (Op::Concat { axis: 1, size: None }, vec![vec![2], vec![2]], vec![vec![4]], Input(0)),
        (
            Op::Concat { axis: 0, size: None },
            vec![vec![2, 1], vec![2, 3]],
            vec![vec![4, 1]],
            Input(1),
        ),
        (Op::Concat { axis: 0, size: None }, vec![vec![2, 1], vec![2]], vec![vec![4, 1]], Input(1)),
        (Op::Concat { axis: 0, size: None }, vec![vec![2], vec![3]], vec![vec![4]], Output(0)),
        (Op::ConcatGrad { axis: 0 }, vec![vec![4], vec![3], vec![2]], vec![vec![2]], Input(0)),
        (Op::ConcatGrad { axis: 0 }, vec![vec![4, 1], vec![2, 3]], vec![vec![2, 3]], Input(1)),
        (Op::ConcatGrad { axis: 0 }, vec![vec![4], vec![3]], vec![vec![4]], Output(0)),
        (Op::SliceGrad { axis: 0, start: 2 }, vec![vec![3], vec![4]], vec![vec![4]], Input(1)),
        (
            Op::SliceGrad { axis: 0, start: 0 },
            vec![vec![2, 1], vec![4, 3]],
            vec![vec![4, 3]],
            Input(1),
        ),
        (Op::SliceGrad { axis: 0, start: 1 }, vec![vec![3], vec![4]], vec![vec![3]], Output(0)),
        (Op::Mean, vec![vec![2], vec![3]], vec![vec![2]], Input(1)),
        (slice(1, 3), vec![vec![2, 3]], vec![vec![2, 3]], Input(0)),
        (slice(usize::MAX, 2), vec![vec![2, 3]], vec![vec![2, 2]], Input(0)),
        (slice(0, 1), vec![vec![3]], vec![vec![1]], Input(0)),
        (slice(0, 1), vec![vec![2, 3]], vec![vec![2, 2]], Output(0)),
        (pad(usize::MAX, 1), vec![vec![2, 3]], vec![vec![2, 3]], Input(0)),
        (pad(1, 1), vec![vec![2, 3]], vec![vec![2, 3]], Output(0)),
        (turn(&[0, 0]), vec![vec![2, 3]], vec![vec![2, 2]], Input(0)),
        (turn(&[1]), vec![vec![2]], vec![vec![2]], Input(0)),
        (turn(&[1, 0]), vec![vec![2, 3]], vec![vec![2, 3]], Output(0)),
        (Op::Cast { to: F32 }, vec![vec![2]], vec![vec![3]], Output(0)),
        (Op::Sub, vec![vec![2], vec![3]], vec![vec![2]], Input(1)),
        (Op::ApplyAverage { rate: 0.5 }, vec![vec![2]], vec![vec![3]], Input(0)),
    ];
    for (op, inputs, outputs, misfit) in misfits {
        let tensors = |all: &[Vec<usize>]| all.iter().map(|d| tensor(F32, d)).collect::<Vec<_>>();
        let found = error(&op, &tensors(&inputs), &tensors(&outputs));
        assert!(
            matches!(&found, KernelError::Shape { op: name, operand, .. }
                if *name == op.name() && *operand == misfit),
            "{op:?} {inputs:?} {outputs:?}: {found}"
        );
    }
    assert!(matches!(
        error(&Op::Concat { axis: 0, size: None }, &[], &f32s(&[&[1]])),
        KernelError::InputCount { .. }
    ));
    let bytes = tensor(DType::U8, &[5]);
    for (op, inputs, outputs) in [
        (
            Op::Quantize { block: 0 },
            f32s(&[&[5]]),
            vec![f32s(&[&[5]]), vec![bytes.clone()], f32s(&[&[0]])],
        ),
        (
            Op::Quantize { block: 4 },
            f32s(&[&[5]]),
            vec![f32s(&[&[5]]), vec![bytes.clone()], f32s(&[&[1]])],
        ),
        (
            Op::Quantize { block: 4 },
            f32s(&[&[5]]),
            vec![f32s(&[&[4]]), vec![bytes.clone()], f32s(&[&[2]])],
        ),
        (
            Op::TopK { count: 6 },
            f32s(&[&[5]]),
            vec![f32s(&[&[5]]), vec![tensor(DType::I32, &[6])], f32s(&[&[6]])],
        ),
        (
            Op::TopK { count: 2 },
            f32s(&[&[5]]),
            vec![f32s(&[&[5]]), vec![tensor(DType::I32, &[2])], f32s(&[&[3]])],
        ),
        (
            Op::Dequantize { block: 4, first: 4 },
            vec![bytes.clone(), tensor(F32, &[2])],
            vec![f32s(&[&[5]])],
        ),
        (
            Op::Dequantize { block: 0, first: 0 },
            vec![bytes.clone(), tensor(F32, &[2])],
            vec![f32s(&[&[5]])],
        ),
        (
            Op::ScatterElements { to: vec![4], first: 0 },
            vec![tensor(DType::I32, &[2]), tensor(F32, &[3])],
            vec![f32s(&[&[4]])],
        ),
        (
            Op::ScatterElements { to: vec![4], first: 0 },
            vec![tensor(DType::I32, &[2]), tensor(F32, &[2])],
            vec![f32s(&[&[5]])],
        ),
    ] {
        let found = error(&op, &inputs, &outputs.concat());
        assert!(matches!(found, KernelError::Shape { .. }), "{op:?}: {found}");
    }
    for by in [Reduction::Mean, Reduction::Max] {
        let op = Op::Reduce { by, axis: 1 };
        let found = error(&op, &f32s(&[&[2, 0]]), &f32s(&[&[2]]));
        assert!(matches!(found, KernelError::NoElements { .. }), "{found}");
    }
    let step = tensor(DType::I64, &[1]);
    let dropout = Op::Dropout { rate: 0.5, key: 1 };
    let found = error(&dropout, &[tensor(F32, &[2]), step], &f32s(&[&[2]]));
    assert!(matches!(found, KernelError::Shape { operand: Input(1), .. }), "{found}");
    let found = error(&dropout, &f32s(&[&[2], &[]]), &f32s(&[&[2]]));
    assert_eq!(found.to_string(), "Dropout, input 1: expected i64, found f32");
}

#[test]
fn indices() {
    let rows = Op::ApplyRows { rule: Rule::sgd(1.0) };
    for index in [-1, 3, i32::MIN, i32::MAX] {
        let indices = Tensor::new(&[2], &[2, index]);
        let expected = |op, input| KernelError::Index {
            op,
            operand: Operand::Input(input),
            place: 1,
            index,
            rows: 3,
        };
        let table = [tensor(F32, &[3, 4]), indices.clone()];
        let found = error(&Op::Gather, &table, &f32s(&[&[2, 4]]));
        assert_eq!(found, expected("Gather", 1));
        let text = found.to_string();
        assert!(text.contains(&index.to_string()) && text.contains("0..3"), "{text}");
        let inputs = [tensor(F32, &[2, 4]), indices.clone(), tensor(F32, &[3, 4])];
        assert_eq!(error(&Op::ScatterRows, &inputs, &f32s(&[&[3, 4]])), expected("ScatterRows", 1));
        let inputs = [indices, tensor(F32, &[2, 4])];
        assert_eq!(error(&rows, &inputs, &f32s(&[&[3, 4]])), expected("ApplySgdRows", 0));
    }
    let none = [Tensor::new(&[1], &[0i32])];
    assert!(matches!(error(&rows, &none, &f32s(&[&[3, 4]])), KernelError::InputCount { .. }));
    assert_eq!(
        error(&rows, &[], &f32s(&[&[3, 4]])),
        KernelError::NoGradients { op: "ApplySgdRows" }
    );
}

#[test]
fn steps_of_sequences() {
    let op = Op::Recurrent { cell: Cell::Rnn };
    let run = |total: usize, active: &[i32]| {
        let inputs = [
            tensor(F32, &[total, 2]),
            tensor(F32, &[2, 2]),
            tensor(F32, &[3, 2]),
            Tensor::new(&[active.len()], active),
        ];
        error(&op, &inputs, &f32s(&[&[total, 2], &[3, 2], &[total, 0]]))
    };
    let bad = |step, found, most| KernelError::Active { op: "Rnn", step, found, most };
    assert_eq!(run(6, &[3, 1, 2]), bad(2, 2, 1));
    assert_eq!(run(4, &[4]), bad(0, 4, 3));
    assert_eq!(run(3, &[3, 0]), bad(1, 0, 3));
    assert_eq!(run(3, &[-1, 4]), bad(0, -1, 3));
    assert_eq!(run(3, &[i32::MAX]), bad(0, i32::MAX, 3));
    assert_eq!(run(6, &[3, 2]), KernelError::Total { op: "Rnn", active: 5, total: 6 });
    assert_eq!(run(1, &[]), KernelError::Total { op: "Rnn", active: 0, total: 1 });
    let lstm = Op::RecurrentGrad { cell: Cell::Lstm, sequence: true, finals: [false, true] };
    let found = error(&lstm, &[], &[]);
    assert_eq!(found, KernelError::InputCount { op: "LstmGrad", expected: 11, found: 0 });
}

/// What is stored as bf16 is computed as f32, and no error shows it.
#[test]
fn operands_of_bf16_are_named_as_they_are() {
    let bf16s = |dims: &[usize]| tensor(DType::BF16, dims);
    let found = error(&Op::Add, &[bf16s(&[1]), tensor(F32, &[1])], &[bf16s(&[1])]);
    assert_eq!(found.to_string(), "Add, input 1: expected bf16, found f32");
    let found = error(&Op::Add, &[bf16s(&[1]), tensor(DType::I32, &[1])], &[bf16s(&[1])]);
    assert_eq!(found.to_string(), "Add, input 1: expected bf16, found i32");
    let found = error(&Op::Relu, &[bf16s(&[1])], &[tensor(DType::F64, &[1])]);
    assert_eq!(found.to_string(), "Relu, output 0: expected bf16, found f64");
    let found = error(&Op::Add, &[bf16s(&[1]), bf16s(&[2])], &[bf16s(&[1])]);
    assert_eq!(found.to_string(), "Add, input 1: expected dimensions [1], found bf16[2]");
    let found = error_in_place(&Op::Add, &[bf16s(&[2])], &[bf16s(&[1])]);
    assert_eq!(found, "Add, input 1: expected dimensions [1], found bf16[2]");
}
