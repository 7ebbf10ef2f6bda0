//! The optimizers, in one pass over memory: the gradients of a block are folded into a buffer that
//! stays in the L1 cache, and the variable is updated from there.

use pulp::NullaryFnOnce;

use super::Cpu;
use super::pool::CHUNK;
use crate::launch::updates::{Adam, RowPart, Step, Updates};
use crate::real::Real;

/// Elements of a block: 4 KiB of f64, a small part of an L1 cache even with every rank's gradient.
const BLOCK: usize = 512;

/// Elements of a row that are summed at a time.
const ROW_BLOCK: usize = 256;

impl Updates for Cpu {
    fn apply<T: Real>(&self, step: Step<'_, T>, share: T, v: &mut [T], gradients: &[&[T]]) {
        self.pool.each_of(pieces(step, v, CHUNK), |Piece { start, v, step }| {
            self.simd.run(Chunk { step, share, v, gradients, start });
        });
    }

    fn apply_rows<T: Real>(
        &self,
        step: Step<'_, T>,
        share: T,
        columns: usize,
        v: &mut [T],
        parts: &[RowPart<'_, T>],
    ) {
        if columns == 0 || v.is_empty() {
            return;
        }
        let named = Named::sorted(parts);
        // a piece costs a search, whatever it has of the named rows
        let rows = (CHUNK / columns).max(v.len() / columns / 16).max(1);
        self.pool.each_of(pieces(step, v, rows * columns), |Piece { start, v, step }| {
            let first = start / columns;
            let named = named.within(first, first + v.len() / columns);
            self.simd.run(NamedRows { step, share, columns, v, first, named, parts });
        });
    }

    fn apply_average<T: Real>(&self, rate: T, share: T, v: &mut [T], values: &[&[T]]) {
        self.pool.each_chunk(v, |start, v| {
            self.simd.run(Average { rate, share, v, values, start });
        });
    }
}

/// A part of a variable, from element `start` on, with its slots.
struct Piece<'a, T> {
    start: usize,
    v: &'a mut [T],
    step: Step<'a, T>,
}

/// The variable in pieces of `chunk` elements.
fn pieces<'a, T: Real>(mut step: Step<'a, T>, v: &'a mut [T], chunk: usize) -> Vec<Piece<'a, T>> {
    let mut pieces = Vec::with_capacity(v.len().div_ceil(chunk));
    for (i, v) in v.chunks_mut(chunk).enumerate() {
        let (part, rest) = step.split_at(v.len());
        pieces.push(Piece { start: i * chunk, v, step: part });
        step = rest;
    }
    pieces
}

impl<'a, T: Real> Step<'a, T> {
    /// The same with the first `len` elements of each slot, and with the others.
    fn split_at(self, len: usize) -> (Step<'a, T>, Step<'a, T>) {
        match self {
            Step::Sgd { rate } => (Step::Sgd { rate }, Step::Sgd { rate }),
            Step::Momentum { rate, momentum, u } => {
                let (u, rest) = u.split_at_mut(len);
                (Step::Momentum { rate, momentum, u }, Step::Momentum { rate, momentum, u: rest })
            }
            Step::AdaGrad { rate, epsilon, a } => {
                let (a, rest) = a.split_at_mut(len);
                (Step::AdaGrad { rate, epsilon, a }, Step::AdaGrad { rate, epsilon, a: rest })
            }
            Step::Adam { numbers, m, s } => {
                let ((m, m_rest), (s, s_rest)) = (m.split_at_mut(len), s.split_at_mut(len));
                (Step::Adam { numbers, m, s }, Step::Adam { numbers, m: m_rest, s: s_rest })
            }
        }
    }

    /// Moves `v`, which are elements `at..` of the piece, along the mean of the gradients whose sum is given.
    #[inline(always)]
    fn walk(&mut self, at: usize, v: &mut [T], sum: &[T], share: T) {
        let len = v.len();
        match self {
            Step::Sgd { rate } => {
                for (v, &sum) in v.iter_mut().zip(sum) {
                    *v -= *rate * (sum * share);
                }
            }
            Step::Momentum { rate, momentum, u } => {
                for ((v, u), &sum) in v.iter_mut().zip(&mut u[at..][..len]).zip(sum) {
                    *u = *momentum * *u + sum * share;
                    *v -= *rate * *u;
                }
            }
            Step::AdaGrad { rate, epsilon, a } => {
                for ((v, a), &sum) in v.iter_mut().zip(&mut a[at..][..len]).zip(sum) {
                    let g = sum * share;
                    *a += g * g;
                    *v -= *rate * g / (a.sqrt() + *epsilon);
                }
            }
            Step::Adam { numbers, m, s } => {
                let Adam { rate, beta1, fresh1, beta2, fresh2, epsilon, bias1, bias2 } = *numbers;
                let slots = m[at..][..len].iter_mut().zip(&mut s[at..][..len]);
                for ((v, (m, s)), &sum) in v.iter_mut().zip(slots).zip(sum) {
                    let g = sum * share;
                    *m = beta1 * *m + fresh1 * g;
                    *s = beta2 * *s + fresh2 * (g * g);
                    *v -= rate * (*m / bias1) / ((*s / bias2).sqrt() + epsilon);
                }
            }
        }
    }
}

/// Updates `v`, which starts at element `start` of the variable.
struct Chunk<'a, T> {
    step: Step<'a, T>,
    share: T,
    v: &'a mut [T],
    gradients: &'a [&'a [T]],
    start: usize,
}

impl<T: Real> NullaryFnOnce for Chunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Chunk { mut step, share, v, gradients, start } = self;
        let mut buffer = [T::zero(); BLOCK];
        for (block, v) in v.chunks_mut(BLOCK).enumerate() {
            let at = block * BLOCK;
            let sum = fold(gradients, start + at, &mut buffer[..v.len()]);
            step.walk(at, v, sum, share);
        }
    }
}

/// Moves `v`, which starts at element `start` of the variable, towards the mean of the values.
struct Average<'a, T> {
    rate: T,
    share: T,
    v: &'a mut [T],
    values: &'a [&'a [T]],
    start: usize,
}

impl<T: Real> NullaryFnOnce for Average<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Average { rate, share, v, values, mut start } = self;
        let mut buffer = [T::zero(); BLOCK];
        for v in v.chunks_mut(BLOCK) {
            let sum = fold(values, start, &mut buffer[..v.len()]);
            for (v, &sum) in v.iter_mut().zip(sum) {
                *v += rate * (sum * share - *v);
            }
            start += v.len();
        }
    }
}

/// Which row of which part is a gradient of a row: by rows, and for each in the order of the parts.
struct Named(Vec<Place>);

#[derive(Clone, Copy)]
struct Place {
    /// Row of the variable.
    row: i32,
    part: usize,
    /// Row of the part.
    at: usize,
}

impl Named {
    fn sorted<T>(parts: &[RowPart<'_, T>]) -> Named {
        let mut places = Vec::with_capacity(parts.iter().map(|part| part.indices.len()).sum());
        for (part, RowPart { indices, .. }) in parts.iter().enumerate() {
            places.extend(indices.iter().enumerate().map(|(at, &row)| Place { row, part, at }));
        }
        places.sort_by_key(|place| place.row);
        Named(places)
    }

    /// The places of rows `first..end`.
    fn within(&self, first: usize, end: usize) -> &[Place] {
        let before = |row: usize| self.0.partition_point(|place| (place.row as usize) < row);
        &self.0[before(first)..before(end)]
    }
}

/// Updates the named rows of `v`, which starts at row `first` of the variable.
struct NamedRows<'a, T> {
    step: Step<'a, T>,
    share: T,
    columns: usize,
    v: &'a mut [T],
    first: usize,
    named: &'a [Place],
    parts: &'a [RowPart<'a, T>],
}

impl<T: Real> NullaryFnOnce for NamedRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let NamedRows { mut step, share, columns, v, first, named, parts } = self;
        let (mut buffer, mut own) = ([T::zero(); ROW_BLOCK], [T::zero(); ROW_BLOCK]);
        for places in named.chunk_by(|a, b| a.row == b.row) {
            let row = places[0].row as usize - first;
            for column in (0..columns).step_by(ROW_BLOCK) {
                let len = ROW_BLOCK.min(columns - column);
                let rows = |p: &Place| &parts[p.part].rows[p.at * columns + column..][..len];
                let (sum, own) = (&mut buffer[..len], &mut own[..len]);
                for (index, part) in places.chunk_by(|a, b| a.part == b.part).enumerate() {
                    // each part by itself first: whether it was added up before it came changes no bit
                    let total = if index == 0 { &mut *sum } else { &mut *own };
                    total.copy_from_slice(rows(&part[0]));
                    for place in &part[1..] {
                        add(total, rows(place));
                    }
                    if index > 0 {
                        add(sum, own);
                    }
                }
                let at = row * columns + column;
                step.walk(at, &mut v[at..][..len], sum, share);
            }
        }
    }
}

#[inline(always)]
fn add<T: Real>(sum: &mut [T], rows: &[T]) {
    for (sum, &g) in sum.iter_mut().zip(rows) {
        *sum += g;
    }
}

/// The gradients' sum from element `start` on, added in rank order.
#[inline(always)]
fn fold<'b, T: Real>(gradients: &[&'b [T]], start: usize, buffer: &'b mut [T]) -> &'b [T] {
    let block = |rank: usize| &gradients[rank][start..][..buffer.len()];
    match gradients.len() {
        1 => block(0),
        2 => {
            let (first, second) = (block(0), block(1));
            for ((sum, &a), &b) in buffer.iter_mut().zip(first).zip(second) {
                *sum = a + b;
            }
            buffer
        }
        _ => {
            buffer.copy_from_slice(block(0));
            for gradient in &gradients[1..] {
                for (sum, &g) in buffer.iter_mut().zip(&gradient[start..]) {
                    *sum += g;
                }
            }
            buffer
        }
    }
}
