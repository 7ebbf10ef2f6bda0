//! Normalisation of samples. What is one row, a layer's, is read once and stays in the L1 cache; sums along it are added
//! in lanes. Groups of channels are summed channel by channel over the positions first, so that vectors lie along the
//! channels however small a group is. Gradients of scale and shift are sums of fixed pieces of the rows, in order.

use pulp::NullaryFnOnce;

use super::Cpu;
use super::pool::CHUNK;
use super::scratch::with_scratch;
use crate::launch::norms::{Affine, Gradients, Normed, Norms, Samples, Statistics};
use crate::real::Real;

/// Sums side by side: two AVX-512 registers of f32.
const LANES: usize = 32;

/// Pieces that gradients of parameters are summed in, at most: each has sums of its own.
const PIECES: usize = 16;

impl Norms for Cpu {
    fn sample_norm<T: Real>(
        &self,
        norm: Samples<T>,
        parameters: Affine<'_, T>,
        out: Normed<'_, T>,
    ) {
        let Normed { y, mean, rstd } = out;
        let samples = CHUNK.div_ceil(norm.len());
        let (len, groups) = (samples * norm.len(), samples * norm.groups);
        let mut means = mean.map(|mean| mean.chunks_mut(groups));
        let pieces = y.chunks_mut(len).zip(rstd.chunks_mut(groups)).enumerate();
        let pieces = pieces.map(|(piece, (y, rstd))| {
            let x = &norm.x[piece * len..][..y.len()];
            let mean = means.as_mut().and_then(Iterator::next);
            Forward { norm: Samples { x, ..norm }, parameters, out: Normed { y, mean, rstd } }
        });
        self.pool.each_of(pieces.collect(), |piece| self.simd.run(piece));
    }

    fn sample_norm_grad<T: Real>(
        &self,
        norm: Samples<T>,
        dy: &[T],
        statistics: Statistics<'_, T>,
        scale: &[T],
        out: Gradients<'_, T>,
    ) {
        let Gradients { dx, dscale, mut dshift } = out;
        let channels = norm.channels();
        let all = dx.len() / norm.len();
        let samples = CHUNK.div_ceil(norm.len()).max(all.div_ceil(PIECES));
        let len = samples * norm.len();
        with_scratch(all.div_ceil(samples) * 2 * channels, |sums: &mut [T]| {
            let parallel = all > samples;
            self.pool.split_pair(dx, sums, [len, 2 * channels], parallel, |piece, dx, sums| {
                let (dscale, dshift) = sums.split_at_mut(channels);
                let here = piece * samples * norm.groups..;
                let statistics = Statistics {
                    mean: statistics.mean.map(|mean| &mean[here.clone()]),
                    rstd: &statistics.rstd[here],
                };
                let (x, dy) = (&norm.x[piece * len..][..dx.len()], &dy[piece * len..][..dx.len()]);
                let norm = Samples { x, ..norm };
                self.simd.run(Backward { norm, dy, statistics, scale, dx, dscale, dshift });
            });
            dscale.fill(T::zero());
            dshift.iter_mut().for_each(|dshift| dshift.fill(T::zero()));
            for part in sums.chunks_exact(2 * channels) {
                add(dscale, &part[..channels]);
                dshift.iter_mut().for_each(|dshift| add(dshift, &part[channels..]));
            }
        });
    }
}

/// Some samples.
struct Forward<'a, T> {
    norm: Samples<'a, T>,
    parameters: Affine<'a, T>,
    out: Normed<'a, T>,
}

impl<T: Real> NullaryFnOnce for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Forward { norm, parameters: Affine { scale, shift }, out } = self;
        let Normed { y, mut mean, rstd } = out;
        if norm.positions != 1 || norm.groups != 1 {
            let (Some(mean), Some(shift)) = (mean, shift) else { return };
            return group_norm(norm, scale, shift, Normed { y, mean: Some(mean), rstd });
        }
        let count = T::from_count(norm.size);
        let rows = norm.x.chunks_exact(norm.size).zip(y.chunks_exact_mut(norm.size));
        for (at, ((x, y), rstd)) in rows.zip(rstd).enumerate() {
            let middle = match &mut mean {
                Some(mean) => {
                    mean[at] = sum(x, |x| x) / count;
                    mean[at]
                }
                None => T::zero(),
            };
            let variance = sum(x, |x| (x - middle) * (x - middle)) / count;
            *rstd = T::one() / (variance + norm.epsilon).sqrt();
            let by = *rstd;
            match shift {
                Some(shift) => {
                    for (((y, &x), &scale), &shift) in y.iter_mut().zip(x).zip(scale).zip(shift) {
                        *y = (x - middle) * by * scale + shift;
                    }
                }
                None => {
                    for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                        *y = x * by * scale;
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn group_norm<T: Real>(norm: Samples<'_, T>, scale: &[T], shift: &[T], out: Normed<'_, T>) {
    let Normed { y, mean, rstd } = out;
    let Some(mean) = mean else { return };
    let channels = norm.channels();
    let share = T::one() / T::from_count(norm.positions * norm.size);
    with_scratch(3 * channels, |scratch: &mut [T]| {
        let (sums, rest) = scratch.split_at_mut(channels);
        let (middles, factors) = rest.split_at_mut(channels);
        let samples = norm.x.chunks_exact(norm.len()).zip(y.chunks_exact_mut(norm.len()));
        let statistics = mean.chunks_exact_mut(norm.groups).zip(rstd.chunks_exact_mut(norm.groups));
        for ((x, y), (mean, rstd)) in samples.zip(statistics) {
            sums.fill(T::zero());
            for x in x.chunks_exact(channels) {
                add(sums, x);
            }
            each_group(sums, norm.size, mean, |sum| sum * share);
            spread(mean, norm.size, middles);
            sums.fill(T::zero());
            for x in x.chunks_exact(channels) {
                for ((sum, &x), &middle) in sums.iter_mut().zip(x).zip(&*middles) {
                    *sum += (x - middle) * (x - middle);
                }
            }
            each_group(sums, norm.size, rstd, |sum| T::one() / (sum * share + norm.epsilon).sqrt());
            spread(rstd, norm.size, factors);
            for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
                for c in 0..channels {
                    y[c] = (x[c] - middles[c]) * factors[c] * scale[c] + shift[c];
                }
            }
        }
    });
}

/// Some samples; sums are of these.
struct Backward<'a, T> {
    norm: Samples<'a, T>,
    dy: &'a [T],
    statistics: Statistics<'a, T>,
    scale: &'a [T],
    dx: &'a mut [T],
    dscale: &'a mut [T],
    dshift: &'a mut [T],
}

impl<T: Real> NullaryFnOnce for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.dscale.fill(T::zero());
        self.dshift.fill(T::zero());
        if self.norm.positions != 1 || self.norm.groups != 1 {
            return group_norm_grad(self);
        }
        let Backward { norm, dy, statistics: Statistics { mean, rstd }, scale, .. } = self;
        let share = T::one() / T::from_count(norm.size);
        let rows = norm.x.chunks_exact(norm.size).zip(dy.chunks_exact(norm.size));
        for (at, ((x, dy), dx)) in rows.zip(self.dx.chunks_exact_mut(norm.size)).enumerate() {
            let (middle, by) = (mean.map_or(T::zero(), |mean| mean[at]), rstd[at]);
            let (level, along) = levels(x, dy, scale, middle, by);
            let level = if mean.is_some() { level * share } else { T::zero() };
            let along = along * share;
            let parameters = self.dscale.iter_mut().zip(&mut *self.dshift).zip(scale);
            for (((dx, &x), &dy), ((dscale, dshift), &scale)) in
                dx.iter_mut().zip(x).zip(dy).zip(parameters)
            {
                let hat = (x - middle) * by;
                *dx = by * (dy * scale - level - hat * along);
                *dscale += dy * hat;
                *dshift += dy;
            }
        }
    }
}

/// Σ g and Σ g·x̂ of a row with g = dy·scale and x̂ = (x − middle)·by, in lanes side by side.
#[inline(always)]
fn levels<T: Real>(x: &[T], dy: &[T], scale: &[T], middle: T, by: T) -> (T, T) {
    let (mut level, mut along) = ([T::zero(); LANES], [T::zero(); LANES]);
    let whole = x.len() / LANES * LANES;
    let rows = x[..whole].chunks_exact(LANES).zip(dy[..whole].chunks_exact(LANES));
    for ((x, dy), scale) in rows.zip(scale[..whole].chunks_exact(LANES)) {
        for lane in 0..LANES {
            let g = dy[lane] * scale[lane];
            level[lane] += g;
            along[lane] += g * ((x[lane] - middle) * by);
        }
    }
    let (mut sums, rest) = ((in_order(&level), in_order(&along)), whole..x.len());
    for i in rest {
        let g = dy[i] * scale[i];
        sums.0 += g;
        sums.1 += g * ((x[i] - middle) * by);
    }
    sums
}

#[inline(always)]
fn group_norm_grad<T: Real>(all: Backward<'_, T>) {
    let Backward { norm, dy, statistics: Statistics { mean, rstd }, scale, dx, dscale, dshift } =
        all;
    let Some(mean) = mean else { return };
    let (channels, len) = (norm.channels(), norm.len());
    let share = T::one() / T::from_count(norm.positions * norm.size);
    with_scratch(6 * channels + 2 * norm.groups, |scratch: &mut [T]| {
        let (vectors, of_groups) = scratch.split_at_mut(6 * channels);
        let mut vectors = vectors.chunks_exact_mut(channels);
        let mut vector = || vectors.next().unwrap_or_default();
        let (middles, factors, sums, alongs) = (vector(), vector(), vector(), vector());
        let (levels, slopes) = (vector(), vector());
        let (level, slope) = of_groups.split_at_mut(norm.groups);
        let samples = norm.x.chunks_exact(len).zip(dy.chunks_exact(len));
        let statistics = mean.chunks_exact(norm.groups).zip(rstd.chunks_exact(norm.groups));
        for (((x, dy), dx), (mean, rstd)) in samples.zip(dx.chunks_exact_mut(len)).zip(statistics) {
            spread(mean, norm.size, middles);
            spread(rstd, norm.size, factors);
            sums.fill(T::zero());
            alongs.fill(T::zero());
            for (x, dy) in x.chunks_exact(channels).zip(dy.chunks_exact(channels)) {
                for c in 0..channels {
                    sums[c] += dy[c];
                    alongs[c] += dy[c] * ((x[c] - middles[c]) * factors[c]);
                }
            }
            add(dshift, sums);
            add(dscale, alongs);
            for c in 0..channels {
                sums[c] *= scale[c];
                alongs[c] *= scale[c];
            }
            each_group(sums, norm.size, level, |sum| sum * share);
            each_group(alongs, norm.size, slope, |sum| sum * share);
            spread(level, norm.size, levels);
            spread(slope, norm.size, slopes);
            let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
            for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(channels)) {
                for c in 0..channels {
                    let hat = (x[c] - middles[c]) * factors[c];
                    dx[c] = factors[c] * (dy[c] * scale[c] - levels[c] - hat * slopes[c]);
                }
            }
        }
    });
}

/// y[g] ← f(the sum of the channels of group g).
#[inline(always)]
fn each_group<T: Real>(channels: &[T], size: usize, y: &mut [T], f: impl Fn(T) -> T) {
    for (y, group) in y.iter_mut().zip(channels.chunks_exact(size)) {
        *y = f(sum(group, |x| x));
    }
}

/// Each group's number for each of its channels.
#[inline(always)]
fn spread<T: Real>(groups: &[T], size: usize, channels: &mut [T]) {
    for (channels, &group) in channels.chunks_exact_mut(size).zip(groups) {
        channels.fill(group);
    }
}

#[inline(always)]
fn add<T: Real>(sums: &mut [T], x: &[T]) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum += x;
    }
}

/// Σ f(x), in lanes side by side and those in order.
#[inline(always)]
fn sum<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::zero(); LANES];
    let mut blocks = x.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += f(x);
        }
    }
    blocks.remainder().iter().fold(in_order(&lanes), |sum, &x| sum + f(x))
}

#[inline(always)]
fn in_order<T: Real>(lanes: &[T; LANES]) -> T {
    lanes.iter().fold(T::zero(), |sum, &lane| sum + lane)
}
