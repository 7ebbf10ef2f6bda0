//! Functions of elements, tensors whose dimensions are repeated, and sums over several dimensions.

use tensorwire_graph::{Binary, Comparison, Op, Output, Reduction, Unary};
use tensorwire_tensor::Dim;

use super::Scope;
use crate::error::{Error, Result};

impl Scope<'_> {
    /// Any function of one number, by elements: x → the same dimensions. The methods below are of these.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn unary(&mut self, name: &str, by: Unary, x: Output) -> Result<Output> {
        self.op(name, Op::Unary { by }, &[x])
    }

    /// x·Φ(x), Φ the standard normal distribution, by elements (Hendrycks and Gimpel 2016).
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn gelu(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(&format!("{name}/gelu"), Unary::Gelu, x)
    }

    /// ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), by elements: what GPT-2 takes for [`Scope::gelu`].
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn gelu_tanh(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(&format!("{name}/gelu"), Unary::GeluTanh, x)
    }

    /// x·σ(x), by elements: SiLU or swish (Elfwing et al. 2017).
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn silu(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(&format!("{name}/silu"), Unary::Silu, x)
    }

    /// log(1 + eˣ), by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn softplus(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(&format!("{name}/softplus"), Unary::Softplus, x)
    }

    /// eˣ, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn exp(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Exp, x)
    }

    /// The natural logarithm, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn log(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Log, x)
    }

    /// √x, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn sqrt(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Sqrt, x)
    }

    /// 1/√x, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn rsqrt(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Rsqrt, x)
    }

    /// x to the power of a number that never changes, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn pow(&mut self, name: &str, x: Output, exponent: f64) -> Result<Output> {
        self.unary(name, Unary::Pow { exponent }, x)
    }

    /// |x|, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn abs(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Abs, x)
    }

    /// −x, by elements.
    ///
    /// # Errors
    /// When `x` is not of floating point.
    pub fn neg(&mut self, name: &str, x: Output) -> Result<Output> {
        self.unary(name, Unary::Neg, x)
    }

    /// x, but `least` where it is less and `most` where it is more, by elements. Nothing flows back from where it is not x.
    ///
    /// # Errors
    /// When `x` is not of floating point, or `least` is more than `most`.
    pub fn clamp(&mut self, name: &str, x: Output, least: f64, most: f64) -> Result<Output> {
        if least > most {
            return Err(Error::layer(name, format!("{least} to {most} is no range")));
        }
        self.unary(name, Unary::Clamp { least, most }, x)
    }

    /// The larger of two, by elements; broadcast as [`Scope::add`].
    ///
    /// # Errors
    /// As there.
    pub fn maximum(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::Binary { by: Binary::Max }, &[a, b])
    }

    /// The smaller of two, by elements; broadcast as [`Scope::add`].
    ///
    /// # Errors
    /// As there.
    pub fn minimum(&mut self, name: &str, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::Binary { by: Binary::Min }, &[a, b])
    }

    /// 1 where `a` and `b` are so, else 0: `u8`; both of one type, of any. Broadcast as [`Scope::add`]. No gradient flows.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn compare(&mut self, name: &str, by: Comparison, a: Output, b: Output) -> Result<Output> {
        self.op(name, Op::Compare { by }, &[a, b])
    }

    /// `a` where `condition`, `u8`, is not 0, else `b`, by elements: NumPy's `where`. All three are broadcast.
    ///
    /// # Errors
    /// When they do not fit each other.
    pub fn select(
        &mut self,
        name: &str,
        condition: Output,
        a: Output,
        b: Output,
    ) -> Result<Output> {
        let mut dims = Vec::new();
        for x in [condition, a, b] {
            let fact = self.fact(x)?;
            dims = broadcast(&dims, &fact.dims).ok_or_else(|| {
                Error::layer(name, format!("{fact} cannot be broadcast with the others"))
            })?;
        }
        let mut all = [a, b, condition];
        for (x, what) in all.iter_mut().zip(["a", "b", "condition"]) {
            if self.fact(*x)?.dims != dims {
                let to = dims.clone();
                *x = self.op(&format!("{name}/{what}"), Op::ExpandTo { to }, &[*x])?;
            }
        }
        self.op(name, Op::Select, &all)
    }

    /// x, repeated along its dimensions of 1, and before its first, until it has `dims`.
    ///
    /// # Errors
    /// When another dimension of `x` differs.
    pub fn expand(&mut self, name: &str, x: Output, dims: &[usize]) -> Result<Output> {
        let to = dims.iter().copied().map(Dim::Known).collect();
        self.op(name, Op::ExpandTo { to }, &[x])
    }

    /// The sum over all of `axes`, which the result has as dimensions of 1 if `keep`, and else has not.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn sum_over(
        &mut self,
        name: &str,
        x: Output,
        axes: &[usize],
        keep: bool,
    ) -> Result<Output> {
        let (ones, left) = self.without(name, x, axes)?;
        let node = if keep { name.to_owned() } else { format!("{name}/kept") };
        let y = self.op(&node, Op::SumTo { to: ones }, &[x])?;
        if keep { Ok(y) } else { self.op(name, Op::Reshape { to: left }, &[y]) }
    }

    /// The mean over all of `axes`, which the result has as dimensions of 1 if `keep`, and else has not.
    ///
    /// # Errors
    /// When there is no such dimension, or one of them is not known.
    pub fn mean_over(
        &mut self,
        name: &str,
        x: Output,
        axes: &[usize],
        keep: bool,
    ) -> Result<Output> {
        let wanted = "a tensor whose dimensions are known where a mean is taken is needed";
        let sizes = axes.iter().map(|&axis| self.known(name, ("x", x), axis, wanted));
        // fits: a count of elements, exact in f64
        let count = sizes.product::<Result<usize>>()? as f64;
        let sum = self.sum_over(&format!("{name}/sum"), x, axes, keep)?;
        self.scale(name, sum, 1.0 / count)
    }

    /// The largest over all of `axes`, which the result has as dimensions of 1 if `keep`, and else has not.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn max_over(
        &mut self,
        name: &str,
        x: Output,
        axes: &[usize],
        keep: bool,
    ) -> Result<Output> {
        let (ones, left) = self.without(name, x, axes)?;
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        let mut y = x;
        for axis in sorted.into_iter().rev() {
            let op = Op::Reduce { by: Reduction::Max, axis };
            y = self.op(&format!("{name}/over_{axis}"), op, &[y])?;
        }
        self.op(name, Op::Reshape { to: if keep { ones } else { left } }, &[y])
    }

    /// The dimensions of `x` with `axes` as 1, and without them.
    fn without(&self, name: &str, x: Output, axes: &[usize]) -> Result<(Vec<Dim>, Vec<Dim>)> {
        let fact = self.fact(x)?;
        let mut ones = fact.dims.clone();
        for (place, &axis) in axes.iter().enumerate() {
            if axis >= ones.len() || axes[..place].contains(&axis) {
                let reason = format!("x is {fact}; it cannot be reduced over {axes:?}");
                return Err(Error::layer(name, reason));
            }
            ones[axis] = Dim::Known(1);
        }
        let left = fact.dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        Ok((ones, left.map(|(_, dim)| *dim).collect()))
    }

    /// A function of two tensors, by `same` where they are of one shape and over the bytes of one of them, perhaps.
    pub(super) fn of_two(
        &mut self,
        name: &str,
        (same, by): (Op, Binary),
        a: Output,
        b: Output,
    ) -> Result<Output> {
        let (a_dims, b_dims) = (&self.fact(a)?.dims, &self.fact(b)?.dims);
        let differ =
            |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
        let alike = a_dims.len() == b_dims.len() && !a_dims.iter().zip(b_dims).any(differ);
        match !alike && broadcast(a_dims, b_dims).is_some() {
            true => self.op(name, Op::Binary { by }, &[a, b]),
            false => self.op(name, same, &[a, b]),
        }
    }
}

/// What tensors of dimensions `a` and `b` are both repeated to.
fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut dims = long.to_vec();
    for (dim, &also) in dims[long.len() - short.len()..].iter_mut().zip(short) {
        *dim = match (*dim, also) {
            (Dim::Known(1), other) | (other, Dim::Known(1)) => other,
            (Dim::Known(one), Dim::Known(other)) if one != other => return None,
            (Dim::Known(one), _) | (_, Dim::Known(one)) => Dim::Known(one),
            (one, _) => one,
        };
    }
    Some(dims)
}
