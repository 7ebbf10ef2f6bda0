//! The matrix product.

use std::ptr;
use std::sync::Arc;

use super::library::arg;
use super::plan::{Plan, Planner};
use super::primitive::{Blueprint, Desc, Engine, Refused};
use crate::launch::Product;

/// (a, b) → y.
pub(super) fn product(engine: &Arc<Engine>, product: &Product) -> Result<Plan, Refused> {
    let Product { m, n, k, transpose_a, transpose_b } = *product;
    let stored = |rows, columns, transposed| {
        let strides = if transposed { [1, rows] } else { [columns, 1] };
        Desc::strided(engine, &[rows, columns], &strides)
    };
    let (a, b, y) = (stored(m, k, transpose_a)?, stored(k, n, transpose_b)?, stored(m, n, false)?);
    let create = engine.library.functions.matmul_primitive_desc_create;
    // SAFETY: `create` is the library's, all descriptors live; there is no bias.
    let blueprint = unsafe {
        Blueprint::new(engine, |place| {
            let attributes = engine.attributes();
            create(place, engine.raw(), a.raw(), b.raw(), ptr::null(), y.raw(), attributes)
        })?
    };
    let mut planner = Planner::default();
    let (a, b, y) = (planner.input(a), planner.input(b), planner.output(y));
    planner.add(&blueprint, &[(arg::SRC, a), (arg::WEIGHTS, b)], &[(arg::DST, y)])?;
    Ok(planner.finish())
}
