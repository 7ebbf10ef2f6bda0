//! From an operator to commands, one file a family. What the operands are was checked before.

mod attention;
mod compression;
mod convolution;
mod custom;
mod element_wise;
mod elements;
mod images;
mod losses;
mod moves;
mod norms;
mod products;
mod recurrent;
mod reductions;
mod rows;
mod updates;

use tensorwire_graph::{Family, Kind};

use crate::builder::Builder;
use crate::error::LowerError;

/// Adds the commands of the builder's operator.
pub(crate) fn operator(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let Kind::Kernel(family) = builder.op.facts().kind else {
        return Err(builder.no_kernel());
    };
    match family {
        Family::ElementWise => element_wise::lower(builder),
        Family::Movement => moves::lower(builder),
        Family::Product => products::lower(builder),
        Family::Reduction => reductions::lower(builder),
        Family::Image => images::lower(builder),
        Family::Norm => norms::lower(builder),
        Family::Attention => attention::lower(builder),
        Family::Recurrence => recurrent::lower(builder),
        Family::Update => updates::lower(builder),
        Family::Compression => compression::lower(builder),
        Family::Custom => custom::lower(builder),
    }
}
