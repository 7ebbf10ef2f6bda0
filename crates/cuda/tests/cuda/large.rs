//! Sizes at which products take wide tiles, against the `cpu` back end, which is as far from the true sums as they are.

use tensorwire_graph::{Op, Window};
use tensorwire_kernels::check::Tensor;
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::TensorRef;
use tensorwire_tensor::DType;

use crate::common::{Values, run_one};
use crate::targets::cpus;

/// Both make nearly the same of operands of these dimensions.
fn near(op: &Op, operands: [&[usize]; 2], dims: &[usize], terms: usize) {
    let mut values = Values(7);
    let inputs =
        operands.map(|dims| Tensor::new(dims, &values.reals::<f32>(dims.iter().product())));
    let kernels = Kernels::open(KernelChoice::Cpu, 1).unwrap();
    let mut expected = Tensor::unwritten(DType::F32, dims);
    let given: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
    kernels.run(op, &given, &mut [expected.view_mut()]).unwrap();
    // products of numbers up to 2
    let tolerance = 8.0 * terms as f32 * f32::EPSILON;
    let expected = expected.to_vec::<f32>();
    for device in cpus().iter().take(1) {
        let found = run_one::<f32>(device, op, &inputs, dims);
        let wrong = found.iter().zip(&expected).position(|(a, b)| (a - b).abs() > tolerance);
        assert_eq!(wrong, None, "{op:?}");
    }
}

#[test]
fn products_of_wide_tiles() {
    for [transpose_a, transpose_b] in [[false, false], [true, true]] {
        let op = Op::MatMul { transpose_a, transpose_b };
        let [m, n, k] = [1700, 1650, 9];
        let (a, b) = if transpose_a { ([k, m], [n, k]) } else { ([m, k], [k, n]) };
        near(&op, [&a, &b], &[m, n], k);
    }
}

#[test]
fn convolutions_of_wide_tiles() {
    let window = Window::padded([3, 3], [1, 1], [1, 1]);
    let size = [57, 57];
    let (few, many) = ([4, 57, 57, 2], [4, 57, 57, 250]);
    let op = Op::Conv2d { window, groups: 1 };
    near(&op, [&few, &[250, 2, 3, 3]], &many, 18);
    let op = Op::Conv2dGradInput { window, groups: 1, size };
    near(&op, [&few, &[2, 250, 3, 3]], &many, 18);
    let op = Op::Conv2dGradWeight { window, groups: 1 };
    let dims = [[1, 3, 3, 1000], [1, 3, 3, 340]];
    near(&op, [&dims[0], &dims[1]], &[1000, 340, 3, 3], 9);
}
