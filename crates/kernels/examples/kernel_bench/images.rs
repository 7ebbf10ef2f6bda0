//! Convolutions, poolings and normalisations at the sizes of the paper's image models.

use tensorwire_graph::{Op, Window};
use tensorwire_tensor::{DType, TensorSpec};

use super::{Case, Work};

/// (what it is, [batch, channels, size, outputs, kernel, stride, padding])
const CONVOLUTIONS: [(&str, [usize; 7]); 15] = [
    ("alexnet 1", [8, 3, 224, 64, 11, 4, 2]),
    ("alexnet 2", [8, 64, 27, 192, 5, 1, 2]),
    ("vgg16 1.1", [1, 3, 224, 64, 3, 1, 1]),
    ("vgg16 1.2", [1, 64, 224, 64, 3, 1, 1]),
    ("vgg16 4.2", [1, 512, 28, 512, 3, 1, 1]),
    ("resnet50 1", [2, 3, 224, 64, 7, 2, 3]),
    ("resnet50 2.2", [2, 64, 56, 64, 3, 1, 1]),
    ("resnet50 2.1", [2, 256, 56, 64, 1, 1, 0]),
    ("resnet50 2.3", [2, 64, 56, 256, 1, 1, 0]),
    ("resnet50 3.2", [8, 128, 56, 128, 3, 2, 1]),
    ("resnet50 4 short", [8, 512, 28, 1024, 1, 2, 0]),
    ("resnet50 5.2 batch 1", [1, 512, 7, 512, 3, 1, 1]),
    ("resnet50 5.2", [8, 512, 7, 512, 3, 1, 1]),
    ("resnet50 5.1", [8, 2048, 7, 512, 1, 1, 0]),
    ("3×3 of 512", [2, 512, 14, 512, 3, 1, 1]),
];

pub(super) fn add_to(cases: &mut Vec<Case>) {
    for (of, sizes) in CONVOLUTIONS {
        convolution(of, sizes, cases);
    }
    let x = spec(DType::F32, &[8, 112, 112, 64]);
    let y = spec(DType::F32, &[8, 56, 56, 64]);
    let window = Window::padded([3, 3], [2, 2], [1, 1]);
    let size = [112, 112];
    let places = spec(DType::U8, y.dims());
    let of = "8×112×112×64, 3×3/2";
    let both = vec![y.clone(), places.clone()];
    cases.push(moving(Op::MaxPool { window }, of, vec![x.clone()], both.clone()));
    cases.push(moving(Op::MaxPoolGrad { window, size }, of, both, vec![x.clone()]));
    cases.push(moving(Op::AvgPool { window }, of, vec![x.clone()], vec![y.clone()]));
    cases.push(moving(Op::AvgPoolGrad { window, size }, of, vec![y], vec![x.clone()]));
    for (of, dims) in [("8×112×112×64", [8, 112, 112, 64]), ("8×7×7×2048", [8, 7, 7, 2048])] {
        let x = spec(DType::F32, &dims);
        let c = spec(DType::F32, &dims[3..]);
        let (epsilon, scaled) = (1e-5, true);
        let inputs = vec![x.clone(), c.clone(), c.clone()];
        cases.push(moving(Op::BatchNorm { epsilon, scaled }, of, inputs.clone(), inputs.clone()));
        let all = [&x, &x, &c, &c, &c].map(Clone::clone).to_vec();
        cases.push(moving(Op::BatchNormGrad { epsilon, scaled }, of, all, inputs));
    }
    let (size, alpha, beta, bias) = (5, 1e-4, 0.75, 2.0);
    let x = spec(DType::F32, &[8, 55, 55, 64]);
    let norm = Op::LocalResponseNorm { size, alpha, beta, bias };
    let grad = Op::LocalResponseNormGrad { size, alpha, beta, bias };
    cases.push(moving(norm, "8×55×55×64", vec![x.clone()], vec![x.clone()]));
    cases.push(moving(grad, "8×55×55×64", vec![x.clone(); 3], vec![x]));
}

fn spec(dtype: DType, dims: &[usize]) -> TensorSpec {
    TensorSpec::new(dtype, dims).unwrap()
}

fn moving(op: Op, of: &str, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> Case {
    let bytes = inputs.iter().chain(&outputs).map(TensorSpec::bytes).sum();
    Case {
        name: format!("{} {of}", op.name()),
        op,
        inputs,
        outputs,
        work: Work::Bytes(bytes),
        integer: 0,
    }
}

fn convolution(of: &str, sizes: [usize; 7], cases: &mut Vec<Case>) {
    let [batch, channels, size, outputs, kernel, stride, padding] = sizes;
    let window = Window::padded([kernel; 2], [stride; 2], [padding; 2]);
    let [rows, columns] = window.output([size; 2]).unwrap();
    let x = spec(DType::F32, &[batch, size, size, channels]);
    let w = spec(DType::F32, &[outputs, channels, kernel, kernel]);
    let y = spec(DType::F32, &[batch, rows, columns, outputs]);
    let groups = 1;
    let mut case = |op: Op, inputs: [&TensorSpec; 2], output: &TensorSpec| {
        let flops = 2 * batch * rows * columns * outputs * channels * kernel * kernel;
        cases.push(Case {
            name: format!("{} {of}", op.name()),
            op,
            inputs: inputs.map(Clone::clone).to_vec(),
            outputs: vec![output.clone()],
            work: Work::Flops(flops),
            integer: 0,
        });
    };
    case(Op::Conv2d { window, groups }, [&x, &w], &y);
    if channels > 3 {
        case(Op::Conv2dGradInput { window, groups, size: [size; 2] }, [&y, &w], &x);
    }
    case(Op::Conv2dGradWeight { window, groups }, [&y, &x], &w);
}
