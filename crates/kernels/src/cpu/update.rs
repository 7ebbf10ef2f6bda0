//! The optimizers, in one pass over memory: the gradients of a block are folded into a buffer that
//! stays in the L1 cache, and the variable is updated from there.

use pulp::NullaryFnOnce;

use super::Cpu;
use super::pool::CHUNK;
use crate::launch::updates::{Adam, Mean, RowPart, Step, Updates};
use crate::real::Real;

/// Elements of a block: 4 KiB of f64, a small part of an L1 cache even with every rank's gradient.
const BLOCK: usize = 512;

/// Elements of a row that are summed at a time.
const ROW_BLOCK: usize = 256;

impl Updates for Cpu {
    fn apply<T: Real>(&self, step: Step<'_, T>, mean: Mean<T>, v: &mut [T], gradients: &[&[T]]) {
        if let Step::Lamb { numbers, decay, m, s } = step {
            return self.lamb(Lamb { numbers, decay, mean }, [v, m, s], gradients);
        }
        self.pool.each_of(pieces(step, v, CHUNK), |Piece { start, v, step }| {
            self.simd.run(Chunk { step, mean, v, gradients, start });
        });
    }

    fn apply_rows<T: Real>(
        &self,
        step: Step<'_, T>,
        mean: Mean<T>,
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
            self.simd.run(NamedRows { step, mean, columns, v, first, named, parts });
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
            Step::Nesterov { rate, momentum, u } => {
                let (u, rest) = u.split_at_mut(len);
                (Step::Nesterov { rate, momentum, u }, Step::Nesterov { rate, momentum, u: rest })
            }
            Step::AdaGrad { rate, epsilon, a } => {
                let (a, rest) = a.split_at_mut(len);
                (Step::AdaGrad { rate, epsilon, a }, Step::AdaGrad { rate, epsilon, a: rest })
            }
            Step::RmsProp { rate, alpha, fresh, epsilon, a } => {
                let (a, rest) = a.split_at_mut(len);
                let part = |a| Step::RmsProp { rate, alpha, fresh, epsilon, a };
                (part(a), part(rest))
            }
            Step::Adam { numbers, m, s } => {
                let ((m, m_rest), (s, s_rest)) = (m.split_at_mut(len), s.split_at_mut(len));
                (Step::Adam { numbers, m, s }, Step::Adam { numbers, m: m_rest, s: s_rest })
            }
            Step::Lamb { numbers, decay, m, s } => {
                let ((m, m_rest), (s, s_rest)) = (m.split_at_mut(len), s.split_at_mut(len));
                let part = |m, s| Step::Lamb { numbers, decay, m, s };
                (part(m, s), part(m_rest, s_rest))
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
            Step::Nesterov { rate, momentum, u } => {
                for ((v, u), &sum) in v.iter_mut().zip(&mut u[at..][..len]).zip(sum) {
                    let g = sum * share;
                    *u = *momentum * *u + g;
                    *v -= *rate * (g + *momentum * *u);
                }
            }
            Step::RmsProp { rate, alpha, fresh, epsilon, a } => {
                for ((v, a), &sum) in v.iter_mut().zip(&mut a[at..][..len]).zip(sum) {
                    let g = sum * share;
                    *a = *alpha * *a + *fresh * (g * g);
                    *v -= *rate * g / (a.sqrt() + *epsilon);
                }
            }
            Step::Adam { numbers, m, s } => {
                let numbers = *numbers;
                let slots = m[at..][..len].iter_mut().zip(&mut s[at..][..len]);
                for ((v, (m, s)), &sum) in v.iter_mut().zip(slots).zip(sum) {
                    numbers.take(sum * share, m, s);
                    *v -= numbers.direction(numbers.rate, *m, *s);
                }
            }
            // never by itself: it takes two passes over the variable
            Step::Lamb { .. } => {}
        }
    }
}

impl<T: Real> Mean<T> {
    /// Draws `v` to 0, and makes of the gradients' sum what a step takes: numbers, and what they are to be multiplied by.
    #[inline(always)]
    fn of<'b>(&self, v: &mut [T], sum: &'b [T], own: &'b mut [T]) -> (&'b [T], T) {
        let Mean { share, scale, pull, keep } = *self;
        if keep != T::one() {
            v.iter_mut().for_each(|v| *v *= keep);
        }
        if pull == T::zero() && scale == T::one() {
            return (sum, share);
        }
        for (own, &sum) in own.iter_mut().zip(sum) {
            *own = sum * share * scale;
        }
        if pull != T::zero() {
            own.iter_mut().zip(&*v).for_each(|(own, &v)| *own += pull * v);
        }
        (own, T::one())
    }
}

/// LAMB over a whole variable.
#[derive(Clone, Copy)]
struct Lamb<T> {
    numbers: Adam<T>,
    decay: T,
    mean: Mean<T>,
}

impl Cpu {
    fn lamb<T: Real>(&self, lamb: Lamb<T>, [v, m, s]: [&mut [T]; 3], gradients: &[&[T]]) {
        let Lamb { numbers, decay, .. } = lamb;
        let chunks = v.chunks(CHUNK).zip(m.chunks_mut(CHUNK)).zip(s.chunks_mut(CHUNK));
        let mut squares = vec![[0.0; 2]; v.len().div_ceil(CHUNK)];
        let items: Vec<_> = chunks.zip(&mut squares).enumerate().collect();
        self.pool.each_of(items, |(i, (((v, m), s), squares))| {
            let start = i * CHUNK;
            *squares = self.simd.run(Moments { lamb, v, m, s, gradients, start });
        });
        // in the order of the chunks, on however many threads they were
        let total = squares.iter().fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y]);
        let rate = numbers.trusted(total);
        let chunks = v.chunks_mut(CHUNK).zip(m.chunks(CHUNK)).zip(s.chunks(CHUNK));
        self.pool.each_of(chunks.collect(), |((v, m), s)| {
            self.simd.run(Trusted { numbers, decay, rate, v, m, s });
        });
    }
}

/// Takes gradients into the moments; returns Σv² and Σr² of what v moves along.
struct Moments<'a, T> {
    lamb: Lamb<T>,
    v: &'a [T],
    m: &'a mut [T],
    s: &'a mut [T],
    gradients: &'a [&'a [T]],
    start: usize,
}

impl<T: Real> NullaryFnOnce for Moments<'_, T> {
    type Output = [f64; 2];

    #[inline(always)]
    fn call(self) -> [f64; 2] {
        let Moments { lamb, v, m, s, gradients, start } = self;
        let Lamb { numbers, decay, mean } = lamb;
        let (mut buffer, mut along) = ([T::zero(); BLOCK], [T::zero(); BLOCK]);
        let mut squares = [0.0; 2];
        for (block, v) in v.chunks(BLOCK).enumerate() {
            let (at, len) = (block * BLOCK, v.len());
            let sum = fold(gradients, start + at, &mut buffer[..len]);
            let slots = m[at..][..len].iter_mut().zip(&mut s[at..][..len]);
            for (((along, &v), (m, s)), &sum) in along.iter_mut().zip(v).zip(slots).zip(sum) {
                numbers.take(sum * mean.share * mean.scale, m, s);
                *along = numbers.with_decay(decay, v, *m, *s);
            }
            squares[0] += square_sum(v);
            squares[1] += square_sum(&along[..len]);
        }
        squares
    }
}

/// Moves v along what LAMB moves it along.
struct Trusted<'a, T> {
    numbers: Adam<T>,
    decay: T,
    rate: T,
    v: &'a mut [T],
    m: &'a [T],
    s: &'a [T],
}

impl<T: Real> NullaryFnOnce for Trusted<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Trusted { numbers, decay, rate, v, m, s } = self;
        for ((v, &m), &s) in v.iter_mut().zip(m).zip(s) {
            *v -= rate * numbers.with_decay(decay, *v, m, s);
        }
    }
}

/// Running sums side by side, so that none waits for another: two AVX-512 registers of f64.
const SUMS: usize = 16;

/// Σx² in f64, in an order that the length alone decides.
#[inline(always)]
fn square_sum<T: Real>(x: &[T]) -> f64 {
    let mut sums = [0.0; SUMS];
    let (blocks, rest) = x.as_chunks::<SUMS>();
    for block in blocks {
        for (sum, &x) in sums.iter_mut().zip(block) {
            let x = x.widen();
            *sum += x * x;
        }
    }
    for (sum, &x) in sums.iter_mut().zip(rest) {
        let x = x.widen();
        *sum += x * x;
    }
    sums.iter().sum()
}

/// Of rows of share·Σ gradients, from row `first` on, the sums of the squares.
pub(super) struct SquareSums<'a, T> {
    pub(super) share: T,
    pub(super) columns: usize,
    pub(super) gradients: &'a [&'a [T]],
    pub(super) first: usize,
    pub(super) y: &'a mut [f64],
}

impl<T: Real> NullaryFnOnce for SquareSums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let SquareSums { share, columns, gradients, first, y } = self;
        let (mut buffer, mut own) = ([T::zero(); BLOCK], [T::zero(); BLOCK]);
        for (row, y) in y.iter_mut().enumerate() {
            *y = 0.0;
            let start = (first + row) * columns;
            for at in (0..columns).step_by(BLOCK) {
                let len = BLOCK.min(columns - at);
                let sum = fold(gradients, start + at, &mut buffer[..len]);
                for (own, &sum) in own.iter_mut().zip(sum) {
                    *own = sum * share;
                }
                *y += square_sum(&own[..len]);
            }
        }
    }
}

/// Updates `v`, which starts at element `start` of the variable.
struct Chunk<'a, T> {
    step: Step<'a, T>,
    mean: Mean<T>,
    v: &'a mut [T],
    gradients: &'a [&'a [T]],
    start: usize,
}

impl<T: Real> NullaryFnOnce for Chunk<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Chunk { mut step, mean, v, gradients, start } = self;
        let (mut buffer, mut own) = ([T::zero(); BLOCK], [T::zero(); BLOCK]);
        for (block, v) in v.chunks_mut(BLOCK).enumerate() {
            let (at, len) = (block * BLOCK, v.len());
            let sum = fold(gradients, start + at, &mut buffer[..len]);
            let (sum, share) = mean.of(v, sum, &mut own[..len]);
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

/// y ← the mean of the parts from element `start` on.
pub(super) struct Folded<'a, T> {
    pub(super) share: T,
    pub(super) parts: &'a [&'a [T]],
    pub(super) start: usize,
    pub(super) y: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Folded<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Folded { share, parts, mut start, y } = self;
        let mut buffer = [T::zero(); BLOCK];
        for y in y.chunks_mut(BLOCK) {
            let sum = fold(parts, start, &mut buffer[..y.len()]);
            for (y, &sum) in y.iter_mut().zip(sum) {
                *y = sum * share;
            }
            start += y.len();
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
    mean: Mean<T>,
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
        let NamedRows { mut step, mean, columns, v, first, named, parts } = self;
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
                let v = &mut v[at..][..len];
                let (sum, share) = mean.of(v, sum, own);
                step.walk(at, v, sum, share);
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
