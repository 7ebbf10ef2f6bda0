//! Attention a query at a time, as the formula is written.

use super::Reference;
use super::reductions::sum;
use crate::launch::attention::{AttentionGradients, Attentions, RotaryShape, Seen};
use crate::real::Real;

impl Attentions for Reference {
    fn attention<T: Real>(&self, seen: Seen<'_, T>, y: &mut [T], lse: &mut [T]) {
        each_query(&seen, |query| {
            let depth = seen.shape.depth;
            let scores: Vec<T> =
                (0..seen.shape.keys).map(|key| score(&seen, &query, key)).collect();
            let max =
                scores.iter().fold(T::neg_infinity(), |max, &s| if s > max { s } else { max });
            let y = &mut y[query.row * depth..][..depth];
            y.fill(T::zero());
            lse[query.statistic] = T::neg_infinity();
            if max == T::neg_infinity() {
                return;
            }
            let total = sum(scores.iter().map(|&s| (s - max).exp()));
            for (key, &s) in scores.iter().enumerate() {
                let v = &seen.v[query.key_row(key) * depth..][..depth];
                for (y, &v) in y.iter_mut().zip(v) {
                    *y += (s - max).exp() / total * v;
                }
            }
            lse[query.statistic] = max + total.ln();
        });
    }

    /// With P = e^(S − lse), D = Σ dy∘y and dS = P∘(dy·vᵀ − D): dv = Pᵀ·dy, dq = scale·dS·k, dk = scale·dSᵀ·q: Dao et al.
    /// 2022, appendix B.2.
    fn attention_grad<T: Real>(
        &self,
        seen: Seen<'_, T>,
        dy: &[T],
        y: &[T],
        lse: &[T],
        out: AttentionGradients<'_, T>,
    ) {
        let AttentionGradients { dq, dk, dv } = out;
        dq.fill(T::zero());
        dk.fill(T::zero());
        dv.fill(T::zero());
        let (depth, scale) = (seen.shape.depth, seen.scale);
        each_query(&seen, |query| {
            let here = query.row * depth..(query.row + 1) * depth;
            let (q, dy, y) = (&seen.q[here.clone()], &dy[here.clone()], &y[here.clone()]);
            let level = sum(dy.iter().zip(y).map(|(&dy, &y)| dy * y));
            for key in 0..seen.shape.keys {
                let s = score(&seen, &query, key);
                if s == T::neg_infinity() {
                    continue;
                }
                let p = (s - lse[query.statistic]).exp();
                let there = query.key_row(key) * depth..(query.key_row(key) + 1) * depth;
                let (k, v) = (&seen.k[there.clone()], &seen.v[there.clone()]);
                let dp = sum(dy.iter().zip(v).map(|(&dy, &v)| dy * v));
                let ds = scale * (p * (dp - level));
                for (i, dq) in dq[here.clone()].iter_mut().enumerate() {
                    *dq += ds * k[i];
                }
                for (i, dk) in dk[there.clone()].iter_mut().enumerate() {
                    *dk += ds * q[i];
                }
                for (i, dv) in dv[there].iter_mut().enumerate() {
                    *dv += p * dy[i];
                }
            }
        });
    }

    fn rotary<T: Real>(&self, shape: RotaryShape, x: &[T], y: &mut [T]) {
        let half = shape.depth / 2;
        let rows = x.chunks_exact(shape.depth).zip(y.chunks_exact_mut(shape.depth));
        for (row, (x, y)) in rows.enumerate() {
            for i in 0..half {
                let (sin, cos) = shape.angle(shape.position(row), i).sin_cos();
                let (sin, cos) = (T::narrow(sin), T::narrow(cos));
                y[i] = x[i] * cos - x[half + i] * sin;
                y[half + i] = x[half + i] * cos + x[i] * sin;
            }
        }
    }
}

/// A query, and where its keys are.
struct Query {
    batch: usize,
    head: usize,
    at: usize,
    /// Of q and y, by rows of a query's elements.
    row: usize,
    /// Of the log-sum-exp.
    statistic: usize,
    /// The first key's row, and the next one's distance.
    keys: [usize; 2],
}

impl Query {
    fn key_row(&self, key: usize) -> usize {
        self.keys[0] + key * self.keys[1]
    }
}

fn each_query<T>(seen: &Seen<'_, T>, mut body: impl FnMut(Query)) {
    let shape = seen.shape;
    for batch in 0..shape.batch {
        for head in 0..shape.heads {
            let [first, step] = shape.query_rows(batch, head);
            let keys = shape.key_rows(batch, head / shape.heads_of_a_group());
            for at in 0..shape.queries {
                let statistic = (batch * shape.heads + head) * shape.queries + at;
                body(Query { batch, head, at, row: first + at * step, statistic, keys });
            }
        }
    }
}

/// scale·q·k, and what the mask adds.
fn score<T: Real>(seen: &Seen<'_, T>, query: &Query, key: usize) -> T {
    let depth = seen.shape.depth;
    let q = &seen.q[query.row * depth..][..depth];
    let k = &seen.k[query.key_row(key) * depth..][..depth];
    let product = sum(q.iter().zip(k).map(|(&q, &k)| q * k));
    seen.scale * product + seen.mask.added(query.batch, query.head, query.at, key)
}
