//! Rows for operators of elements whose shapes may differ, and for products of many matrices.

use tensorwire_tensor::{DType, Dim, Fact};

use super::{Row, alike, float, unify};
use crate::error::GraphError;

impl Row<'_> {
    /// The dimensions that both operands are repeated to.
    pub(super) fn broadcast(&self) -> Result<Vec<Dim>, GraphError> {
        let (a, b) = (&self.inputs[0], &self.inputs[1]);
        match broadcast(&a.dims, &b.dims) {
            Some(dims) if a.dtype == b.dtype => Ok(dims),
            _ => self.mismatch(
                "tensors of one type are needed whose dimensions, from the last, are equal or 1",
            ),
        }
    }

    pub(super) fn binary(&self) -> Result<Vec<Fact>, GraphError> {
        match float(&self.inputs[0]) {
            true => self.one(self.inputs[0].dtype, &self.broadcast()?),
            false => self.mismatch("floating tensors are needed"),
        }
    }

    /// `floats` floating tensors of one shape, and a condition of that shape.
    pub(super) fn select(&self, floats: usize) -> Result<Vec<Fact>, GraphError> {
        let (chosen, condition) = self.inputs.split_at(floats);
        let fact = self.alike_floats(chosen)?;
        match condition[0].dtype == DType::U8 && alike(&condition[0].dims, &fact.dims) {
            true => Ok(vec![fact]),
            false => self.mismatch("a condition u8 of the tensors' shape is needed"),
        }
    }

    pub(super) fn expand_to(&self, to: &[Dim]) -> Result<Vec<Fact>, GraphError> {
        let wanted = "a tensor whose dimensions, from the last, are those that are wanted or 1";
        let x = &self.inputs[0];
        let Some(before) = to.len().checked_sub(x.dims.len()) else {
            return self.mismatch(wanted);
        };
        let mut dims = to.to_vec();
        for (dim, &from) in dims[before..].iter_mut().zip(&x.dims) {
            match (*dim, from) {
                (Dim::Known(_), Dim::Known(1)) => {}
                (Dim::Dynamic(_), from) => *dim = from,
                (_, from) if unify(*dim, from).is_some() => {}
                _ => return self.mismatch(wanted),
            }
        }
        if dims[..before].iter().any(|dim| matches!(dim, Dim::Dynamic(_))) {
            return self.mismatch("a tensor is repeated a known number of times");
        }
        self.one(x.dtype, &dims)
    }

    pub(super) fn sum_to(&self, to: &[Dim]) -> Result<Vec<Fact>, GraphError> {
        let wanted = "a floating tensor whose dimensions, from the last, are those that are wanted, which \
             may be 1";
        let x = &self.inputs[0];
        let Some(before) = x.dims.len().checked_sub(to.len()).filter(|_| float(x)) else {
            return self.mismatch(wanted);
        };
        let mut dims = to.to_vec();
        for (dim, &from) in dims.iter_mut().zip(&x.dims[before..]) {
            match *dim {
                Dim::Known(1) => {}
                Dim::Dynamic(_) => *dim = from,
                _ if unify(*dim, from).is_some() => {}
                _ => return self.mismatch(wanted),
            }
        }
        self.one(x.dtype, &dims)
    }

    pub(super) fn batch_matmul(
        &self,
        transpose_a: bool,
        transpose_b: bool,
    ) -> Result<Vec<Fact>, GraphError> {
        let wanted = "matrices [..,m,k] and [..,k,n] of one floating type, as many of each";
        let (a, b) = (&self.inputs[0], &self.inputs[1]);
        let (Some((many, &[a0, a1])), Some((also, &[b0, b1]))) =
            (a.dims.split_last_chunk::<2>(), b.dims.split_last_chunk::<2>())
        else {
            return self.mismatch(wanted);
        };
        let (m, k) = if transpose_a { (a1, a0) } else { (a0, a1) };
        let (also_k, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
        let fits = float(a)
            && a.dtype == b.dtype
            && unify(k, also_k).is_some()
            && many.len() == also.len();
        let unified = many.iter().zip(also).map(|(&a, &b)| unify(a, b));
        match unified.collect::<Option<Vec<Dim>>>() {
            Some(mut dims) if fits => {
                dims.extend([m, n]);
                self.one(a.dtype, &dims)
            }
            _ => self.mismatch(wanted),
        }
    }
}

/// The dimensions that tensors of `a` and of `b` are both repeated to.
fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let before = long.len() - short.len();
    let mut dims = long.to_vec();
    for (dim, &also) in dims[before..].iter_mut().zip(short) {
        *dim = match (*dim, also) {
            (Dim::Known(1), other) | (other, Dim::Known(1)) => other,
            (one, other) => unify(one, other)?,
        };
    }
    Some(dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Binary, Op};
    use crate::pass::infer::infer;
    use tensorwire_tensor::Symbol;

    fn f32s(dims: &[usize]) -> Fact {
        Fact::known(DType::F32, dims)
    }

    #[test]
    fn dimensions_of_one_are_repeated() {
        let op = Op::Binary { by: Binary::Add };
        let sum = |a: &[usize], b: &[usize]| infer("y", &op, &[f32s(a), f32s(b)]);
        assert_eq!(sum(&[2, 3, 4], &[4]), Ok(vec![f32s(&[2, 3, 4])]));
        assert_eq!(sum(&[3, 1], &[2, 1, 5]), Ok(vec![f32s(&[2, 3, 5])]));
        assert_eq!(sum(&[], &[0, 2]), Ok(vec![f32s(&[0, 2])]));
        assert!(sum(&[2, 3], &[2]).is_err());
        let open = Fact { dtype: DType::F32, dims: vec![Dim::Dynamic(Symbol(3)), Dim::Known(5)] };
        assert_eq!(infer("y", &op, &[open.clone(), f32s(&[5])]), Ok(vec![open.clone()]));
        let back = Op::SumTo { to: vec![Dim::Known(1), Dim::Known(5)] };
        assert_eq!(infer("y", &back, &[open]), Ok(vec![f32s(&[1, 5])]));
    }

    #[test]
    fn sums_and_repetitions_are_each_others_shapes() {
        let to = |dims: &[usize]| dims.iter().map(|&dim| Dim::Known(dim)).collect::<Vec<Dim>>();
        let sum = Op::SumTo { to: to(&[3, 1]) };
        assert_eq!(infer("y", &sum, &[f32s(&[2, 3, 4])]), Ok(vec![f32s(&[3, 1])]));
        let many = Op::ExpandTo { to: to(&[2, 3, 4]) };
        assert_eq!(infer("y", &many, &[f32s(&[3, 1])]), Ok(vec![f32s(&[2, 3, 4])]));
        assert!(infer("y", &many, &[f32s(&[2, 1])]).is_err());
        assert!(infer("y", &sum, &[f32s(&[2, 4, 4])]).is_err());
    }
}
