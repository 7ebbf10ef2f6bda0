//! Values that are wrong: what a device finds is the error that other back ends give, and operands that do not fit are
//! refused before anything is launched.

use tensorwire_cuda::{DeviceFault, LowerError, Lowering, lower};
use tensorwire_graph::{Cell, EdgeId, Op, Rule};
use tensorwire_kernels::KernelError;
use tensorwire_kernels::check::Tensor;
use tensorwire_tensor::{DType, TensorSpec};

use crate::common::{all, reference, try_run};

/// Both say the same of these operands.
#[track_caller]
fn same_error(op: &Op, inputs: &[Tensor], outputs: &[Tensor]) -> KernelError {
    let expected = try_run(&reference(), op, inputs, &mut outputs.to_vec()).unwrap_err();
    for device in all() {
        assert_eq!(try_run(&device, op, inputs, &mut outputs.to_vec()), Err(expected.clone()));
    }
    expected
}

fn f32s(dims: &[usize]) -> Tensor {
    Tensor::new(dims, &vec![0.5f32; dims.iter().product()])
}

#[test]
fn labels_that_are_no_class() {
    let logits = f32s(&[600, 4]);
    let labels = |wrong: &[(usize, i32)]| {
        let mut labels: Vec<i32> = (0..600).map(|row| row % 5 - 1).collect();
        wrong.iter().for_each(|(row, label)| labels[*row] = *label);
        Tensor::new(&[600], &labels)
    };
    let loss = [f32s(&[]), f32s(&[600, 4])];
    let count = [Tensor::scalar(0i64)];
    // of several the first
    for wrong in [&[(3, 4)][..], &[(599, -2)], &[(300, 7), (41, i32::MIN), (599, 9)]] {
        let inputs = [logits.clone(), labels(wrong)];
        same_error(&Op::SoftmaxCrossEntropy, &inputs, &loss);
        same_error(&Op::CountCorrect, &inputs, &count);
        same_error(&Op::CountWithin { k: 2 }, &inputs, &count);
    }
    let smoothed = Op::CrossEntropy { smoothing: 0.1, ignored: -100 };
    let said = same_error(&smoothed, &[logits, labels(&[])], &loss).to_string();
    assert!(said.contains("there are 4 classes, 0 to 3, and -100 for padding"), "{said}");
}

#[test]
fn indices_that_name_no_row() {
    let indices = Tensor::new(&[3], &[0i32, 5, 1]);
    let (table, rows) = (f32s(&[5, 2]), f32s(&[3, 2]));
    same_error(&Op::Gather, &[table.clone(), indices.clone()], std::slice::from_ref(&rows));
    let scattered = [rows.clone(), indices.clone(), table.clone()];
    same_error(&Op::ScatterRows, &scattered, std::slice::from_ref(&table));
    let added = [table.clone(), rows.clone(), indices.clone()];
    same_error(&Op::AddRows, &added, std::slice::from_ref(&table));
    // rows without elements have indices all the same
    let empty = [f32s(&[5, 0]), indices.clone()];
    same_error(&Op::Gather, &empty, &[f32s(&[3, 0])]);
    // of the second rank
    let fine = Tensor::new(&[1], &[4i32]);
    let ranks = [fine, f32s(&[1, 2]), Tensor::new(&[3], &[1i32, 2, -1]), rows];
    let rule = Rule::sgd(0.1);
    let said = same_error(&Op::ApplyRows { rule }, &ranks, &[table]).to_string();
    assert!(said.contains("input 2: index 2 is -1; expected one of 0..5"), "{said}");
}

#[test]
fn steps_that_are_not_sorted_or_not_as_many_as_rows() {
    let run = |active: &[i32], total: usize| {
        let (row, square, first) = (f32s(&[total, 3]), f32s(&[3, 3]), f32s(&[4, 3]));
        let inputs = [row.clone(), square, first.clone(), Tensor::new(&[active.len()], active)];
        let outputs = [row, first, f32s(&[total, 0])];
        same_error(&Op::Recurrent { cell: Cell::Rnn }, &inputs, &outputs)
    };
    let wrong = |step, found, most| KernelError::Active { op: "Rnn", step, found, most };
    assert_eq!(run(&[4, 5, 1], 10), wrong(1, 5, 4));
    assert_eq!(run(&[5], 5), wrong(0, 5, 4));
    assert_eq!(run(&[3, 0], 3), wrong(1, 0, 3));
    assert_eq!(run(&[3, -1], 2), wrong(1, -1, 3));
    assert_eq!(run(&[3, 2, 1], 7), KernelError::Total { op: "Rnn", active: 6, total: 7 });
    assert_eq!(run(&[], 2), KernelError::Total { op: "Rnn", active: 0, total: 2 });
    // in a later round of the block that reads them
    let many: Vec<i32> = (0..700).map(|step| if step == 650 { 4 } else { 3 }).collect();
    assert_eq!(run(&many, 2101), wrong(650, 4, 3));
}

#[test]
fn a_fault_is_of_one_operator() {
    let spec = |dtype, dims: &[usize]| TensorSpec::new(dtype, dims).unwrap();
    let inputs = [spec(DType::F32, &[5, 2]), spec(DType::I32, &[3])];
    let lowered = |tag| {
        let rows = [spec(DType::F32, &[3, 2])];
        lower(&Op::Gather, &inputs, &rows, false, &Lowering { tag, ..Lowering::default() }).unwrap()
    };
    let fault = DeviceFault { code: 9 << 16 | 1, place: 1, value: 7 };
    assert_eq!(fault.tag(), Some(9));
    assert_eq!(DeviceFault::default().tag(), None);
    let said = lowered(9).explain(&fault).unwrap().to_string();
    assert_eq!(said, "Gather, input 1: index 1 is 7; expected one of 0..5, the rows");
    assert!(lowered(9).has_checks());
    assert_eq!(lowered(8).explain(&fault), None);
    // no such check
    assert_eq!(lowered(9).explain(&DeviceFault { code: 9 << 16 | 5, ..fault }), None);
}

#[test]
fn what_does_not_fit_is_not_lowered() {
    let spec = |dtype, dims: &[usize]| TensorSpec::new(dtype, dims).unwrap();
    let f32 = |dims: &[usize]| spec(DType::F32, dims);
    let refused = |op: &Op, inputs: &[TensorSpec], outputs: &[TensorSpec], in_place| {
        lower(op, inputs, outputs, in_place, &Lowering::default()).unwrap_err()
    };
    let two = [f32(&[2]), f32(&[2])];
    let said = refused(&Op::Add, &[f32(&[2]), f32(&[3])], &two[..1], false).to_string();
    assert!(said.contains("floating tensors of one shape are needed"), "{said}");
    let wrong = refused(&Op::Add, &two, &[f32(&[3])], false);
    assert!(matches!(wrong, LowerError::Kernel(KernelError::Shape { .. })), "{wrong}");
    let wrong = refused(&Op::Add, &two, &[spec(DType::F64, &[2])], false);
    assert!(matches!(wrong, LowerError::Kernel(KernelError::DType { .. })), "{wrong}");
    let wrong = refused(&Op::Add, &two, &two, false);
    assert!(matches!(wrong, LowerError::Kernel(KernelError::OutputCount { .. })), "{wrong}");
    let wrong = refused(&Op::Mean, &two, &two[..1], true);
    assert_eq!(wrong, LowerError::Kernel(KernelError::NotInPlace { op: "Mean" }));
    for op in [Op::NoOp, Op::Send { edge: EdgeId(1) }, Op::Reshape { to: vec![] }] {
        let wrong = refused(&op, &[], &[], false);
        assert!(matches!(wrong, LowerError::Kernel(KernelError::NoKernel { .. })), "{wrong}");
    }
    let empty = refused(&Op::ReduceMax, &[f32(&[0])], &[f32(&[])], false);
    assert!(matches!(empty, LowerError::Kernel(KernelError::NoElements { .. })), "{empty}");
    // so many tiles that a launch cannot count them
    let product = Op::MatMul { transpose_a: false, transpose_b: false };
    let rows = 1usize << 44;
    let inputs = [f32(&[rows, 1]), f32(&[1, 1])];
    let large = refused(&product, &inputs, &[f32(&[rows, 1])], false);
    assert!(matches!(large, LowerError::TooLarge { what: "blocks", .. }), "{large}");
    let pixels = Op::Conv2d { window: tensorwire_graph::Window::valid([2, 2], [1, 1]), groups: 1 };
    let inputs = [f32(&[1 << 20, 65, 65, 2]), f32(&[2, 2, 2, 2])];
    let large = refused(&pixels, &inputs, &[f32(&[1 << 20, 64, 64, 2])], false);
    assert!(matches!(large, LowerError::TooLarge { what: "places of images", .. }), "{large}");
}
