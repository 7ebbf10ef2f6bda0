//! Layers of feed-forward networks.

use tensorwire_graph::{Init, Op, Output, Window};
use tensorwire_tensor::Dim;

use super::{Average, Mode, Scope};
use crate::error::{Error, Result};

/// Padding of a convolution or a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// None.
    Valid,
    /// As many windows as strides fit the image, ⌈size/stride⌉: TensorFlow's SAME.
    Same,
    /// This many rows and columns on all sides.
    Of([usize; 2]),
}

/// A batch normalisation: what is added to a variance, and whether there is a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub epsilon: f64,
    pub scaled: bool,
}

impl Default for Norm {
    /// With a scale; PyTorch's epsilon, 1e-5.
    fn default() -> Norm {
        Norm { epsilon: 1e-5, scaled: true }
    }
}

/// The moving averages of a batch normalisation, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Averages<'n> {
    pub mean: &'n str,
    pub variance: &'n str,
    /// How far they go to a batch's values in a step: PyTorch's momentum.
    pub rate: f64,
    /// The variance that is averaged is that of all, estimated from a batch of n: times n/(n − 1), as PyTorch has it.
    pub unbiased: bool,
}

impl<'n> Averages<'n> {
    /// Averages that go a tenth of the way, of the batch's own variance.
    pub fn new(mean: &'n str, variance: &'n str) -> Averages<'n> {
        Averages { mean, variance, rate: 0.1, unbiased: false }
    }
}

/// A local response normalisation: x·(bias + alpha·Σ x²)^−beta, over the `size` channels around each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalNorm {
    /// Odd.
    pub size: usize,
    pub alpha: f64,
    pub beta: f64,
    pub bias: f64,
}

impl Default for LocalNorm {
    /// As Krizhevsky et al. 2012, §3.3.
    fn default() -> LocalNorm {
        LocalNorm { size: 5, alpha: 1e-4, beta: 0.75, bias: 2.0 }
    }
}

const MATRIX: &str = "a matrix [batch, features] of known width is needed: flatten it first";
const IMAGES: &str = "images [batch, height, width, channels] of known size are needed";

impl Scope<'_> {
    /// Gives convolutions, and fully connected layers with a ReLU, a part of the outputs that are asked for from here on, rounded
    /// up: the same layers, which compute about `by`² times as fast, to try a network with (`depth_multiplier` of TF-slim).
    ///
    /// # Panics
    /// If `by` is 0.
    pub fn divide_widths(&mut self, by: usize) {
        assert!(by > 0, "widths are divided by at least 1");
        self.width_divisor = by;
    }

    /// A fully connected layer, x: `f[b, inputs]` → x·Wᵀ + bias: `f[b, outputs]`. Parameters `<name>/weight`, `[outputs, inputs]`,
    /// first uniform as Glorot and Bengio 2010, and `<name>/bias`, first zeros. Before a ReLU use [`Scope::linear_relu`].
    ///
    /// # Errors
    /// When `x` is no matrix of floating point with a known number of columns.
    pub fn linear(&mut self, name: &str, x: Output, outputs: usize) -> Result<Output> {
        let inputs = self.width(name, x)?;
        self.dense(name, x, outputs, Init::GlorotUniform { fan_in: inputs, fan_out: outputs })
    }

    /// A fully connected layer and a ReLU, x: `f[b, inputs]` → max(x·Wᵀ + bias, 0): `f[b, outputs]`. As [`Scope::linear`], with
    /// first weights for what comes before a ReLU (He et al. 2015).
    ///
    /// # Errors
    /// As there.
    pub fn linear_relu(&mut self, name: &str, x: Output, outputs: usize) -> Result<Output> {
        let inputs = self.width(name, x)?;
        let outputs = outputs.div_ceil(self.width_divisor);
        let y = self.dense(name, x, outputs, Init::HeUniform { fan_in: inputs })?;
        self.relu(name, y)
    }

    fn width(&self, name: &str, x: Output) -> Result<usize> {
        self.check(name, ("x", x), 2, MATRIX)?;
        self.known(name, ("x", x), 1, MATRIX)
    }

    fn dense(&mut self, name: &str, x: Output, outputs: usize, init: Init) -> Result<Output> {
        let inputs = self.width(name, x)?;
        let weight = self.parameter(&format!("{name}/weight"), &[outputs, inputs], init)?;
        let bias = self.parameter(&format!("{name}/bias"), &[outputs], Init::Zeros)?;
        self.project(name, x, weight, bias)
    }

    /// x·Wᵀ + b.
    pub(super) fn project(
        &mut self,
        name: &str,
        x: Output,
        weight: Output,
        bias: Output,
    ) -> Result<Output> {
        let product = Op::MatMul { transpose_a: false, transpose_b: true };
        let y = self.op(&format!("{name}/product"), product, &[x, weight])?;
        self.op(name, Op::BiasAdd, &[y, bias])
    }

    /// A bias on the last dimension, x: `f[…, n]` → x + bias: `f[…, n]`. Parameter `<name>/bias`, `[n]`, first zeros.
    ///
    /// # Errors
    /// When the last dimension of `x` is not known.
    pub fn bias(&mut self, name: &str, x: Output) -> Result<Output> {
        let last = self.fact(x)?.dims.len().saturating_sub(1);
        let wanted = "a tensor of floating point whose last dimension is known is needed";
        let width = self.known(name, ("x", x), last, wanted)?;
        let bias = self.parameter(&format!("{name}/bias"), &[width], Init::Zeros)?;
        self.op(name, Op::BiasAdd, &[x, bias])
    }

    /// Each sample as one row, x: `f[b, d₁, …, dₙ]` → `f[b, d₁·…·dₙ]`. No byte is moved.
    ///
    /// # Errors
    /// When a dimension but the first is not known.
    pub fn flatten(&mut self, name: &str, x: Output) -> Result<Output> {
        let fact = self.fact(x)?.clone();
        let unknown = || {
            Error::layer(name, format!("x is {fact}; all but the first dimension must be known"))
        };
        let mut features = 1usize;
        for dim in fact.dims.iter().skip(1) {
            let Dim::Known(size) = dim else { return Err(unknown()) };
            features = features.checked_mul(*size).ok_or_else(unknown)?;
        }
        let to = vec![*fact.dims.first().ok_or_else(unknown)?, Dim::Known(features)];
        self.op(&format!("{name}/flat"), Op::Reshape { to }, &[x])
    }

    fn window(
        &self,
        name: &str,
        x: Output,
        kernel: [usize; 2],
        stride: usize,
        padding: Padding,
    ) -> Result<Window> {
        let stride = [stride, stride];
        Ok(match padding {
            Padding::Valid => Window::valid(kernel, stride),
            Padding::Of(padding) => Window::padded(kernel, stride, padding),
            Padding::Same => Window::same(kernel, stride, self.image_size(name, x)?),
        })
    }

    fn image_size(&self, name: &str, x: Output) -> Result<[usize; 2]> {
        let side = |axis| self.known(name, ("x", x), axis, IMAGES);
        Ok([side(1)?, side(2)?])
    }

    /// A convolution without bias, x: `f[b, h, w, c]` → `f[b, oh, ow, outputs]`, with a kernel of `[rows, columns]` at every
    /// `stride`-th place. Parameter `<name>/weight`, `[outputs, c, rows, columns]`, first uniform as He et al. 2015.
    ///
    /// # Errors
    /// When `x` is no batch of images, or the kernel does not fit them.
    pub fn conv2d(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        kernel: [usize; 2],
        stride: usize,
        padding: Padding,
    ) -> Result<Output> {
        self.check(name, ("x", x), 4, IMAGES)?;
        let inputs = self.known(name, ("x", x), 3, IMAGES)?;
        let window = self.window(name, x, kernel, stride, padding)?;
        let [rows, columns] = kernel;
        let init = Init::HeUniform { fan_in: inputs * rows * columns };
        let outputs = outputs.div_ceil(self.width_divisor);
        let dims = [outputs, inputs, rows, columns];
        let weight = self.parameter(&format!("{name}/weight"), &dims, init)?;
        self.op(&format!("{name}/conv"), Op::Conv2d { window, groups: 1 }, &[x, weight])
    }

    /// A convolution with a square kernel, a bias and a ReLU, x: `f[b, h, w, c]` → `f[b, oh, ow, outputs]`. Parameters
    /// `<name>/weight` and `<name>/bias`.
    ///
    /// # Errors
    /// As [`Scope::conv2d`].
    pub fn conv_relu(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output> {
        let y = self.conv2d(name, x, outputs, [kernel, kernel], stride, padding)?;
        let y = self.bias(name, y)?;
        self.relu(name, y)
    }

    /// The largest of each square window, x: `f[b, h, w, c]` → `f[b, oh, ow, c]`. Padding is never the largest.
    ///
    /// # Errors
    /// When `x` is no batch of images, or the window does not fit them.
    pub fn max_pool(
        &mut self,
        name: &str,
        x: Output,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output> {
        self.check(name, ("x", x), 4, IMAGES)?;
        let window = self.window(name, x, [kernel, kernel], stride, padding)?;
        self.op(name, Op::MaxPool { window }, &[x])
    }

    /// The mean of each square window, x: `f[b, h, w, c]` → `f[b, oh, ow, c]`. Padding is not counted.
    ///
    /// # Errors
    /// As [`Scope::max_pool`].
    pub fn avg_pool(
        &mut self,
        name: &str,
        x: Output,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output> {
        self.check(name, ("x", x), 4, IMAGES)?;
        let window = self.window(name, x, [kernel, kernel], stride, padding)?;
        self.op(name, Op::AvgPool { window }, &[x])
    }

    /// The mean of each channel over the whole image, x: `f[b, h, w, c]` → `f[b, c]`.
    ///
    /// # Errors
    /// When `x` is no batch of images.
    pub fn global_avg_pool(&mut self, name: &str, x: Output) -> Result<Output> {
        self.check(name, ("x", x), 4, IMAGES)?;
        let window = Window::valid(self.image_size(name, x)?, [1, 1]);
        let pooled = self.op(name, Op::AvgPool { window }, &[x])?;
        self.flatten(name, pooled)
    }

    /// Batch normalisation over all dimensions but the last (Ioffe and Szegedy 2015), x: `f[…, c]` → `f[…, c]`. Parameters
    /// `<name>/shift` and, if it is scaled, `<name>/scale`, `[c]` each; moving averages `<name>/mean` and `<name>/variance`,
    /// by which evaluation normalises. They go a tenth of the way to a batch's values in each step.
    ///
    /// # Errors
    /// When the last dimension of `x` is not known.
    pub fn batch_norm(&mut self, name: &str, x: Output, norm: Norm) -> Result<Output> {
        let Norm { epsilon, scaled } = norm;
        let channels = self.channels(name, x)?;
        let one = Init::Constant { value: 1.0 };
        let scale = match scaled {
            true => Some(self.parameter(&format!("{name}/scale"), &[channels], one)?),
            false => None,
        };
        let shift = self.parameter(&format!("{name}/shift"), &[channels], Init::Zeros)?;
        let [mean, variance] = ["mean", "variance"].map(|of| format!("{name}/{of}"));
        self.batch_norm_by(name, x, (scale, shift), epsilon, &Averages::new(&mean, &variance))
    }

    /// As [`Scope::batch_norm`], with a scale and a shift that are given, `f[c]` each, and averages by any names.
    ///
    /// # Errors
    /// As there, or when they do not fit.
    pub fn batch_norm_by(
        &mut self,
        name: &str,
        x: Output,
        (scale, shift): (Option<Output>, Output),
        epsilon: f64,
        averages: &Averages<'_>,
    ) -> Result<Output> {
        let scaled = scale.is_some();
        self.differs_in_training();
        let channels = self.channels(name, x)?;
        let Averages { rate, unbiased, .. } = *averages;
        let mean = self.average(averages.mean, channels, Init::Zeros)?;
        let variance = self.average(averages.variance, channels, Init::Constant { value: 1.0 })?;
        let mut inputs: Vec<Output> = [Some(x), scale, Some(shift)].into_iter().flatten().collect();
        let node = format!("{name}/norm");
        match self.mode {
            Mode::Train => {
                let y = self.op(&node, Op::BatchNorm { epsilon, scaled }, &inputs)?;
                let kept_as = self.kept_as;
                for (index, of, variable) in [(1, "mean", mean), (2, "variance", variance)] {
                    let latest = Output { node: y.node, index };
                    let mut latest =
                        self.as_type(&format!("{name}/{of}/latest"), latest, kept_as)?;
                    if unbiased && of == "variance" {
                        // fits: a count of elements, exact in f64
                        let count = (self.elements(name, x)? / channels) as f64;
                        let by = count / (count - 1.0).max(1.0);
                        latest = self.scale(&format!("{name}/{of}/unbiased"), latest, by)?;
                    }
                    self.made.averages.push(Average { variable, latest, rate });
                }
                Ok(y)
            }
            Mode::Evaluate => {
                let dtype = self.dtype;
                for (of, average) in [("mean", mean), ("variance", variance)] {
                    inputs.push(self.as_type(&format!("{name}/{of}/used"), average, dtype)?);
                }
                self.op(&node, Op::Normalize { epsilon, scaled }, &inputs)
            }
        }
    }

    /// The size of the last dimension of a tensor that is normalised.
    fn channels(&self, name: &str, x: Output) -> Result<usize> {
        let last = self.fact(x)?.dims.len().saturating_sub(1);
        let wanted = "a tensor of floating point with a known number of channels is needed";
        self.known(name, ("x", x), last, wanted)
    }

    /// Normalises each element by those of the channels around it (Krizhevsky et al. 2012), x: `f[…, c]` → `f[…, c]`.
    ///
    /// # Errors
    /// When `x` is not of floating point, or `norm.size` is even.
    pub fn local_response_norm(
        &mut self,
        name: &str,
        x: Output,
        norm: LocalNorm,
    ) -> Result<Output> {
        let LocalNorm { size, alpha, beta, bias } = norm;
        self.op(name, Op::LocalResponseNorm { size, alpha, beta, bias }, &[x])
    }

    /// Drops `rate` of the elements in training, and scales the others up (Srivastava et al. 2014); which, depends on the
    /// seed, the copy's number, the layer's name and the step alone. x → the same dimensions.
    ///
    /// # Errors
    /// When `rate` is not from 0 to below 1.
    pub fn dropout(&mut self, name: &str, x: Output, rate: f64) -> Result<Output> {
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::layer(
                name,
                format!("a rate of {rate}; from 0 to below 1 is needed"),
            ));
        }
        let node = format!("{name}/dropout");
        match self.draws(&node)? {
            Some((key, step)) => self.op(&node, Op::Dropout { rate, key }, &[x, step]),
            None => Ok(x),
        }
    }

    /// What a node of this name draws by in training: a key, which depends on the seed, the copy's number and the name alone, and
    /// the number of the step, `i64[]`. None in evaluation, where nothing is drawn.
    ///
    /// # Errors
    /// When a tensor of the batch is called as the step is.
    pub fn draws(&mut self, name: &str) -> Result<Option<(u64, Output)>> {
        self.differs_in_training();
        if self.mode == Mode::Evaluate {
            return Ok(None);
        }
        let drawn_as = format!("{}/{}{name}", self.drawn_as, self.path);
        Ok(Some((crate::init::fnv1a(&drawn_as) ^ self.seed, self.step()?)))
    }

    /// The vectors of words, tokens: `i32[…]` → `f[…, size]`: rows of parameter `<name>/weight`, `[words, size]`, first uniform in
    /// ±0.1. Its gradient is of the rows alone that are named, unless the parameter is used otherwise, too: as the matrix of
    /// the output, with [`Scope::matmul_transposed`]. Tokens must be in 0..words.
    ///
    /// # Errors
    /// When `tokens` is not of i32.
    pub fn embedding(
        &mut self,
        name: &str,
        tokens: Output,
        [words, size]: [usize; 2],
    ) -> Result<Output> {
        let init = Init::Uniform { limit: 0.1 };
        let table = self.parameter(&format!("{name}/weight"), &[words, size], init)?;
        self.gather(&format!("{name}/embedded"), table, tokens)
    }
}
