//! Operators that users bring, on every back end: types, several outputs, in place, threads, what their kernels may
//! do wrong; and that the public checks find what is wrong with an operator.

#[path = "custom/operators.rs"]
mod operators;

use std::sync::atomic::{AtomicU32, Ordering};

use half::bf16;
use operators::{Lookup, Magnitude, Negated, Polar, SoftSign, Total};
use tensorwire_graph::{Backward, CustomOp, CustomOperator, Gradient, Op, Refusal};
use tensorwire_kernels::check::{self, Mismatch, Tensor, Tolerance};
use tensorwire_kernels::{Call, CustomKernel, KernelChoice, KernelError, Kernels, custom};
use tensorwire_memory::TensorMut;
use tensorwire_tensor::{DType, Fact};

/// What a kernel or a rule does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    Panics,
    PanicsOnAThread,
    Refuses,
    /// Asks for elements of a type that is not there.
    OtherType,
    /// Asks for more operands than there are.
    OtherCount,
    /// Adds to what its output held.
    Adds,
    /// Gives something else in place.
    OtherInPlace,
    /// Gives something else the next time.
    Counts,
    /// Has a gradient that is half of what it should be.
    HalfGradient,
    /// Has a gradient that depends on who else wants one.
    WantedGradient,
    ShapePanics,
}

/// (x, other) → 2·x.
#[derive(Debug)]
struct Double {
    wrong: Wrong,
    calls: AtomicU32,
}

impl CustomOperator for Double {
    fn name(&self) -> &'static str {
        "Double"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        assert_ne!(self.wrong, Wrong::ShapePanics, "no shape");
        Ok(inputs[..1].to_vec())
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let dy = backward.flowing()[0].ok_or("nothing flows")?;
        let all = backward.wanted().iter().all(|wanted| *wanted);
        let by = match self.wrong {
            Wrong::HalfGradient => 1.0,
            Wrong::WantedGradient if !all => 2.0 + 1e-9,
            _ => 2.0,
        };
        let dx = backward.add(Op::Scale { by }, &[dy])?;
        let none = backward.add(Op::Scale { by: 0.0 }, &[dy])?;
        Ok(vec![Some(dx.into()), Some(none.into())])
    }

    fn works_in_place(&self) -> bool {
        self.wrong == Wrong::OtherInPlace
    }
}

impl CustomKernel for Double {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let call_number = self.calls.fetch_add(1, Ordering::Relaxed);
        let (wrong, in_place) = (self.wrong, call.is_in_place());
        match wrong {
            Wrong::Panics => panic!("{} operands", call.inputs().len()),
            Wrong::PanicsOnAThread => call.threads().each(64, |at| assert_ne!(at, 17)),
            Wrong::Refuses => return Err("not today".into()),
            Wrong::OtherType => drop(call.inputs()[0].elements::<i64>()?),
            Wrong::OtherCount => call.operands::<3, 1>().map(|_| ())?,
            _ => {}
        }
        if in_place {
            return Ok(call.by_elements(|x: f64, [_]| 2.0 * x + 0.5)?);
        }
        let ([x, _], [y]) = call.operands()?;
        for (y, x) in y.elements::<f64>()?.iter_mut().zip(x.elements::<f64>()?) {
            let held = *y;
            *y = 2.0 * x;
            match wrong {
                Wrong::Adds => *y += held,
                Wrong::Counts => *y += f64::from(call_number),
                _ => {}
            }
        }
        Ok(())
    }
}

fn double(wrong: Wrong) -> Op {
    custom(Double { wrong, calls: AtomicU32::new(0) })
}

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|i| (i * 37 % 101) as f64 / 25.0 - 2.0 + 0.01).collect()
}

fn soft_sign(x: f64) -> f64 {
    1.5 * x / (1.0 + x.abs())
}

#[test]
fn it_is_computed_as_its_reference_on_every_back_end_and_in_every_type() {
    let op = custom(SoftSign { scale: 1.5 });
    // below and above what is cut into pieces
    for count in [0, 1, 7, 100_003] {
        let x = numbers(count);
        let y: Vec<f64> = x.iter().map(|x| soft_sign(*x)).collect();
        let (given, expected) = (Tensor::new(&[count], &x), Tensor::new(&[count], &y));
        let backends = check::backends();
        check::agreement(&backends, &op, &[given], &[expected], Tolerance::Bits).unwrap();

        let narrow: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        let expected = narrow.iter().map(|x| 1.5 * x / (1.0 + x.abs())).collect::<Vec<f32>>();
        let tensors = [Tensor::new(&[count], &narrow), Tensor::new(&[count], &expected)];
        let [given, expected] = tensors;
        check::agreement(&backends, &op, &[given], &[expected], Tolerance::Bits).unwrap();
        let exact: Vec<f64> = narrow.iter().map(|x| soft_sign(f64::from(*x))).collect();
        assert!(exact.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-6));

        // bf16 is computed in f32, and rounded
        let stored: Vec<bf16> = x.iter().map(|x| bf16::from_f64(*x)).collect();
        let rounded = stored.iter().map(|x| x.to_f32());
        let rounded = rounded.map(|x| bf16::from_f32(1.5 * x / (1.0 + x.abs())));
        let expected = Tensor::new(&[count], &rounded.collect::<Vec<bf16>>());
        let given = Tensor::new(&[count], &stored);
        check::agreement(&backends, &op, &[given], &[expected], Tolerance::Bits).unwrap();
    }
}

#[test]
fn a_kernel_may_take_bf16_itself() {
    let x = [1.5f32, -0.0, 300.0].map(bf16::from_f32);
    let expected = Tensor::new(&[3], &x.map(|x| -x));
    let given = [Tensor::new(&[3], &x)];
    let made = [expected];
    check::agreement(&check::backends(), &custom(Negated), &given, &made, Tolerance::Bits).unwrap();
}

#[test]
fn gradients_are_central_differences() {
    let x: Vec<f64> = numbers(20).into_iter().filter(|x| x.abs() > 0.01).collect();
    let tensor = Tensor::new(&[x.len()], &x);
    check::gradient(&custom(SoftSign { scale: 1.5 }), &[tensor]).unwrap();
    // of both outputs, and of each alone
    let (x, y) = (numbers(12), numbers(24).split_off(12));
    let far: Vec<f64> = x.iter().map(|x| x + 3.0f64.copysign(*x)).collect();
    let vectors = [Tensor::new(&[3, 4], &far), Tensor::new(&[3, 4], &y)];
    check::gradient(&custom(Polar), &vectors).unwrap();
}

#[test]
fn a_gradient_may_be_rows() {
    let table = Tensor::new(&[4, 3], &numbers(12));
    let indices = Tensor::new(&[5], &[3i32, 0, 3, 2, 3]);
    check::gradient(&custom(Lookup), &[table.clone(), indices]).unwrap();
    for (index, why) in
        [(-1, "out of range integral type conversion attempted"), (4, "no such row")]
    {
        let given = [table.clone(), Tensor::new(&[1], &[index])];
        let refused =
            check::run(&Kernels::open(KernelChoice::Cpu, 1).unwrap(), &custom(Lookup), &given);
        assert!(refused.unwrap_err().to_string().ends_with(why));
    }
}

#[test]
fn several_outputs_agree_apart_and_in_place() {
    let x = Tensor::new(&[3], &[1.5f32, -2.0, 0.0]);
    let expected = [Tensor::new(&[3], &[1.5f32, 2.0, 0.0]), Tensor::new(&[3], &[0u8, 1, 0])];
    let backends = check::backends();
    check::agreement(&backends, &custom(Magnitude), &[x], &expected, Tolerance::Bits).unwrap();
    let given = [Tensor::new(&[2], &[3.0f32, 0.0]), Tensor::new(&[2], &[4.0f32, -2.0])];
    let angles = [4.0f32.atan2(3.0), (-2.0f32).atan2(0.0)];
    let expected = [Tensor::new(&[2], &[5.0f32, 2.0]), Tensor::new(&[2], &angles)];
    check::agreement(&backends, &custom(Polar), &given, &expected, Tolerance::Bits).unwrap();
}

#[test]
fn pieces_summed_in_order_have_the_same_bits_on_any_number_of_threads() {
    let x: Vec<f32> = numbers(100_003).iter().map(|x| *x as f32).collect();
    let sum: f32 = x.chunks(1000).map(|piece| piece.iter().sum::<f32>()).sum();
    let (given, expected) = ([Tensor::new(&[x.len()], &x)], [Tensor::scalar(sum)]);
    let (backends, op) = (check::backends(), custom(Total { by_threads: false }));
    check::agreement(&backends, &op, &given, &expected, Tolerance::Bits).unwrap();
    // cut by threads, they do not, however near they are
    let op = custom(Total { by_threads: true });
    let near = Tolerance::Within(&|_, _, _| 10.0);
    let found = check::agreement(&backends, &op, &given, &expected, near);
    assert!(matches!(found, Err(Mismatch::Value { .. })), "{found:?}");
}

/// What running `op` on two tensors of f64[2] into one of `made` says.
fn said(kernels: &Kernels, op: &Op, mut made: Tensor) -> KernelError {
    let given = [Tensor::new(&[2], &[1.0f64, 2.0]), Tensor::new(&[2], &[3.0f64, 4.0])];
    let inputs = given.each_ref().map(Tensor::view);
    kernels.run(op, &inputs, &mut [made.view_mut()]).unwrap_err()
}

#[test]
fn whatever_a_kernel_does_is_an_error_that_names_it() {
    for kernels in check::backends() {
        for (wrong, words) in [
            (Wrong::Panics, "the kernel of Double panicked: 2 operands"),
            (Wrong::PanicsOnAThread, "the kernel of Double panicked: assertion `left != right`"),
            (Wrong::Refuses, "Double refuses: not today"),
            (Wrong::OtherType, "Double refuses: the tensor holds f64, not i64"),
            (Wrong::OtherCount, "Double takes 3 inputs, found 2"),
            (Wrong::ShapePanics, "the kernel of Double panicked: "),
        ] {
            let error = said(&kernels, &double(wrong), Tensor::unwritten(DType::F64, &[2]));
            assert!(error.to_string().starts_with(words), "{wrong:?}: {error}");
        }
        // the back end goes on
        let mut y = Tensor::unwritten(DType::F64, &[2]);
        let x = Tensor::new(&[2], &[1.0f64, 2.0]);
        let given = [x.view(), x.view()];
        kernels.run(&double(Wrong::Nothing), &given, &mut [y.view_mut()]).unwrap();
        assert_eq!(y.to_vec::<f64>(), [2.0, 4.0]);
    }
}

#[test]
fn operands_that_the_shape_rule_does_not_give_are_refused() {
    let kernels = Kernels::open(KernelChoice::Cpu, 1).unwrap();
    let op = double(Wrong::Nothing);
    let wide = said(&kernels, &op, Tensor::unwritten(DType::F64, &[3]));
    let words = "Double, output 0: expected dimensions f64[2], found f64[3]";
    assert_eq!(wide.to_string(), words);
    let other = said(&kernels, &op, Tensor::unwritten(DType::F32, &[2]));
    assert!(matches!(other, KernelError::DType { .. }), "{other}");
    let x = Tensor::new(&[2], &[1.0f64, 2.0]);
    let none = kernels.run(&op, &[x.view(), x.view()], &mut []).unwrap_err();
    assert_eq!(none, KernelError::OutputCount { op: "Double", expected: 1, found: 0 });
    let mut y = Tensor::unwritten(DType::F64, &[2]);
    let mut over = [y.view_mut()];
    let not = kernels.run_in_place(&op, &[x.view()], &mut over).unwrap_err();
    assert_eq!(not, KernelError::NotInPlace { op: "Double" });
    // rules alone cannot be run
    let mut made: [TensorMut<'_>; 1] = over;
    let planned = Op::from(CustomOp::new(SoftSign { scale: 1.0 }));
    let without = kernels.run(&planned, &[x.view()], &mut made).unwrap_err();
    assert_eq!(without, KernelError::WithoutKernel { op: "SoftSign" });
}

#[test]
fn the_checks_find_what_is_wrong() {
    let given = [Tensor::new(&[3], &[1.0f64, -2.0, 0.5]), Tensor::new(&[3], &[1.0f64; 3])];
    let expected = [Tensor::new(&[3], &[2.0f64, -4.0, 1.0])];
    let backends = check::backends();
    let agrees = |wrong, expected: &[Tensor]| {
        check::agreement(&backends, &double(wrong), &given, expected, Tolerance::Bits)
    };
    agrees(Wrong::Nothing, &expected).unwrap();
    for wrong in [Wrong::Adds, Wrong::OtherInPlace, Wrong::Counts] {
        let found = agrees(wrong, &expected);
        assert!(matches!(found, Err(Mismatch::Value { op: "Double", .. })), "{wrong:?}: {found:?}");
    }
    let found = agrees(Wrong::Panics, &expected);
    assert!(matches!(found, Err(Mismatch::Kernel { .. })), "{found:?}");
    let found = agrees(Wrong::Nothing, &[Tensor::new(&[3], &[2.0f64, -4.0, 1.5])]);
    let words = "element 2 of output 0 is 1; expected 1.5";
    assert!(found.unwrap_err().to_string().ends_with(words));
    let found = agrees(Wrong::Nothing, &[Tensor::new(&[1, 3], &[2.0f64, -4.0, 1.0])]);
    assert!(matches!(found, Err(Mismatch::Spec { output: 0, .. })), "{found:?}");
    let found = agrees(Wrong::Nothing, &[]);
    assert_eq!(found, Err(Mismatch::Outputs { op: "Double", found: 1, expected: 0 }));

    check::gradient(&double(Wrong::Nothing), &given).unwrap();
    let found = check::gradient(&double(Wrong::HalfGradient), &given);
    assert!(matches!(found, Err(Mismatch::Gradient { input: 0, .. })), "{found:?}");
    let found = check::gradient(&double(Wrong::WantedGradient), &given);
    assert!(matches!(found, Err(Mismatch::Wanted { input: 0, .. })), "{found:?}");
}

/// Variants of `Op` that no kernel computes, or whose kernels are the user's.
const NOT_COMPUTED: [&str; 14] = [
    "Input",
    "Variable",
    "Reshape",
    "AllReduce",
    "Broadcast",
    "NoOp",
    "Send",
    "Recv",
    "SendDynamic",
    "RecvDynamic",
    "Custom",
    "CopyTo",
    "Rows",
    "Join",
];

/// Whoever adds an operator to the table of facts adds its cases here.
#[test]
fn every_operator_is_in_the_agreement_suites() {
    let suites = [
        include_str!("agreement.rs"),
        include_str!("agreement_families.rs"),
        include_str!("agreement_compression.rs"),
        include_str!("agreement_elements.rs"),
        include_str!("agreement_attention.rs"),
        include_str!("optimizers.rs"),
        include_str!("images.rs"),
        include_str!("common/images.rs"),
    ]
    .concat();
    let is_there = |name: &str| {
        let variant = format!("Op::{name}");
        let mut rests = suites.match_indices(&variant).map(|(at, _)| &suites[at + variant.len()..]);
        rests.any(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    let missing: Vec<&str> =
        Op::variants().filter(|name| !NOT_COMPUTED.contains(name) && !is_there(name)).collect();
    assert!(missing.is_empty(), "no case in the agreement suites: {missing:?}");
}
