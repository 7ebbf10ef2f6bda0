//! Normalisation of samples, as the formulas are written.

use super::Reference;
use super::reductions::sum;
use crate::launch::norms::{Affine, Gradients, Normed, Norms, Samples, Statistics};
use crate::real::Real;

impl Norms for Reference {
    fn sample_norm<T: Real>(
        &self,
        norm: Samples<T>,
        parameters: Affine<'_, T>,
        out: Normed<'_, T>,
    ) {
        let Normed { y, mut mean, rstd } = out;
        let x = norm.x;
        for at in 0..rstd.len() {
            let count = T::from_count(norm.positions * norm.size);
            let middle = match &mut mean {
                Some(mean) => {
                    mean[at] = sum(places(&norm, at).map(|(place, _)| x[place])) / count;
                    mean[at]
                }
                None => T::zero(),
            };
            let squares = places(&norm, at).map(|(place, _)| (x[place] - middle).powi(2));
            rstd[at] = T::one() / (sum(squares) / count + norm.epsilon).sqrt();
            for (place, channel) in places(&norm, at) {
                let scaled = (x[place] - middle) * rstd[at] * parameters.scale[channel];
                y[place] = parameters.shift.map_or(scaled, |shift| scaled + shift[channel]);
            }
        }
    }

    /// With x̂ = (x − mean)·rstd and g = dy·scale: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), the first mean taken for
    /// 0 where x's is.
    fn sample_norm_grad<T: Real>(
        &self,
        norm: Samples<T>,
        dy: &[T],
        statistics: Statistics<'_, T>,
        scale: &[T],
        out: Gradients<'_, T>,
    ) {
        let Statistics { mean, rstd } = statistics;
        let Gradients { dx, dscale, mut dshift } = out;
        dscale.fill(T::zero());
        if let Some(dshift) = &mut dshift {
            dshift.fill(T::zero());
        }
        let count = T::from_count(norm.positions * norm.size);
        for at in 0..rstd.len() {
            let middle = mean.map_or(T::zero(), |mean| mean[at]);
            let hat = |place: usize| (norm.x[place] - middle) * rstd[at];
            let g = |(place, channel): (usize, usize)| dy[place] * scale[channel];
            let level = match mean {
                Some(_) => sum(places(&norm, at).map(g)) / count,
                None => T::zero(),
            };
            let along = sum(places(&norm, at).map(|both| g(both) * hat(both.0))) / count;
            for (place, channel) in places(&norm, at) {
                dx[place] = rstd[at] * (g((place, channel)) - level - hat(place) * along);
                dscale[channel] += dy[place] * hat(place);
                if let Some(dshift) = &mut dshift {
                    dshift[channel] += dy[place];
                }
            }
        }
    }
}

/// The places of the elements of statistic `at`, with their channels.
fn places<T>(norm: &Samples<T>, at: usize) -> impl Iterator<Item = (usize, usize)> {
    let (sample, group) = (at / norm.groups, at % norm.groups);
    let (channels, positions, size) = (norm.channels(), norm.positions, norm.size);
    (0..positions).flat_map(move |position| {
        (group * size..(group + 1) * size)
            .map(move |channel| ((sample * positions + position) * channels + channel, channel))
    })
}
