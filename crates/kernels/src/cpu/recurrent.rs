//! The recurrent cells, step by step. The recurrent matrices are packed once a call (`panels.rs`); a step
//! is one piece of work for each panel's hidden units: their products, then the cell (`cells.rs`). The
//! gradient of the matrices is one product over all steps.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use tensorwire_graph::Cell;

use super::cells::{self, GATES_MAX};
use super::panels::{self, Part, ROWS_MAX, Sums, WIDTH_MAX};
use super::scratch::with_scratch;
use super::shared::Sheet;
use super::{Cpu, matmul};
use crate::launch::Product;
use crate::launch::recurrent::{Given, GradGiven, GradMade, Made, Recurrences, Steps};
use crate::real::Real;

/// Most that a cell saves of a hidden unit.
const SAVED_MAX: usize = 5;

/// Least multiplications of a step that are worth threads: some 5 µs of one core.
const PARALLEL_MIN: usize = 1 << 18;

impl Recurrences for Cpu {
    fn recurrent<T: Real>(&self, steps: &Steps, given: Given<'_, T>, made: Made<'_, T>) {
        let (h, gates) = (steps.hidden, steps.cell.gates());
        if h == 0 {
            return;
        }
        let Made { y, finals, saved } = made;
        let width = panels::width::<T>(self.simd);
        let units = h.div_ceil(width);
        let panel = h * width;
        with_scratch(units * gates * panel, |packed: &mut [T]| {
            self.pool.split(packed, panel, h * h >= PARALLEL_MIN, |start, panel_| {
                let (unit, gate) = (start / panel / gates, start / panel % gates);
                panels::pack_rows(given.matrices[gate], h, unit * width, width, panel_);
            });
            let packed = &*packed;
            self.pool.inside(is_large(steps), || {
                let mut start_before = 0;
                for (start, active) in steps.rows() {
                    let (y_before, y) = y.split_at_mut(start * h);
                    let row = steps.cell.saved() * h;
                    let (saved_before, saved) = saved.split_at_mut(start * row);
                    let before = match start {
                        0 => given.first[0],
                        _ => &y_before[start_before * h..],
                    };
                    let step = Forward {
                        cell: steps.cell,
                        h,
                        start,
                        active,
                        given: &given,
                        before,
                        saved_before: &saved_before[start_before * row..],
                        packed,
                        y: Sheet::new(y, h),
                        saved: Sheet::new(saved, row),
                    };
                    let parallel = active * gates * h * h >= PARALLEL_MIN;
                    self.pool.each_index(units, parallel, |unit| {
                        let columns = unit * width..h.min((unit + 1) * width);
                        self.simd.run_with(ForwardPart { step: &step, unit, columns, width });
                    });
                    start_before = start;
                }
            });
        });
        last_states(steps, &given, y, saved, finals);
    }

    fn recurrent_grad<T: Real>(
        &self,
        steps: &Steps,
        given: GradGiven<'_, T>,
        mut made: GradMade<'_, T>,
    ) {
        let (h, cell) = (steps.hidden, steps.cell);
        let gates = cell.gates();
        for (first, dfinal) in made.first.iter_mut().zip(given.dfinals) {
            match dfinal {
                Some(dfinal) => first.copy_from_slice(dfinal),
                None => first.fill(T::zero()),
            }
        }
        if h == 0 {
            return;
        }
        let sequence = steps.total * h;
        // d(Un·h) of a GRU is not d(product n)
        let dun_len = if cell == Cell::Gru { sequence } else { 0 };
        let width = panels::width::<T>(self.simd);
        let units = h.div_ceil(width);
        let panel = h * width;
        let packed_len = units * gates * panel;
        with_scratch(sequence + dun_len + packed_len, |scratch: &mut [T]| {
            let (packed, scratch) = scratch.split_at_mut(packed_len);
            let (before, dun) = scratch.split_at_mut(sequence);
            self.pool.split(packed, panel, h * h >= PARALLEL_MIN, |start, panel_| {
                let (unit, gate) = (start / panel / gates, start / panel % gates);
                panels::pack_columns(given.matrices[gate], h, unit * width, width, panel_);
            });
            states_before(steps, given.first[0], given.y, before);
            let (packed, before) = (&*packed, &*before);
            self.pool.inside(is_large(steps), || {
                self.steps_back(steps, &given, &mut made, packed, before, dun);
            });
            let product =
                Product { m: h, n: h, k: steps.total, transpose_a: true, transpose_b: false };
            for (gate, matrix) in made.matrices.iter_mut().enumerate() {
                let d = match gate {
                    2 if cell == Cell::Gru => &*dun,
                    _ => &*made.products[gate],
                };
                matmul::matmul(&self.pool, self.simd, product, d, before, matrix);
            }
        });
    }
}

impl Cpu {
    /// All steps from the last to the first, and from there to the first states.
    fn steps_back<T: Real>(
        &self,
        steps: &Steps,
        given: &GradGiven<'_, T>,
        made: &mut GradMade<'_, T>,
        packed: &[T],
        before: &[T],
        dun: &mut [T],
    ) {
        let (h, cell) = (steps.hidden, steps.cell);
        let width = panels::width::<T>(self.simd);
        let rows: Vec<(usize, usize)> = steps.rows().collect();
        let mut next = (steps.total, 0);
        // the step before the first has no rows: there is nothing but what reaches the first states
        for at in (0..=rows.len()).rev() {
            let Some(&(start, active)) = at.checked_sub(1).map_or(Some(&(0, 0)), |t| rows.get(t))
            else {
                continue;
            };
            let saved_row = cell.saved() * h;
            let cells_before = match at {
                0 => &[][..],
                1 => given.first.get(1).copied().unwrap_or(&[]),
                _ => &given.saved[rows[at - 2].0 * saved_row..],
            };
            let (next_start, next_active) = next;
            // rows of the next step are read, those of this one written
            let split = if at == 0 { 0 } else { next_start };
            let mut next_products: [&[T]; GATES_MAX] = [&[]; GATES_MAX];
            let mut products = Vec::with_capacity(GATES_MAX);
            for (gate, product) in made.products.iter_mut().enumerate() {
                let (these, behind) = product.split_at_mut(split * h);
                next_products[gate] = &behind[..next_active * h];
                products.push(Sheet::new(these, h));
            }
            let (these, behind) = dun.split_at_mut(if cell == Cell::Gru { split * h } else { 0 });
            if cell == Cell::Gru {
                next_products[2] = &behind[..next_active * h];
            }
            let mut first = made.first.iter_mut();
            let carried = [(); 2].map(|()| first.next().map(|first| Sheet::new(first, h)));
            let step = Backward {
                cell,
                h,
                start,
                active,
                next_active,
                is_first: at == 1,
                given,
                before,
                cells_before,
                packed,
                next_products,
                products,
                dun: Sheet::new(these, h),
                carried,
            };
            let parallel = next_active.max(1) * cell.gates() * h * h >= PARALLEL_MIN;
            self.pool.each_index(h.div_ceil(width), parallel, |unit| {
                let columns = unit * width..h.min((unit + 1) * width);
                self.simd.run_with(BackwardPart { step: &step, unit, columns, width });
            });
            next = (start, active);
        }
    }
}

fn is_large(steps: &Steps) -> bool {
    let most = steps.active.first().copied().unwrap_or(0);
    most * steps.cell.gates() * steps.hidden * steps.hidden >= PARALLEL_MIN
}

/// Copies out each sequence's states behind its last step.
fn last_states<T: Real>(
    steps: &Steps,
    given: &Given<'_, T>,
    y: &[T],
    saved: &[T],
    mut finals: Vec<&mut [T]>,
) {
    let h = steps.hidden;
    for (last, first) in finals.iter_mut().zip(&given.first) {
        last.copy_from_slice(first);
    }
    let width = steps.cell.saved() * h;
    let mut behind = steps.rows().map(|(_, active)| active).skip(1).collect::<Vec<_>>();
    behind.push(0);
    for ((start, active), go_on) in steps.rows().zip(behind) {
        for sequence in go_on..active {
            let row = start + sequence;
            finals[0][sequence * h..][..h].copy_from_slice(&y[row * h..][..h]);
            if let Some(cells) = finals.get_mut(1) {
                // an LSTM's c is the last that it saves
                cells[sequence * h..][..h].copy_from_slice(&saved[(row + 1) * width - h..][..h]);
            }
        }
    }
}

/// before ← h before each row's step.
fn states_before<T: Real>(steps: &Steps, first: &[T], y: &[T], before: &mut [T]) {
    let h = steps.hidden;
    let mut start_before = None;
    for (start, active) in steps.rows() {
        let source = match start_before {
            None => first,
            Some(start) => &y[start * h..],
        };
        before[start * h..][..active * h].copy_from_slice(&source[..active * h]);
        start_before = Some(start);
    }
}

/// One step forwards, rows counted from its own first.
struct Forward<'a, T> {
    cell: Cell,
    h: usize,
    /// First row of the products.
    start: usize,
    active: usize,
    given: &'a Given<'a, T>,
    /// h before, a row for each that is active and perhaps more.
    before: &'a [T],
    /// What the step before saved; nothing before the first.
    saved_before: &'a [T],
    packed: &'a [T],
    y: Sheet<'a, T>,
    saved: Sheet<'a, T>,
}

/// One panel's hidden units of it.
struct ForwardPart<'a, T> {
    step: &'a Forward<'a, T>,
    unit: usize,
    columns: Range<usize>,
    width: usize,
}

impl<T: Real> WithSimd for ForwardPart<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ForwardPart { step, unit, columns, width } = self;
        let Forward { cell, h, start, active, given, before, .. } = *step;
        let (gates, panel) = (cell.gates(), h * width);
        let len = columns.len();
        let mut sums: [Sums<T>; GATES_MAX] = [[[T::zero(); WIDTH_MAX]; ROWS_MAX]; GATES_MAX];
        for first in (0..active).step_by(ROWS_MAX) {
            let rows = ROWS_MAX.min(active - first);
            let x = &before[first * h..][..rows * h];
            for (gate, sums) in sums.iter_mut().take(gates).enumerate() {
                let packed = &step.packed[(unit * gates + gate) * panel..][..panel];
                panels::multiply(simd, rows, &[Part { x, stride: h, panel: packed }], sums);
            }
            let per_row = |r: usize| {
                let row = first + r;
                let at = row * h + columns.start;
                let x = |gate: usize| &given.products[gate][start * h + at..][..len];
                let u = |gate: usize| &sums[gate][r][..len];
                // into arrays of its own, which nothing else can be, so that the loops become vectors
                let mut made = [[T::zero(); WIDTH_MAX]; SAVED_MAX + 1];
                let [m0, m1, m2, m3, m4, y] = made.each_mut().map(|made| &mut made[..len]);
                match cell {
                    Cell::Rnn => cells::rnn(x(0), u(0), y),
                    Cell::Gru => {
                        let before = &before[at..][..len];
                        let (x, u) = ([x(0), x(1), x(2)], [u(0), u(1), u(2)]);
                        cells::gru(x, u, before, [m0, m1, m2, m3], y);
                    }
                    Cell::Lstm => {
                        let before = match start {
                            0 => &given.first[1][at..][..len],
                            _ => &step.saved_before[(row * 5 + 4) * h + columns.start..][..len],
                        };
                        let (x, u) = ([x(0), x(1), x(2), x(3)], [u(0), u(1), u(2), u(3)]);
                        cells::lstm(x, u, before, [m0, m1, m2, m3, m4], y);
                    }
                }
                let [saved @ .., y] = &made;
                for (what, saved) in saved.iter().take(cell.saved()).enumerate() {
                    let columns = what * h + columns.start..what * h + columns.end;
                    // SAFETY: a step's threads each have hidden units of their own, and a thread asks for
                    // one part after the other.
                    unsafe { step.saved.part(row, columns) }.copy_from_slice(&saved[..len]);
                }
                // SAFETY: as above.
                unsafe { step.y.part(row, columns.clone()) }.copy_from_slice(&y[..len]);
            };
            (0..rows).for_each(per_row);
        }
    }
}

/// One step backwards: what reaches h through the next step's products, then the cell.
struct Backward<'a, T> {
    cell: Cell,
    h: usize,
    /// First row.
    start: usize,
    active: usize,
    next_active: usize,
    is_first: bool,
    given: &'a GradGiven<'a, T>,
    /// h before, of all rows.
    before: &'a [T],
    /// c before: what the step before saved, or, of the first step, the first c.
    cells_before: &'a [T],
    packed: &'a [T],
    /// The next step's gradients of the recurrent products.
    next_products: [&'a [T]; GATES_MAX],
    /// Those of the rows up to this step's.
    products: Vec<Sheet<'a, T>>,
    dun: Sheet<'a, T>,
    /// d(h), without what reaches it through products, and d(c), behind this step.
    carried: [Option<Sheet<'a, T>>; 2],
}

/// One panel's hidden units of it.
struct BackwardPart<'a, T> {
    step: &'a Backward<'a, T>,
    unit: usize,
    columns: Range<usize>,
    width: usize,
}

impl<T: Real> WithSimd for BackwardPart<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let BackwardPart { step, unit, columns, width } = self;
        let Backward { cell, h, active, next_active, .. } = *step;
        let (gates, panel) = (cell.gates(), h * width);
        let mut sums: Sums<T> = [[T::zero(); WIDTH_MAX]; ROWS_MAX];
        let Some(carried) = step.carried[0] else { return };
        for first in (0..active.max(next_active)).step_by(ROWS_MAX) {
            let through = ROWS_MAX.min(next_active.saturating_sub(first));
            if through > 0 {
                let nothing = Part { x: &[][..], stride: 0, panel: &[][..] };
                let mut parts = [nothing; GATES_MAX];
                for (gate, part) in parts.iter_mut().take(gates).enumerate() {
                    let packed = &step.packed[(unit * gates + gate) * panel..][..panel];
                    let x = &step.next_products[gate][first * h..][..through * h];
                    *part = Part { x, stride: h, panel: packed };
                }
                panels::multiply(simd, through, &parts[..gates], &mut sums);
            }
            let rows = ROWS_MAX.min(active.max(next_active) - first);
            for (r, sums) in sums.iter().enumerate().take(rows) {
                let row = first + r;
                // SAFETY: a step's threads each have hidden units of their own, and a thread looks at the
                // rows one after the other.
                let dh = unsafe { carried.part(row, columns.clone()) };
                if r < through {
                    for (dh, &sum) in dh.iter_mut().zip(sums) {
                        *dh += sum;
                    }
                }
                if row < active {
                    step.row(row, columns.clone(), dh);
                }
            }
        }
    }
}

impl<T: Real> Backward<'_, T> {
    /// The cell of one sequence, of which `dh` is behind the step and then before it.
    #[inline(always)]
    fn row(&self, row: usize, columns: Range<usize>, carried: &mut [T]) {
        let (h, len) = (self.h, columns.len());
        let at = self.start + row;
        let within = at * h + columns.start;
        let mut dh = [T::zero(); WIDTH_MAX];
        let dh = &mut dh[..len];
        dh.copy_from_slice(carried);
        if let Some(dy) = self.given.dy {
            for (dh, &dy) in dh.iter_mut().zip(&dy[within..][..len]) {
                *dh += dy;
            }
        }
        let before = &self.before[within..][..len];
        let width = self.cell.saved() * h;
        let saved = |what: usize| &self.given.saved[at * width + what * h + columns.start..][..len];
        // into arrays of its own, which nothing else can be, so that the loops become vectors
        let mut made = [[T::zero(); WIDTH_MAX]; GATES_MAX + 2];
        let [d0, d1, d2, d3, dun, state] = made.each_mut().map(|made| &mut made[..len]);
        match self.cell {
            Cell::Rnn => cells::rnn_grad(dh, &self.given.y[within..][..len], d0),
            Cell::Gru => {
                let saved = [saved(0), saved(1), saved(2), saved(3)];
                cells::gru_grad(dh, saved, before, [d0, d1, d2], dun, state);
                // SAFETY: as in `with_simd`: these hidden units are one thread's, which asks for one part
                // after the other.
                unsafe { self.dun.part(at, columns.clone()) }.copy_from_slice(dun);
                carried.copy_from_slice(state);
            }
            Cell::Lstm => {
                let Some(cells) = self.carried[1] else { return };
                // SAFETY: as above.
                let dc = unsafe { cells.part(row, columns.clone()) };
                state.copy_from_slice(dc);
                let before = match self.is_first {
                    true => &self.cells_before[row * h + columns.start..][..len],
                    false => &self.cells_before[(row * 5 + 4) * h + columns.start..][..len],
                };
                let saved = [saved(0), saved(1), saved(2), saved(3), saved(4)];
                cells::lstm_grad(dh, saved, before, [d0, d1, d2, d3], state);
                dc.copy_from_slice(state);
            }
        }
        if self.cell != Cell::Gru {
            carried.fill(T::zero());
        }
        for (product, made) in self.products.iter().zip(&made) {
            // SAFETY: as above.
            unsafe { product.part(at, columns.clone()) }.copy_from_slice(&made[..len]);
        }
    }
}
