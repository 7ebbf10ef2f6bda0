//! Element-wise loops: each output element from the input elements of the same place.

use pulp::NullaryFnOnce;

/// y ← f(x).
pub(super) struct One<'a, T, F> {
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(a, b).
pub(super) struct Two<'a, T, F> {
    pub(super) a: &'a [T],
    pub(super) b: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

/// y ← f(x, row), the row repeated; `x` and `y` are whole rows.
pub(super) struct RowWise<'a, T, F> {
    pub(super) x: &'a [T],
    pub(super) row: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) f: F,
}

impl<T: Copy, F: Fn(T) -> T> NullaryFnOnce for One<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = (self.f)(x);
        }
    }
}

impl<T: Copy, F: Fn(T, T) -> T> NullaryFnOnce for Two<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((y, &a), &b) in self.y.iter_mut().zip(self.a).zip(self.b) {
            *y = (self.f)(a, b);
        }
    }
}

impl<T: Copy, F: Fn(T, T) -> T> NullaryFnOnce for RowWise<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let columns = self.row.len().max(1);
        for (y, x) in self.y.chunks_exact_mut(columns).zip(self.x.chunks_exact(columns)) {
            for ((y, &x), &row) in y.iter_mut().zip(x).zip(self.row) {
                *y = (self.f)(x, row);
            }
        }
    }
}
