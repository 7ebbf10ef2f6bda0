//! Pooling of [n,h,w,c]. The gradient of a maximum is not here: the library trusts the places, which are a
//! tensor like any and may say anything.

use std::sync::Arc;

use super::library::{DIMS_MAX, Dim, F32, U8, arg, kind};
use super::plan::{Plan, Planner};
use super::primitive::{Blueprint, Desc, Engine, Refused, dims};
use crate::launch::images::Pooling;

/// Places are bytes, and one of 256 is the library's "none".
const WINDOW_MAX: usize = 255;

/// One pooling's descriptors.
struct Parts {
    engine: Arc<Engine>,
    x: Desc,
    y: Desc,
    strides: [Dim; DIMS_MAX],
    kernel: [Dim; DIMS_MAX],
    dilations: [Dim; DIMS_MAX],
    before: [Dim; DIMS_MAX],
    after: [Dim; DIMS_MAX],
}

impl Parts {
    fn new(engine: &Arc<Engine>, shape: &Pooling) -> Result<Parts, Refused> {
        let Pooling { batch, size, channels, windows, window } = *shape;
        // the library counts the elements that are left out, not the step
        let gaps = window.dilation.map(|d| d.saturating_sub(1));
        Ok(Parts {
            engine: engine.clone(),
            x: Desc::image(engine, F32, batch, channels, size)?,
            y: Desc::image(engine, F32, batch, channels, windows)?,
            strides: dims(&window.stride)?,
            kernel: dims(&window.kernel)?,
            dilations: dims(&gaps)?,
            before: dims(&window.before)?,
            after: dims(&window.after)?,
        })
    }

    fn forward(&self, algorithm: i32) -> Result<Blueprint, Refused> {
        let create = self.engine.library.functions.pooling_forward_primitive_desc_create;
        // SAFETY: `create` is the library's, all descriptors live.
        unsafe {
            Blueprint::new(&self.engine, |place| {
                create(
                    place,
                    self.engine.raw(),
                    kind::FORWARD_TRAINING,
                    algorithm,
                    self.x.raw(),
                    self.y.raw(),
                    self.strides.as_ptr(),
                    self.kernel.as_ptr(),
                    self.dilations.as_ptr(),
                    self.before.as_ptr(),
                    self.after.as_ptr(),
                    self.engine.attributes(),
                )
            })
        }
    }

    fn backward(&self, algorithm: i32) -> Result<Blueprint, Refused> {
        let forward = self.forward(algorithm)?;
        let create = self.engine.library.functions.pooling_backward_primitive_desc_create;
        // SAFETY: `create` is the library's, all descriptors live.
        unsafe {
            Blueprint::new(&self.engine, |place| {
                create(
                    place,
                    self.engine.raw(),
                    algorithm,
                    self.x.raw(),
                    self.y.raw(),
                    self.strides.as_ptr(),
                    self.kernel.as_ptr(),
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

/// (x) → y, places.
pub(super) fn max(engine: &Arc<Engine>, shape: &Pooling) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let [kh, kw] = shape.window.kernel;
    if kh * kw >= WINDOW_MAX {
        return Err(Refused::Shape);
    }
    let blueprint = parts.forward(kind::POOLING_MAX)?;
    // the library's own notes for its gradient: ours only if they are bytes in the order of the output
    let places = Desc::image(engine, U8, shape.batch, shape.channels, shape.windows)?;
    let is_ours = |workspace: Desc| workspace.is_same(&places);
    if !blueprint.argument(arg::WORKSPACE).is_some_and(is_ours) {
        return Err(Refused::Shape);
    }
    let mut planner = Planner::default();
    let (x, y, places) = (planner.input(parts.x), planner.output(parts.y), planner.output(places));
    planner.add(&blueprint, &[(arg::SRC, x)], &[(arg::DST, y), (arg::WORKSPACE, places)])?;
    Ok(planner.finish())
}

/// (x) → y, padding not counted.
pub(super) fn average(engine: &Arc<Engine>, shape: &Pooling) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let blueprint = parts.forward(kind::POOLING_AVG_EXCLUDE_PADDING)?;
    let mut planner = Planner::default();
    let (x, y) = (planner.input(parts.x), planner.output(parts.y));
    planner.add(&blueprint, &[(arg::SRC, x)], &[(arg::DST, y)])?;
    Ok(planner.finish())
}

/// (dy) → dx.
pub(super) fn average_grad(engine: &Arc<Engine>, shape: &Pooling) -> Result<Plan, Refused> {
    let parts = Parts::new(engine, shape)?;
    let blueprint = parts.backward(kind::POOLING_AVG_EXCLUDE_PADDING)?;
    let mut planner = Planner::default();
    let (dy, dx) = (planner.input(parts.y), planner.output(parts.x));
    planner.add(&blueprint, &[(arg::DIFF_DST, dy)], &[(arg::DIFF_SRC, dx)])?;
    Ok(planner.finish())
}
