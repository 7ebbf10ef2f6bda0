//! A small transformer whose embedding is its output's matrix, and every layer for such.

use tensorwire_nn::{
    Batch, Comparison, CrossEntropy, DType, Data, Description, HeadOrder, Mask, Model, Optimizer,
    Outputs, Program, ProgramSpec, Result, Scope,
};

use crate::local::{Local, Table, spec};

const WORDS: usize = 7;
const LENGTH: usize = 6;
const WIDTH: usize = 8;

/// Two blocks as GPT-2's, or as Llama's.
struct Transformer {
    rotary: bool,
}

impl Transformer {
    fn attention(
        &self,
        s: &mut Scope<'_>,
        name: &str,
        x: tensorwire_nn::Output,
    ) -> Result<tensorwire_nn::Output> {
        let b = s.batch();
        let heads = |s: &mut Scope<'_>, part: &str, count: usize| {
            let y = s.linear_each(&format!("{name}/{part}"), x, count * 4)?;
            let y = s.reshape(&format!("{name}/{part}/heads"), y, &[b, LENGTH, count, 4])?;
            match self.rotary && part != "value" {
                true => s.rotary(&format!("{name}/{part}"), y, 10_000.0, 0, HeadOrder::Inner),
                false => Ok(y),
            }
        };
        let groups = if self.rotary { 1 } else { 2 };
        let q = heads(s, "query", 2)?;
        let (k, v) = (heads(s, "key", groups)?, heads(s, "value", groups)?);
        let y = s.attention(name, [q, k, v], Mask::Causal, HeadOrder::Inner)?;
        let y = s.reshape(&format!("{name}/joined"), y, &[b, LENGTH, WIDTH])?;
        s.linear_each(&format!("{name}/output"), y, WIDTH)
    }

    fn block(
        &self,
        s: &mut Scope<'_>,
        name: &str,
        x: tensorwire_nn::Output,
    ) -> Result<tensorwire_nn::Output> {
        let norm = |s: &mut Scope<'_>, part: &str, x| match self.rotary {
            true => s.rms_norm(&format!("{name}/{part}"), x, 1e-5),
            false => s.layer_norm(&format!("{name}/{part}"), x, 1e-5),
        };
        let y = norm(s, "norm1", x)?;
        let y = self.attention(s, &format!("{name}/attention"), y)?;
        let x = s.add(&format!("{name}/residual1"), x, y)?;
        let y = norm(s, "norm2", x)?;
        let wide = s.linear_each(&format!("{name}/wide"), y, 4 * WIDTH)?;
        let wide = match self.rotary {
            true => {
                let gate = s.projection(&format!("{name}/gate"), y, 4 * WIDTH)?;
                let gate = s.silu(&format!("{name}/gate"), gate)?;
                s.mul(&format!("{name}/gated"), gate, wide)?
            }
            false => s.gelu_tanh(&format!("{name}/wide"), wide)?,
        };
        let y = s.linear_each(&format!("{name}/narrow"), wide, WIDTH)?;
        s.add(&format!("{name}/residual2"), x, y)
    }
}

impl Model for Transformer {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let (words, next) = (batch.input("word")?, batch.input("next")?);
        let mut x = s.embedding("words", words, [WORDS, WIDTH])?;
        if !self.rotary {
            let init = tensorwire_nn::Init::Uniform { limit: 0.1 };
            let places = s.parameter("places", &[LENGTH, WIDTH], init)?;
            x = s.add("placed", x, places)?;
        }
        for block in ["block1", "block2"] {
            x = self.block(s, block, x)?;
        }
        let x = s.layer_norm("last", x, 1e-5)?;
        // the same parameter as the words'
        let init = tensorwire_nn::Init::Uniform { limit: 0.1 };
        let table = s.parameter("words/weight", &[WORDS, WIDTH], init)?;
        let rows = s.reshape("rows", x, &[batch.size() * LENGTH, WIDTH])?;
        let logits = s.matmul_transposed("logits", rows, table)?;
        let logits = s.reshape("logits/each", logits, &[batch.size(), LENGTH, WORDS])?;
        let target = CrossEntropy { smoothing: 0.01, ..CrossEntropy::default() };
        let loss = s.cross_entropy("loss", logits, next, target)?;
        let right = s.count_within("right", logits, next, 1)?;
        let near = s.count_within("near", logits, next, 3)?;
        Ok(Outputs::loss(loss).count("right", right).count("near", near))
    }
}

/// Words of which each is three more than the one before, modulo their number.
fn sentences() -> Data {
    let description =
        Description::new().tokens("word", &[LENGTH], WORDS).tokens("next", &[LENGTH], WORDS);
    let word =
        |from: usize| move |i: usize| ((i / LENGTH + 3 * (i % LENGTH + from)) % WORDS) as f32;
    let columns = [0, 1].map(|from| (0..WORDS * LENGTH).map(word(from)).collect()).to_vec();
    // as many samples as there are words
    let table = Table { description, columns };
    Data::from((table.clone(), table))
}

#[test]
fn transformers_learn_what_comes_next() {
    for rotary in [false, true] {
        let data = sentences();
        let spec = ProgramSpec { optimizer: Optimizer::adam(0.02), ..spec(WORDS) };
        let mut job = Local::new(&Transformer { rotary }, &data.train.describe(), &spec).unwrap();
        let losses = job.train(&data, 60).unwrap();
        assert!(losses[0] > 1.5 && losses[59] < 0.4, "rotary {rotary}: {losses:?}");
    }
}

#[test]
fn transformers_are_planned_in_every_type() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for rotary in [false, true] {
            let spec = ProgramSpec { dtype, ..spec(2) };
            let described = sentences().train.describe();
            Program::new(&Transformer { rotary }, &described, &spec).unwrap();
        }
    }
}

/// Layers that the transformers have not.
struct Others;

impl Model for Others {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let b = batch.size();
        let x = batch.input("input")?;
        let x = s.group_norm("groups", x, 2, 1e-5)?;
        let y = s.gelu("a", x)?;
        let y = s.softplus("b", y)?;
        let y = s.log("c", y)?;
        let y = s.clamp("d", y, -3.0, 3.0)?;
        let y = s.exp("e", y)?;
        let root = s.sqrt("f", y)?;
        let inverse = s.rsqrt("g", y)?;
        let y = s.mul("h", root, inverse)?;
        let y = s.pow("i", y, 2.0)?;
        let mean = s.mean_over("j", x, &[1, 2], true)?;
        let y = s.sub("k", y, mean)?;
        let largest = s.max_over("l", x, &[1, 2], true)?;
        let y = s.maximum("m", y, largest)?;
        let zero = s.zeros("n", &[1])?;
        let y = s.minimum("o", y, zero)?;
        let is_small = s.compare("p", Comparison::Less, y, zero)?;
        let size = s.abs("q", y)?;
        let size = s.neg("r", size)?;
        let y = s.select("s", is_small, size, x)?;
        // one row a position, attended to among those of its sample
        let y = s.reshape("t", y, &[b, 1, 9, 4])?;
        let seen = s.constant("u", 0.0, &[1, 1, 9, 9])?;
        let y = s.attention("v", [y, y, y], Mask::Given(seen), HeadOrder::Outer)?;
        let y = s.reshape("w", y, &[b, 9, 4])?;
        let y = s.batch_matmul_transposed("x", y, y)?;
        let y = s.batch_matmul("y", y, y)?;
        let sums = s.sum_over("z", y, &[1, 2], false)?;
        let sums = s.scale("scaled", sums, 1e-2)?;
        let targets = s.constant("targets", 1.0, &[b])?;
        let loss = s.binary_cross_entropy_with_logits("loss", sums, targets)?;
        Ok(Outputs::loss(loss))
    }
}

#[test]
fn the_other_layers_learn() {
    let x: Vec<f32> = (0..4 * 36).map(|i| (i * 7 % 11) as f32 / 11.0).collect();
    let data = Data::from(Table::labelled(&[3, 3, 4], &x, &[0; 4], 3));
    let mut job = Local::new(&Others, &data.train.describe(), &spec(4)).unwrap();
    let losses = job.train(&data, 20).unwrap();
    assert!(losses[19] < losses[0] && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
}
