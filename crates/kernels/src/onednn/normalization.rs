//! Normalisations over rows of channels.

use std::sync::Arc;

use super::library::{Dim, arg, kind};
use super::plan::{Plan, Planner};
use super::primitive::{Blueprint, Desc, Engine, Refused};
use crate::launch::images::ResponseNorm;

/// Rows of channels as an image, for which the library's fast code is made.
fn rows_of(engine: &Arc<Engine>, rows: usize, channels: usize) -> Result<Desc, Refused> {
    Desc::image(engine, 1, channels, [rows, 1])
}

fn batch_forward(
    x: &Desc,
    engine: &Arc<Engine>,
    epsilon: f32,
    scaled: bool,
) -> Result<Blueprint, Refused> {
    let create = engine.library.functions.batch_normalization_forward_primitive_desc_create;
    // SAFETY: `create` is the library's, all descriptors live.
    unsafe {
        Blueprint::new(engine, |place| {
            create(
                place,
                engine.raw(),
                kind::FORWARD_TRAINING,
                x.raw(),
                x.raw(),
                epsilon,
                flags(scaled),
                engine.attributes(),
            )
        })
    }
}

fn flags(scaled: bool) -> u32 {
    if scaled { kind::USE_SCALE | kind::USE_SHIFT } else { kind::USE_SHIFT }
}

/// (x, [scale,] shift) → y, mean, variance.
pub(super) fn batch(
    engine: &Arc<Engine>,
    [rows, channels]: [usize; 2],
    epsilon: f32,
    scaled: bool,
) -> Result<Plan, Refused> {
    let x = rows_of(engine, rows, channels)?;
    let blueprint = batch_forward(&x, engine, epsilon, scaled)?;
    let channel = || Desc::dense(engine, &[channels]);
    let mut planner = Planner::default();
    let mut inputs = vec![(arg::SRC, planner.input(x))];
    if scaled {
        inputs.push((arg::SCALE, planner.input(channel()?)));
    }
    inputs.push((arg::SHIFT, planner.input(channel()?)));
    let y = planner.output(rows_of(engine, rows, channels)?);
    let (mean, variance) = (planner.output(channel()?), planner.output(channel()?));
    let outputs = [(arg::DST, y), (arg::MEAN, mean), (arg::VARIANCE, variance)];
    planner.add(&blueprint, &inputs, &outputs)?;
    Ok(planner.finish())
}

/// (dy, x, mean, variance, [scale]) → (dx, [dscale,] dshift).
pub(super) fn batch_grad(
    engine: &Arc<Engine>,
    [rows, channels]: [usize; 2],
    epsilon: f32,
    scaled: bool,
) -> Result<Plan, Refused> {
    let x = rows_of(engine, rows, channels)?;
    let forward = batch_forward(&x, engine, epsilon, scaled)?;
    let create = engine.library.functions.batch_normalization_backward_primitive_desc_create;
    // SAFETY: `create` is the library's, all descriptors live.
    let blueprint = unsafe {
        Blueprint::new(engine, |place| {
            create(
                place,
                engine.raw(),
                kind::BACKWARD,
                x.raw(),
                x.raw(),
                x.raw(),
                epsilon,
                flags(scaled),
                forward.raw(),
                engine.attributes(),
            )
        })?
    };
    let channel = || Desc::dense(engine, &[channels]);
    let image = || rows_of(engine, rows, channels);
    let mut planner = Planner::default();
    let mut inputs = vec![
        (arg::DIFF_DST, planner.input(image()?)),
        (arg::SRC, planner.input(x)),
        (arg::MEAN, planner.input(channel()?)),
        (arg::VARIANCE, planner.input(channel()?)),
    ];
    if scaled {
        inputs.push((arg::SCALE, planner.input(channel()?)));
    }
    let mut outputs = vec![(arg::DIFF_SRC, planner.output(image()?))];
    if scaled {
        outputs.push((arg::DIFF_SCALE, planner.output(channel()?)));
    }
    outputs.push((arg::DIFF_SHIFT, planner.output(channel()?)));
    planner.add(&blueprint, &inputs, &outputs)?;
    Ok(planner.finish())
}

/// What the library calls a response's numbers: its alpha is over the size.
fn response_numbers(norm: &ResponseNorm<f32>) -> Result<(Dim, f32), Refused> {
    let size = Dim::try_from(norm.size).map_err(|_| Refused::Shape)?;
    Ok((size, norm.alpha * norm.size as f32))
}

fn response_forward(
    x: &Desc,
    engine: &Arc<Engine>,
    propagation: i32,
    norm: &ResponseNorm<f32>,
) -> Result<Blueprint, Refused> {
    let (size, alpha) = response_numbers(norm)?;
    let create = engine.library.functions.lrn_forward_primitive_desc_create;
    // SAFETY: `create` is the library's, all descriptors live.
    unsafe {
        Blueprint::new(engine, |place| {
            create(
                place,
                engine.raw(),
                propagation,
                kind::LRN_ACROSS_CHANNELS,
                x.raw(),
                x.raw(),
                size,
                alpha,
                norm.beta,
                norm.bias,
                engine.attributes(),
            )
        })
    }
}

/// (x) → y.
pub(super) fn response(
    engine: &Arc<Engine>,
    rows: usize,
    norm: &ResponseNorm<f32>,
) -> Result<Plan, Refused> {
    let x = rows_of(engine, rows, norm.channels)?;
    let blueprint = response_forward(&x, engine, kind::FORWARD_INFERENCE, norm)?;
    let mut planner = Planner::default();
    let (x, y) = (planner.input(x), planner.output(rows_of(engine, rows, norm.channels)?));
    planner.add(&blueprint, &[(arg::SRC, x)], &[(arg::DST, y)])?;
    Ok(planner.finish())
}

/// (dy, x) → dx. What the library keeps of the forward pass for this, our operator does not keep: it is
/// computed again.
pub(super) fn response_grad(
    engine: &Arc<Engine>,
    rows: usize,
    norm: &ResponseNorm<f32>,
) -> Result<Plan, Refused> {
    let image = || rows_of(engine, rows, norm.channels);
    let x = image()?;
    let forward = response_forward(&x, engine, kind::FORWARD_TRAINING, norm)?;
    let (size, alpha) = response_numbers(norm)?;
    let create = engine.library.functions.lrn_backward_primitive_desc_create;
    // SAFETY: `create` is the library's, all descriptors live.
    let blueprint = unsafe {
        Blueprint::new(engine, |place| {
            create(
                place,
                engine.raw(),
                kind::LRN_ACROSS_CHANNELS,
                x.raw(),
                x.raw(),
                x.raw(),
                size,
                alpha,
                norm.beta,
                norm.bias,
                forward.raw(),
                engine.attributes(),
            )
        })?
    };
    let mut planner = Planner::default();
    let (dy, x) = (planner.input(image()?), planner.input(x));
    let dx = planner.output(image()?);
    let mut inputs = vec![(arg::DIFF_DST, dy), (arg::SRC, x)];
    if let Some(workspace) = forward.argument(arg::WORKSPACE) {
        let (y, workspace) = (planner.between(image()?), planner.between(workspace));
        planner.add(&forward, &[(arg::SRC, x)], &[(arg::DST, y), (arg::WORKSPACE, workspace)])?;
        inputs.push((arg::WORKSPACE, workspace));
    }
    planner.add(&blueprint, &inputs, &[(arg::DIFF_SRC, dx)])?;
    Ok(planner.finish())
}
