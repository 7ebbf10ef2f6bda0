//! Rows for operators that move elements, or reduce a dimension.

use tensorwire_tensor::{DType, Dim, Fact, Symbol};

use super::{Row, alike, float, unify};
use crate::error::GraphError;

impl Row<'_> {
    pub(super) fn reduce(&self, axis: usize) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        if !float(x) || axis >= x.dims.len() {
            return self.mismatch("a floating tensor that has the dimension is needed");
        }
        let mut dims = x.dims.clone();
        dims.remove(axis);
        self.one(x.dtype, &dims)
    }

    pub(super) fn reduce_grad(&self, axis: usize) -> Result<Vec<Fact>, GraphError> {
        let [dy, x, y] = self.inputs else {
            return self.mismatch("three inputs are needed");
        };
        let mut reduced = x.dims.clone();
        if axis >= reduced.len() {
            return self.mismatch("a tensor that has the dimension is needed");
        }
        reduced.remove(axis);
        let fit = |fact: &Fact| fact.dtype == x.dtype && alike(&fact.dims, &reduced);
        match float(x) && fit(dy) && fit(y) {
            true => Ok(vec![x.clone()]),
            false => self.mismatch("dy and y must be x without the dimension"),
        }
    }

    pub(super) fn concat(
        &self,
        axis: usize,
        size: Option<Symbol>,
    ) -> Result<Vec<Fact>, GraphError> {
        let first = &self.inputs[0];
        if axis >= first.dims.len() {
            return self.mismatch("tensors that have the dimension are needed");
        }
        let mut dims = first.dims.clone();
        let (mut known, mut open) = (0usize, None);
        for input in self.inputs {
            if input.dtype != first.dtype || input.dims.len() != dims.len() {
                return self.mismatch("tensors of one type and number of dimensions are needed");
            }
            for (at, (dim, also)) in dims.iter_mut().zip(&input.dims).enumerate() {
                if at == axis {
                    continue;
                }
                match unify(*dim, *also) {
                    Some(refined) => *dim = refined,
                    None => return self.mismatch("the other dimensions must be equal"),
                }
            }
            match input.dims[axis] {
                Dim::Known(size) => known = known.saturating_add(size),
                dim => open = Some(dim),
            }
        }
        dims[axis] = match (open, self.inputs) {
            (None, _) => Dim::Known(known),
            (Some(dim), [_]) => dim,
            (Some(_), _) => match size {
                Some(size) => Dim::Dynamic(size),
                None => return self.mismatch("the joined dimension must be known"),
            },
        };
        self.one(first.dtype, &dims)
    }

    pub(super) fn concat_grad(&self, axis: usize) -> Result<Vec<Fact>, GraphError> {
        let [dy, .., last] = self.inputs else {
            return self.mismatch("a gradient and what was joined are needed");
        };
        let fits = |x: &Fact| x.dtype == dy.dtype && x.dims.len() == dy.dims.len();
        match axis < dy.dims.len() && self.inputs.iter().all(fits) {
            true => Ok(vec![last.clone()]),
            false => self.mismatch("tensors of one type and number of dimensions are needed"),
        }
    }

    pub(super) fn slice_grad(&self, axis: usize, start: usize) -> Result<Vec<Fact>, GraphError> {
        let (dy, x) = (&self.inputs[0], &self.inputs[1]);
        let fits = dy.dtype == x.dtype && dy.dims.len() == x.dims.len() && axis < dy.dims.len();
        let reaches = match (fits, x.dims.get(axis), dy.dims.get(axis)) {
            (true, Some(Dim::Known(size)), Some(Dim::Known(length))) => {
                start.checked_add(*length).is_some_and(|end| end <= *size)
            }
            (fits, ..) => fits,
        };
        match reaches {
            true => Ok(vec![x.clone()]),
            false => self.mismatch("a gradient and a tensor that it is a part of are needed"),
        }
    }

    pub(super) fn slice(
        &self,
        axis: usize,
        start: usize,
        length: usize,
    ) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        let end = start.checked_add(length);
        match (x.dims.get(axis), end) {
            // a dynamic one may turn out to be shorter, which the kernel says
            (Some(dim), Some(end)) if !matches!(dim, Dim::Known(size) if end > *size) => {
                let mut dims = x.dims.clone();
                dims[axis] = Dim::Known(length);
                self.one(x.dtype, &dims)
            }
            _ => self.mismatch("a dimension that reaches as far as the slice is needed"),
        }
    }

    pub(super) fn pad(
        &self,
        axis: usize,
        before: usize,
        after: usize,
    ) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        let padded = |size: usize| size.checked_add(before)?.checked_add(after);
        match x.dims.get(axis) {
            Some(Dim::Known(size)) if padded(*size).is_some() => {
                let mut dims = x.dims.clone();
                dims[axis] = Dim::Known(size + before + after);
                self.one(x.dtype, &dims)
            }
            _ => self.mismatch("a known dimension is needed"),
        }
    }

    pub(super) fn transpose(&self, permutation: &[usize]) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        let mut seen = vec![false; x.dims.len()];
        let fits = permutation.len() == seen.len()
            && permutation
                .iter()
                .all(|&from| seen.get_mut(from).is_some_and(|seen| !std::mem::replace(seen, true)));
        if !fits {
            return self.mismatch("a permutation of the dimensions is needed");
        }
        let dims: Vec<Dim> = permutation.iter().map(|&from| x.dims[from]).collect();
        self.one(x.dtype, &dims)
    }

    pub(super) fn gather(&self) -> Result<Vec<Fact>, GraphError> {
        match (&self.inputs[0].dims[..], &self.inputs[1].dims[..]) {
            (&[_, columns], &[count])
                if float(&self.inputs[0]) && self.inputs[1].dtype == DType::I32 =>
            {
                self.one(self.inputs[0].dtype, &[count, columns])
            }
            _ => self.mismatch("a floating matrix and indices i32[k] are needed"),
        }
    }

    pub(super) fn scatter_rows(&self) -> Result<Vec<Fact>, GraphError> {
        let [rows, indices, like] = self.inputs else {
            return self.mismatch("three inputs are needed");
        };
        match (self.fit_rows(rows, indices, like), like.spec()) {
            (true, _) => Ok(vec![like.clone()]),
            _ => self.mismatch("rows f[k,d], indices i32[k] and a tensor f[v,d] are needed"),
        }
    }

    /// True if `rows` and `indices` can be some of the rows of `like`.
    pub(super) fn fit_rows(&self, rows: &Fact, indices: &Fact, like: &Fact) -> bool {
        match (&rows.dims[..], &indices.dims[..], &like.dims[..]) {
            (&[count, columns], &[also_count], &[_, also_columns]) => {
                float(rows)
                    && rows.dtype == like.dtype
                    && indices.dtype == DType::I32
                    && unify(count, also_count).is_some()
                    && unify(columns, also_columns).is_some()
            }
            _ => false,
        }
    }
}
