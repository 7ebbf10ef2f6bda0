//! The recurrent cells for some hidden units of one sequence in one step, everything but the products: the
//! formulas of [`tensorwire_graph::Cell`] and their derivatives. Loops that the compiler vectorises.

use crate::real::Real;

/// Most gates of a cell.
pub(super) const GATES_MAX: usize = 4;

/// h ← tanh(x + u).
#[inline(always)]
pub(super) fn rnn<T: Real>(x: &[T], u: &[T], h: &mut [T]) {
    let n = h.len();
    let (x, u) = (&x[..n], &u[..n]);
    for i in 0..n {
        h[i] = (x[i] + u[i]).fast_tanh();
    }
}

/// What is saved, [r, z, n, Un·h], and h, of what was before.
#[inline(always)]
pub(super) fn gru<T: Real>(
    x: [&[T]; 3],
    u: [&[T]; 3],
    before: &[T],
    saved: [&mut [T]; 4],
    h: &mut [T],
) {
    let len = h.len();
    let (x, u, before) = (x.map(|x| &x[..len]), u.map(|u| &u[..len]), &before[..len]);
    let [r, z, n, un] = saved.map(|saved| &mut saved[..len]);
    for i in 0..len {
        r[i] = (x[0][i] + u[0][i]).fast_sigmoid();
        z[i] = (x[1][i] + u[1][i]).fast_sigmoid();
        un[i] = u[2][i];
        n[i] = (x[2][i] + r[i] * u[2][i]).fast_tanh();
        h[i] = (T::one() - z[i]) * n[i] + z[i] * before[i];
    }
}

/// What is saved, [i, f, g, o, c], and h, of c before.
#[inline(always)]
pub(super) fn lstm<T: Real>(
    x: [&[T]; 4],
    u: [&[T]; 4],
    before: &[T],
    saved: [&mut [T]; 5],
    h: &mut [T],
) {
    let len = h.len();
    let (x, u, before) = (x.map(|x| &x[..len]), u.map(|u| &u[..len]), &before[..len]);
    let [i, f, g, o, c] = saved.map(|saved| &mut saved[..len]);
    for at in 0..len {
        i[at] = (x[0][at] + u[0][at]).fast_sigmoid();
        f[at] = (x[1][at] + u[1][at]).fast_sigmoid();
        g[at] = (x[2][at] + u[2][at]).fast_tanh();
        o[at] = (x[3][at] + u[3][at]).fast_sigmoid();
        c[at] = f[at] * before[at] + i[at] * g[at];
        h[at] = o[at] * c[at].fast_tanh();
    }
}

/// d(x) of d(h).
#[inline(always)]
pub(super) fn rnn_grad<T: Real>(dh: &[T], h: &[T], dx: &mut [T]) {
    let n = dx.len();
    let (dh, h) = (&dh[..n], &h[..n]);
    for i in 0..n {
        dx[i] = dh[i] * (T::one() - h[i] * h[i]);
    }
}

/// d(x) of each gate, d(Un·h), and what goes to the h before not through a product, of d(h).
#[inline(always)]
pub(super) fn gru_grad<T: Real>(
    dh: &[T],
    saved: [&[T]; 4],
    before: &[T],
    dx: [&mut [T]; 3],
    dun: &mut [T],
    direct: &mut [T],
) {
    let len = direct.len();
    let (dh, before) = (&dh[..len], &before[..len]);
    let [r, z, n, un] = saved.map(|saved| &saved[..len]);
    let [dr, dz, dn] = dx.map(|dx| &mut dx[..len]);
    let dun = &mut dun[..len];
    let one = T::one();
    for i in 0..len {
        let d = dh[i] * (one - z[i]) * (one - n[i] * n[i]);
        dn[i] = d;
        dun[i] = d * r[i];
        dz[i] = dh[i] * (before[i] - n[i]) * z[i] * (one - z[i]);
        dr[i] = d * un[i] * r[i] * (one - r[i]);
        direct[i] = dh[i] * z[i];
    }
}

/// d(x) of each gate, and d(c) of the c before in the place of this one's, of d(h).
#[inline(always)]
pub(super) fn lstm_grad<T: Real>(
    dh: &[T],
    saved: [&[T]; 5],
    before: &[T],
    dx: [&mut [T]; 4],
    dc: &mut [T],
) {
    let len = dc.len();
    let (dh, before) = (&dh[..len], &before[..len]);
    let [i, f, g, o, c] = saved.map(|saved| &saved[..len]);
    let [di, df, dg, d_o] = dx.map(|dx| &mut dx[..len]);
    let one = T::one();
    for at in 0..len {
        let squashed = c[at].fast_tanh();
        let d = dc[at] + dh[at] * o[at] * (one - squashed * squashed);
        di[at] = d * g[at] * i[at] * (one - i[at]);
        df[at] = d * before[at] * f[at] * (one - f[at]);
        dg[at] = d * i[at] * (one - g[at] * g[at]);
        d_o[at] = dh[at] * squashed * o[at] * (one - o[at]);
        dc[at] = d * f[at];
    }
}
