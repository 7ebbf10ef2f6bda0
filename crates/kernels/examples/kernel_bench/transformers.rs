//! What a step of GPT-2 small does besides its products: 12 heads of 64, rows of 768, 50257 words.

use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Op, Rotary, SampleNorm, Unary};
use tensorwire_tensor::{DType, TensorSpec};

use super::{Case, Work};

pub(super) fn add_to(cases: &mut Vec<Case>) {
    for (batch, length) in [(4, 256), (1, 1024), (1, 4096)] {
        for mask in [AttentionMask::Causal, AttentionMask::None] {
            for heads in [HeadOrder::Outer, HeadOrder::Inner] {
                attention([batch, length], mask, heads, cases);
            }
        }
    }
    let (rows, labels) = (1024, TensorSpec::new(DType::I32, &[1024]).unwrap());
    let (x, c) = (spec(&[rows, 768]), spec(&[768]));
    let (wide, statistic, scalar) = (spec(&[rows, 3072]), spec(&[rows]), spec(&[]));
    let mut timed = |op: Op, of: &str, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>| {
        let name = format!("{} {of}", op.name());
        cases.push(Case { name, op, inputs, outputs, work: Work::Time, integer: 3 });
    };
    for by in [Unary::Gelu, Unary::GeluTanh, Unary::Silu, Unary::Exp, Unary::Log, Unary::Softplus] {
        timed(Op::Unary { by }, "1024×3072", vec![wide.clone()], vec![wide.clone()]);
        let both = vec![wide.clone(), wide.clone()];
        timed(Op::UnaryGrad { by }, "1024×3072", both, vec![wide.clone()]);
    }
    let both = vec![statistic.clone(), statistic.clone()];
    let (op, epsilon) = (SampleNorm::Layer, 1e-5);
    timed(
        Op::SampleNorm { by: op, epsilon },
        "1024×768",
        vec![x.clone(), c.clone(), c.clone()],
        [vec![x.clone()], both.clone()].concat(),
    );
    timed(
        Op::SampleNormGrad { by: op },
        "1024×768",
        [vec![x.clone(), x.clone()], both, vec![c.clone()]].concat(),
        vec![x.clone(), c.clone(), c.clone()],
    );
    let op = SampleNorm::Rms;
    timed(
        Op::SampleNorm { by: op, epsilon },
        "1024×768",
        vec![x.clone(), c.clone()],
        vec![x.clone(), statistic.clone()],
    );
    timed(
        Op::SampleNormGrad { by: op },
        "1024×768",
        vec![x.clone(), x.clone(), statistic, c.clone()],
        vec![x.clone(), c],
    );
    let heads = spec(&[1, 1024, 12, 64]);
    let by = Rotary { base: 1e4, offset: 0, heads: HeadOrder::Inner, inverse: false };
    timed(Op::Rotary(by), "1×1024×12×64", vec![heads.clone()], vec![heads]);
    let logits = spec(&[rows, 50_257]);
    for smoothing in [0.0, 0.1] {
        timed(
            Op::CrossEntropy { smoothing, ignored: -1 },
            "1024×50257",
            vec![logits.clone(), labels.clone()],
            vec![scalar.clone(), logits.clone()],
        );
    }
    let table = spec(&[50_257, 768]);
    timed(Op::AddRows, "50257×768", vec![table.clone(), x, labels], vec![table]);
}

fn attention([b, t]: [usize; 2], mask: AttentionMask, heads: HeadOrder, cases: &mut Vec<Case>) {
    let (h, d) = (12, 64);
    let x = match heads {
        HeadOrder::Outer => spec(&[b, h, t, d]),
        HeadOrder::Inner => spec(&[b, t, h, d]),
    };
    let lse = spec(&[b, h, t]);
    let by = Attention { mask, heads, scale: 0.125 };
    // a product of queries and keys, and one with the values; half of each is seen
    let flops = match mask {
        AttentionMask::Causal => 2 * b * h * t * t * d,
        _ => 4 * b * h * t * t * d,
    };
    let mut case = |op: Op, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>, flops: usize| {
        let name = format!("{} {b}×{t} {mask:?} {heads:?}", op.name());
        cases.push(Case { name, op, inputs, outputs, work: Work::Flops(flops), integer: 0 });
    };
    let qkv = vec![x.clone(); 3];
    case(Op::Attention(by), qkv.clone(), vec![x.clone(), lse.clone()], flops);
    let inputs = [vec![x.clone()], qkv.clone(), vec![x, lse]].concat();
    // five products
    case(Op::AttentionGrad(by), inputs, qkv, flops / 2 * 5);
}

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}
