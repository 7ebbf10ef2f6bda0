//! Element-wise loops: each output element from the input elements of the same place.

use pulp::NullaryFnOnce;

use crate::launch::Source;

/// y ← f(x).
pub(super) struct One<'a, T, F> {
    pub(super) x: Source<'a, T>,
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(a, b).
pub(super) struct Two<'a, T, F> {
    pub(super) a: Source<'a, T>,
    pub(super) b: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(x, others).
pub(super) struct Many<'a, T, F, const N: usize> {
    pub(super) x: Source<'a, T>,
    pub(super) others: [&'a [T]; N],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y[i] ← f(start + i, x[i]).
pub(super) struct Numbered<'a, T, F> {
    pub(super) x: Source<'a, T>,
    pub(super) start: usize,
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(x, other, condition); without another its place takes x.
pub(super) struct Chosen<'a, T, F> {
    pub(super) x: Source<'a, T>,
    pub(super) other: &'a [T],
    pub(super) condition: &'a [u8],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(x) of another type.
pub(super) struct Cast<'a, S, D, F> {
    pub(super) x: &'a [S],
    pub(super) y: &'a mut [D],
    pub(super) f: F,
}

/// y ← f(x, row), the row repeated; `x` and `y` are whole rows.
pub(super) struct RowWise<'a, T, F> {
    pub(super) x: Source<'a, T>,
    pub(super) row: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

impl<T: Copy, F: Fn(T) -> T> NullaryFnOnce for One<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.x {
            Source::Apart(x) => {
                for (y, &x) in self.y.iter_mut().zip(x) {
                    *y = (self.f)(x);
                }
            }
            Source::InPlace => {
                for y in self.y {
                    *y = (self.f)(*y);
                }
            }
        }
    }
}

impl<T: Copy, F: Fn(T, T) -> T> NullaryFnOnce for Two<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        two(self.a, self.b, self.y, &self.f);
    }
}

impl<T: Copy, F: Fn(T, [T; N]) -> T, const N: usize> NullaryFnOnce for Many<'_, T, F, N> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let len = self.y.len();
        let others = self.others.map(|other| &other[..len]);
        match self.x {
            Source::Apart(x) => {
                let x = &x[..len];
                for (i, y) in self.y.iter_mut().enumerate() {
                    *y = (self.f)(x[i], others.map(|other| other[i]));
                }
            }
            Source::InPlace => {
                for (i, y) in self.y.iter_mut().enumerate() {
                    *y = (self.f)(*y, others.map(|other| other[i]));
                }
            }
        }
    }
}

impl<T: Copy, F: Fn(usize, T) -> T> NullaryFnOnce for Numbered<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.x {
            Source::Apart(x) => {
                for (i, (y, &x)) in self.y.iter_mut().zip(x).enumerate() {
                    *y = (self.f)(self.start + i, x);
                }
            }
            Source::InPlace => {
                for (i, y) in self.y.iter_mut().enumerate() {
                    *y = (self.f)(self.start + i, *y);
                }
            }
        }
    }
}

impl<T: Copy, F: Fn(T, T, u8) -> T> NullaryFnOnce for Chosen<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let len = self.y.len();
        let condition = &self.condition[..len];
        // three loops would be nine: what is read twice costs nothing beside the memory
        for (i, y) in self.y.iter_mut().enumerate() {
            let x = match self.x {
                Source::Apart(x) => x[i],
                Source::InPlace => *y,
            };
            let other = self.other.get(i).copied().unwrap_or(x);
            *y = (self.f)(x, other, condition[i]);
        }
    }
}

impl<S: Copy, D, F: Fn(S) -> D> NullaryFnOnce for Cast<'_, S, D, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(x);
        }
    }
}

impl<T: Copy, F: Fn(T, T) -> T> NullaryFnOnce for RowWise<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let columns = self.row.len().max(1);
        let rows = self.y.chunks_exact_mut(columns);
        match self.x {
            Source::Apart(x) => {
                for (y, x) in rows.zip(x.chunks_exact(columns)) {
                    two(Source::Apart(x), self.row, y, &self.f);
                }
            }
            Source::InPlace => {
                for y in rows {
                    two(Source::InPlace, self.row, y, &self.f);
                }
            }
        }
    }
}

#[inline(always)]
fn two<T: Copy>(a: Source<'_, T>, b: &[T], y: &mut [T], f: impl Fn(T, T) -> T) {
    match a {
        Source::Apart(a) => {
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = f(a, b);
            }
        }
        Source::InPlace => {
            for (y, &b) in y.iter_mut().zip(b) {
                *y = f(*y, b);
            }
        }
    }
}

impl<'a, T> Source<'a, T> {
    /// The source of `len` output elements from `start` on.
    #[inline(always)]
    pub(super) fn part(self, start: usize, len: usize) -> Source<'a, T> {
        match self {
            Source::Apart(x) => Source::Apart(&x[start..][..len]),
            Source::InPlace => Source::InPlace,
        }
    }
}
