//! Convolutions: images as they are, [n,h,w,c]; weights in the order that the library likes, into which and out
//! of which they are turned at each call.

use std::ptr;
use std::sync::Arc;

use super::library::{DIMS_MAX, Dim, arg, kind};
use super::plan::{Plan, Planner};
use super::primitive::{Blueprint, Desc, Engine, Refused, dims};
use crate::launch::images::Convolution;

/// One convolution's descriptors.
struct Parts {
    engine: Arc<Engine>,
    x: Desc,
    y: Desc,
    /// As the caller has them.
    weights: Desc,
    /// As the library likes them.
    packed: Desc,
    strides: [Dim; DIMS_MAX],
    dilations: [Dim; DIMS_MAX],
    before: [Dim; DIMS_MAX],
    after: [Dim; DIMS_MAX],
}

impl Parts {
    fn new(engine: &Arc<Engine>, shape: &Convolution) -> Result<Parts, Refused> {
        let Convolution { batch, size, channels, windows, outputs, groups, window } = *shape;
        let [kh, kw] = window.kernel;
        let sizes = match groups {
            0 => return Err(Refused::Shape),
            1 => vec![outputs, channels, kh, kw],
            _ => vec![groups, outputs / groups, channels / groups, kh, kw],
        };
        // the library counts the elements that are left out, not the step
        let gaps = window.dilation.map(|d| d.saturating_sub(1));
        Ok(Parts {
            engine: engine.clone(),
            x: Desc::image(engine, batch, channels, size)?,
            y: Desc::image(engine, batch, outputs, windows)?,
            weights: Desc::dense(engine, &sizes)?,
            packed: Desc::any(engine, &sizes)?,
            strides: dims(&window.stride)?,
            dilations: dims(&gaps)?,
            before: dims(&window.before)?,
            after: dims(&window.after)?,
        })
    }

    fn forward(&self) -> Result<Blueprint, Refused> {
        let create = self.engine.library.functions.convolution_forward_primitive_desc_create;
        // SAFETY: `create` is the library's, all descriptors live; there is no bias.
        unsafe {
            Blueprint::new(&self.engine, |place| {
                create(
                    place,
                    self.engine.raw(),
                    kind::FORWARD_TRAINING,
                    kind::CONVOLUTION_DIRECT,
                    self.x.raw(),
                    self.packed.raw(),
                    ptr::null(),
                    self.y.raw(),
                    self.strides.as_ptr(),
                    self.dilations.as_ptr(),
                    self.before.as_ptr(),
                    self.after.as_ptr(),
                    self.engine.attributes(),
                )
            })
        }
    }

    fn backward_data(&self) -> Result<Blueprint, Refused> {
        let forward = self.forward()?;
        let create = self.engine.library.functions.convolution_backward_data_primitive_desc_create;
        // SAFETY: `create` is the library's, all descriptors live.
        unsafe {
            Blueprint::new(&self.engine, |place| {
                create(
                    place,
                    self.engine.raw(),
                    kind::CONVOLUTION_DIRECT,
                    self.x.raw(),
                    self.packed.raw(),
                    self.y.raw(),
                    self.strides.as_ptr(),
                    self.dilations.as_ptr(),
                    self.before.as_ptr(),
                    self.after.as_ptr(),
                    forward.raw(),
                    self.engine.attributes(),
                )
            })
        }
    }

    fn backward_weights(&self) -> Result<Blueprint, Refused> {
        let forward = self.forward()?;
        let functions = &self.engine.library.functions;
        let create = functions.convolution_backward_weights_primitive_desc_create;
        // SAFETY: `create` is the library's, all descriptors live; there is no bias.
        unsafe {
            Blueprint::new(&self.engine, |place| {
                create(
                    place,
                    self.engine.raw(),
                    kind::CONVOLUTION_DIRECT,
                    self.x.raw(),
                    self.packed.raw(),
                    ptr::null(),
                    self.y.raw(),
                    self.strides.as_ptr(),
                    self.dilations.as_ptr(),
                    self.before.as_ptr(),
                    self.after.as_ptr(),
                    forward.raw(),
                    self.engine.attributes(),
                )
            })
        }
    }
}

/// (x, w) → y.
pub(super) fn forward(engine: &Arc<Engine>, shape: &Convolution) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let blueprint = parts.forward()?;
    let Parts { x, y, weights, .. } = parts;
    let mut planner = Planner::default();
    let (x, weights, y) = (planner.input(x), planner.input(weights), planner.output(y));
    planner.add(&blueprint, &[(arg::SRC, x), (arg::WEIGHTS, weights)], &[(arg::DST, y)])?;
    Ok(planner.finish())
}

/// (dy, w) → dx.
pub(super) fn grad_input(engine: &Arc<Engine>, shape: &Convolution) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let blueprint = parts.backward_data()?;
    let Parts { x, y, weights, .. } = parts;
    let mut planner = Planner::default();
    let (dy, weights, dx) = (planner.input(y), planner.input(weights), planner.output(x));
    let inputs = [(arg::DIFF_DST, dy), (arg::WEIGHTS, weights)];
    planner.add(&blueprint, &inputs, &[(arg::DIFF_SRC, dx)])?;
    Ok(planner.finish())
}

/// (dy, x) → dw.
pub(super) fn grad_weight(engine: &Arc<Engine>, shape: &Convolution) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let blueprint = parts.backward_weights()?;
    let Parts { x, y, weights, .. } = parts;
    let mut planner = Planner::default();
    let (dy, x, dw) = (planner.input(y), planner.input(x), planner.output(weights));
    let inputs = [(arg::DIFF_DST, dy), (arg::SRC, x)];
    planner.add(&blueprint, &inputs, &[(arg::DIFF_WEIGHTS, dw)])?;
    Ok(planner.finish())
}
