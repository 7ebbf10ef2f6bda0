//! Elements that move: copies of runs, and transpositions tile by tile.

use tensorwire_tensor::Element;

use super::Cpu;
use super::pool::CHUNK;
use super::transpose::{Rows, transpose};
use crate::launch::Source;
use crate::launch::moves::Moves;
use crate::launch::reductions::Axis;
use crate::real::Real;

impl Moves for Cpu {
    fn concat<T: Element>(&self, rows: usize, parts: &[&[T]], y: &mut [T]) {
        let row = y.len().checked_div(rows).unwrap_or(0);
        self.each_run(row, y, |run, mut y| {
            for part in parts {
                let length = part.len() / rows;
                let (target, rest) = y.split_at_mut(length);
                target.copy_from_slice(&part[run * length..][..length]);
                y = rest;
            }
        });
    }

    fn slice<T: Element>(&self, axis: Axis, start: usize, length: usize, x: &[T], y: &mut [T]) {
        let (from, run) = (axis.length * axis.inner, length * axis.inner);
        self.each_run(run, y, |outer, y| {
            y.copy_from_slice(&x[outer * from + start * axis.inner..][..run]);
        });
    }

    fn pad<T: Element>(&self, axis: Axis, before: usize, after: usize, x: &[T], y: &mut [T]) {
        let run = axis.length * axis.inner;
        let padding = [before, after].map(|padding| padding * axis.inner);
        self.each_run(padding[0] + run + padding[1], y, |outer, y| {
            let (head, rest) = y.split_at_mut(padding[0]);
            let (body, tail) = rest.split_at_mut(run);
            head.fill(T::zeroed());
            body.copy_from_slice(&x[outer * run..][..run]);
            tail.fill(T::zeroed());
        });
    }

    fn transpose<T: Element>(&self, dims: &[usize], permutation: &[usize], x: &[T], y: &mut [T]) {
        if y.is_empty() {
            return;
        }
        let sides = sides(dims, permutation);
        let Some((&outermost, inner)) = sides.split_first() else {
            return y.copy_from_slice(x); // nothing changes places
        };
        let block: usize = inner.iter().map(|side| side.size).product();
        let count = CHUNK.div_ceil(block);
        self.pool.each_chunk_of(y, count * block, |start, y| {
            let mut part = sides.clone();
            part[0].size = y.len() / block;
            turn(&part, &x[start / block * outermost.step..], y);
        });
    }

    fn gather<T: Element>(&self, columns: usize, table: &[T], indices: &[i32], y: &mut [T]) {
        self.each_run(columns, y, |i, y| {
            y.copy_from_slice(&table[indices[i] as usize * columns..][..columns]);
        });
    }

    fn scatter_rows<T: Real>(&self, columns: usize, rows: &[T], indices: &[i32], y: &mut [T]) {
        self.each_rows(columns, y, |start, y| {
            y.fill(T::zero());
            add_rows(columns, rows, indices, start / columns, y);
        });
    }

    fn add_rows<T: Real>(
        &self,
        columns: usize,
        x: Source<'_, T>,
        rows: &[T],
        indices: &[i32],
        y: &mut [T],
    ) {
        self.each_rows(columns, y, |start, y| {
            if let Source::Apart(x) = x {
                y.copy_from_slice(&x[start..][..y.len()]);
            }
            add_rows(columns, rows, indices, start / columns, y);
        });
    }
}

/// Adds the rows that name one of those in `y`, which starts at row `first`.
fn add_rows<T: Real>(columns: usize, rows: &[T], indices: &[i32], first: usize, y: &mut [T]) {
    let here = first..first + y.len() / columns;
    for (row, &index) in rows.chunks_exact(columns).zip(indices) {
        let index = index as usize;
        if here.contains(&index) {
            for (y, &x) in y[(index - first) * columns..].iter_mut().zip(row) {
                *y += x;
            }
        }
    }
}

impl Cpu {
    /// Gives `body` pieces of whole rows, each of which looks at all indices: few pieces.
    fn each_rows<T: Element>(
        &self,
        columns: usize,
        y: &mut [T],
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        if columns == 0 || y.is_empty() {
            return;
        }
        let count = (CHUNK / columns).max(y.len() / columns / 16).max(1);
        self.pool.each_chunk_of(y, count * columns, body);
    }

    /// Gives `body` every run of `run` elements of `y`, with its number.
    fn each_run<T: Element>(
        &self,
        run: usize,
        y: &mut [T],
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        if run == 0 {
            return;
        }
        let runs = CHUNK.div_ceil(run);
        self.pool.each_chunk_of(y, runs * run, |start, y| {
            for (i, y) in y.chunks_exact_mut(run).enumerate() {
                body(start / run + i, y);
            }
        });
    }
}

/// A dimension of the output: how many, and how far apart they lie in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    size: usize,
    step: usize,
}

/// The output's dimensions, those that lie alike in the input as one, those of one element left out.
fn sides(dims: &[usize], permutation: &[usize]) -> Vec<Side> {
    let step = |dim: usize| dims[dim + 1..].iter().product();
    let mut sides: Vec<Side> = Vec::with_capacity(dims.len());
    for &dim in permutation.iter().filter(|&&dim| dims[dim] != 1) {
        let side = Side { size: dims[dim], step: step(dim) };
        match sides.last_mut() {
            Some(last) if last.step == side.size * side.step => {
                *last = Side { size: last.size * side.size, step: side.step };
            }
            _ => sides.push(side),
        }
    }
    sides
}

/// Writes `y`, whose dimensions are `sides`, of which there is at least one.
fn turn<T: Element>(sides: &[Side], x: &[T], y: &mut [T]) {
    match sides {
        [] => y.copy_from_slice(&x[..1]),
        [Side { step: 1, size }] => y.copy_from_slice(&x[..*size]),
        [side] => {
            for (i, y) in y.iter_mut().enumerate() {
                *y = x[i * side.step];
            }
        }
        [Side { step: 1, .. }, ..] => turn_outer(sides, x, y),
        [outermost, inner @ ..] => {
            for (i, y) in y.chunks_exact_mut(y.len() / outermost.size).enumerate() {
                turn(inner, &x[i * outermost.step..], y);
            }
        }
    }
}

/// As [`turn`], where the outermost dimension is contiguous in the input: matrices of it and the last, for
/// all places along those between.
fn turn_outer<T: Element>(sides: &[Side], x: &[T], y: &mut [T]) {
    let (across, along) = (sides[0], sides[sides.len() - 1]);
    let between = &sides[1..sides.len() - 1];
    let target_stride = y.len() / across.size;
    let mut places = vec![0; between.len()];
    for first in (0..target_stride).step_by(along.size) {
        let from: usize = places.iter().zip(between).map(|(at, side)| at * side.step).sum();
        let elements = &x[from..];
        let source = Rows { elements, rows: along.size, columns: across.size, stride: along.step };
        transpose(source, &mut y[first..], target_stride);
        for (place, side) in places.iter_mut().zip(between).rev() {
            *place += 1;
            if *place < side.size {
                break;
            }
            *place = 0;
        }
    }
}
