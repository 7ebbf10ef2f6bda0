//! Rows for attention, positions, and what normalises a sample.

use tensorwire_tensor::{DType, Dim, Fact};

use super::{Row, alike, float, unify};
use crate::error::GraphError;
use crate::op::{Attention, AttentionMask, Rotary, SampleNorm};

impl Row<'_> {
    pub(super) fn attention(&self, by: &Attention) -> Result<Vec<Fact>, GraphError> {
        let q = &self.inputs[0];
        self.queries_and_keys(by, 0)?;
        let statistic = self.log_sum_exp(by, q);
        Ok(vec![q.clone(), statistic])
    }

    pub(super) fn attention_grad(&self, by: &Attention) -> Result<Vec<Fact>, GraphError> {
        let [dy, q, k, v, y, statistic, ..] = self.inputs else {
            return self.mismatch("dy, q, k, v, y and the log-sum-exp are needed");
        };
        self.queries_and_keys(by, 1)?;
        let wanted = self.log_sum_exp(by, q);
        let like_q = |fact: &Fact| fact.dtype == q.dtype && alike(&fact.dims, &q.dims);
        let fits = like_q(dy)
            && like_q(y)
            && statistic.dtype == wanted.dtype
            && alike(&statistic.dims, &wanted.dims);
        match fits {
            true => Ok(vec![q.clone(), k.clone(), v.clone()]),
            false => self.mismatch("dy and y as q, and a log-sum-exp [b,h,t], are needed"),
        }
    }

    fn log_sum_exp(&self, by: &Attention, q: &Fact) -> Fact {
        let [heads, positions] = by.heads.axes();
        let dims = vec![q.dims[0], q.dims[heads], q.dims[positions]];
        Fact { dtype: statistic(q.dtype), dims }
    }

    /// Checks q, k and v, which start at input `first`, and the mask, which is last.
    fn queries_and_keys(&self, by: &Attention, first: usize) -> Result<(), GraphError> {
        let wanted = "q f[b,h,t,d], k and v f[b,g,s,d] of one type are needed, h a multiple of g";
        let [q, k, v] = &self.inputs[first..][..3] else {
            return self.mismatch(wanted);
        };
        let [heads, positions] = by.heads.axes();
        let (&[qb, _, _, qd], &[kb, _, _, kd]) = (&q.dims[..], &k.dims[..]) else {
            return self.mismatch(wanted);
        };
        let grouped = match (q.dims[heads], k.dims[heads]) {
            (Dim::Known(h), Dim::Known(g)) => g > 0 && h % g == 0,
            _ => false,
        };
        let fits = unify(qb, kb).is_some()
            && matches!(qd, Dim::Known(1..))
            && qd == kd
            && grouped
            && alike(&k.dims, &v.dims)
            && float(q)
            && [k.dtype, v.dtype] == [q.dtype; 2];
        if !fits {
            return self.mismatch(wanted);
        }
        if !(by.scale > 0.0 && by.scale.is_finite()) {
            return self.mismatch("a scale above 0 is needed");
        }
        let (t, s) = (q.dims[positions], k.dims[positions]);
        match by.mask {
            AttentionMask::None => Ok(()),
            AttentionMask::Causal if unify(t, s).is_some() => Ok(()),
            AttentionMask::Causal => self.mismatch("as many keys as queries are needed"),
            AttentionMask::Given => {
                let mask = &self.inputs[self.inputs.len() - 1];
                let full = [qb, q.dims[heads], t, s];
                let fits = |(&dim, &full): (&Dim, &Dim)| {
                    dim == Dim::Known(1) || unify(dim, full).is_some()
                };
                let typed = mask.dtype == q.dtype || mask.dtype == DType::U8;
                match typed && mask.dims.len() == 4 && mask.dims.iter().zip(&full).all(fits) {
                    true => Ok(()),
                    false => self.mismatch("a mask f or u8 [b|1, h|1, t|1, s] is needed"),
                }
            }
        }
    }

    pub(super) fn rotary(&self, by: &Rotary) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        let even = matches!(x.dims[..], [_, _, _, Dim::Known(d)] if d % 2 == 0);
        match float(x) && even && by.base > 0.0 && by.base.is_finite() {
            true => Ok(vec![x.clone()]),
            false => self.mismatch("a floating tensor [b,h,t,d] with d even is needed"),
        }
    }

    pub(super) fn sample_norm(&self, by: SampleNorm) -> Result<Vec<Fact>, GraphError> {
        let x = &self.inputs[0];
        self.channels(0, 1..self.inputs.len())?;
        let statistic = self.sample_statistic(by, x)?;
        let mut outputs = vec![x.clone()];
        outputs.resize(2 + usize::from(by.is_centred()), statistic);
        Ok(outputs)
    }

    pub(super) fn sample_norm_grad(&self, by: SampleNorm) -> Result<Vec<Fact>, GraphError> {
        let (dy, x) = (&self.inputs[0], &self.inputs[1]);
        let last = self.inputs.len() - 1;
        let channels = self.channels(1, last..last + 1)?;
        let wanted = self.sample_statistic(by, x)?;
        let is_statistic =
            |fact: &Fact| fact.dtype == wanted.dtype && alike(&fact.dims, &wanted.dims);
        let fits = dy.dtype == x.dtype && alike(&dy.dims, &x.dims);
        if !fits || !self.inputs[2..last].iter().all(is_statistic) {
            return self.mismatch("a gradient like x and x's statistics are needed");
        }
        let vector = Fact { dtype: x.dtype, dims: vec![channels] };
        let mut outputs = vec![x.clone()];
        outputs.resize(2 + usize::from(by.is_centred()), vector);
        Ok(outputs)
    }

    /// What a mean of `x` is, which has a last dimension.
    fn sample_statistic(&self, by: SampleNorm, x: &Fact) -> Result<Fact, GraphError> {
        let last = x.dims.len() - 1;
        let dims = match (by, x.dims[last]) {
            (SampleNorm::Layer | SampleNorm::Rms, Dim::Known(1..)) => x.dims[..last].to_vec(),
            (SampleNorm::Group { groups: groups @ 1.. }, Dim::Known(channels @ 1..))
                if channels % groups == 0 =>
            {
                vec![x.dims[0], Dim::Known(groups)]
            }
            (SampleNorm::Group { .. }, _) => {
                return self.mismatch("channels must be groups of as many each");
            }
            _ => return self.mismatch("a known number of channels is needed"),
        };
        Ok(Fact { dtype: statistic(x.dtype), dims })
    }

    pub(super) fn rows_added(&self) -> Result<Vec<Fact>, GraphError> {
        let [x, rows, indices] = self.inputs else {
            return self.mismatch("three inputs are needed");
        };
        match self.fit_rows(rows, indices, x) {
            true => Ok(vec![x.clone()]),
            false => self.mismatch("a tensor f[v,d], rows f[k,d] and indices i32[k] are needed"),
        }
    }
}

/// What statistics of numbers of `dtype` are kept in: they are sums, which bf16 has too few bits for.
fn statistic(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::F32,
        dtype => dtype,
    }
}
