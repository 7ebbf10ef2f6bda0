//! What PyTorch's operators mean here: a row each. An operator that changes its input in place (`relu_`) means what the one
//! without the underscore does; whoever describes the module has later nodes use the result.

mod attention;
mod drawn;
mod elements;
mod images;
mod integers;
mod losses;
mod moves;
mod norms;
mod products;
mod recurrent;
mod reductions;

use crate::call::Call;
use crate::error::Result;
use crate::order::Tensor;

/// Adds the nodes of a call; its outputs, as many as anybody may use.
pub(crate) type Rule = fn(&mut Call<'_, '_>) -> Result<Vec<Tensor>>;

/// The operators, by name.
#[rustfmt::skip]
static ROWS: &[(&str, Rule)] = &[
    ("aten.relu.default", elements::relu),
    ("aten.sigmoid.default", elements::sigmoid),
    ("aten.tanh.default", elements::tanh),
    ("aten.gelu.default", elements::gelu),
    ("aten.silu.default", elements::silu),
    ("aten.softplus.default", elements::softplus),
    ("aten.mish.default", elements::mish),
    ("aten.hardtanh.default", elements::hardtanh),
    ("aten.relu6.default", elements::relu6),
    ("aten.hardsigmoid.default", elements::hardsigmoid),
    ("aten.hardswish.default", elements::hardswish),
    ("aten.leaky_relu.default", elements::leaky_relu),
    ("aten.exp.default", elements::exp),
    ("aten.log.default", elements::log),
    ("aten.expm1.default", elements::exp_minus_one),
    ("aten.log1p.default", elements::log_of_one_more),
    ("aten.sqrt.default", elements::sqrt),
    ("aten.rsqrt.default", elements::rsqrt),
    ("aten.abs.default", elements::abs),
    ("aten.neg.default", elements::neg),
    ("aten.reciprocal.default", elements::reciprocal),
    ("aten.square.default", elements::square),
    ("aten.sin.default", elements::sin),
    ("aten.cos.default", elements::cos),
    ("aten.pow.Tensor_Scalar", elements::pow),
    ("aten.clamp.default", elements::clamp),
    ("aten.clamp_min.default", elements::clamp),
    ("aten.clamp_max.default", elements::clamp),
    ("aten.add.Tensor", elements::add),
    ("aten.add.Scalar", elements::add),
    ("aten.sub.Tensor", elements::sub),
    ("aten.sub.Scalar", elements::sub),
    ("aten.rsub.Scalar", elements::rsub),
    ("aten.rsub.Tensor", elements::rsub),
    ("aten.mul.Tensor", elements::mul),
    ("aten.mul.Scalar", elements::mul),
    ("aten.div.Tensor", elements::div),
    ("aten.div.Scalar", elements::div),
    ("aten.div.Tensor_mode", integers::div_rounded),
    ("aten.floor_divide.default", integers::floor_divide),
    ("aten.remainder.Tensor", integers::remainder),
    ("aten.remainder.Scalar", integers::remainder),
    ("aten.cumsum.default", integers::cumulate),
    ("aten.argmax.default", integers::largest),
    ("aten.maximum.default", elements::maximum),
    ("aten.clamp_min.Tensor", elements::at_least),
    ("aten.minimum.default", elements::minimum),
    ("aten.eq.Tensor", elements::equal),
    ("aten.eq.Scalar", elements::equal),
    ("aten.ne.Tensor", elements::not_equal),
    ("aten.ne.Scalar", elements::not_equal),
    ("aten.lt.Tensor", elements::less),
    ("aten.lt.Scalar", elements::less),
    ("aten.le.Tensor", elements::less_equal),
    ("aten.le.Scalar", elements::less_equal),
    ("aten.gt.Tensor", elements::greater),
    ("aten.gt.Scalar", elements::greater),
    ("aten.ge.Tensor", elements::greater_equal),
    ("aten.ge.Scalar", elements::greater_equal),
    ("aten.logical_not.default", elements::not),
    ("aten.bitwise_not.default", elements::not),
    ("aten.logical_and.default", elements::and),
    ("aten.bitwise_and.Tensor", elements::and),
    ("aten.__and__.Tensor", elements::and),
    ("aten.logical_or.default", elements::or),
    ("aten.bitwise_or.Tensor", elements::or),
    ("aten.__or__.Tensor", elements::or),
    ("aten.where.self", elements::select),
    ("aten.where.ScalarSelf", elements::select),
    ("aten.where.ScalarOther", elements::select),
    ("aten.masked_fill.Scalar", elements::masked_fill),
    ("aten.masked_fill.Tensor", elements::masked_fill),
    ("aten.dropout.default", drawn::dropout),
    ("aten.feature_dropout.default", drawn::feature_dropout),
    ("aten.alpha_dropout.default", drawn::alpha_dropout),
    ("aten.feature_alpha_dropout.default", drawn::alpha_dropout),
    ("aten.bernoulli.default", drawn::bernoulli),
    ("aten.bernoulli.p", drawn::bernoulli),
    ("aten.bernoulli.float", drawn::bernoulli),
    ("aten.rand.default", drawn::uniform),
    ("aten.rand_like.default", drawn::uniform),
    ("aten.uniform.default", drawn::uniform),
    ("aten.randn.default", drawn::normal),
    ("aten.randn_like.default", drawn::normal),
    ("aten.normal.default", drawn::normal),
    ("aten.normal.float_float", drawn::normal),
    ("aten.to.dtype", elements::cast),
    ("aten.to.dtype_layout", elements::cast),
    ("aten.to.device", elements::cast),
    ("aten.type_as.default", elements::cast),
    ("aten._to_copy.default", elements::cast),
    ("aten.contiguous.default", elements::same),
    ("aten.clone.default", elements::same),
    ("aten.alias.default", elements::same),
    ("aten.lift_fresh_copy.default", elements::same),
    ("aten.detach.default", elements::detach),
    ("aten.copy.default", moves::copy),
    ("aten.fill.Scalar", moves::fill),
    ("aten.fill.Tensor", moves::fill),
    ("aten.zero.default", moves::fill),

    ("aten.linear.default", products::linear),
    ("aten.addmm.default", products::addmm),
    ("aten.baddbmm.default", products::addmm),
    ("aten.mm.default", products::matmul),
    ("aten.bmm.default", products::matmul),
    ("aten.matmul.default", products::matmul),
    ("aten.embedding.default", products::embedding),

    ("aten.conv1d.default", images::conv1d),
    ("aten.conv2d.default", images::conv2d),
    ("aten.conv2d.padding", images::conv2d),
    ("aten.conv_transpose1d.default", images::conv_transpose1d),
    ("aten.conv_transpose2d.input", images::conv_transpose2d),
    ("aten.upsample_nearest2d.vec", images::nearest),
    ("aten.max_pool2d.default", images::max_pool),
    ("aten.max_pool2d_with_indices.default", images::max_pool),
    ("aten.avg_pool2d.default", images::avg_pool),
    ("aten.adaptive_avg_pool2d.default", images::adaptive_avg_pool),
    ("aten.batch_norm.default", norms::batch_norm),
    ("aten.layer_norm.default", norms::layer_norm),
    ("aten.rms_norm.default", norms::rms_norm),
    ("aten.group_norm.default", norms::group_norm),
    ("aten.instance_norm.default", norms::instance_norm),

    ("aten.scaled_dot_product_attention.default", attention::attention),
    ("aten.lstm.input", recurrent::lstm),
    ("aten.rnn_tanh.input", recurrent::rnn),
    ("aten.gru.input", recurrent::gru),

    ("aten.view.default", moves::reshape),
    ("aten._unsafe_view.default", moves::reshape),
    ("aten.reshape.default", moves::reshape),
    ("aten.flatten.using_ints", moves::reshape),
    ("aten.unflatten.int", moves::reshape),
    ("aten.unsqueeze.default", moves::unsqueeze),
    ("aten.squeeze.default", moves::squeeze),
    ("aten.squeeze.dim", moves::squeeze),
    ("aten.squeeze.dims", moves::squeeze),
    ("aten.permute.default", moves::permute),
    ("aten.transpose.int", moves::transpose),
    ("aten.t.default", moves::matrix_transpose),
    ("aten.mT.default", moves::matrix_transpose),
    ("aten.movedim.int", moves::move_dimension),
    ("aten.expand.default", moves::expand),
    ("aten.expand_as.default", moves::expand),
    ("aten.broadcast_tensors.default", moves::broadcast),
    ("aten.repeat.default", moves::repeat),
    ("aten.cat.default", moves::cat),
    ("aten.stack.default", moves::stack),
    ("aten.slice.Tensor", moves::slice),
    ("aten.slice_scatter.default", moves::slice_scatter),
    ("aten.select_scatter.default", moves::select_scatter),
    ("aten.narrow.default", moves::narrow),
    ("aten.select.int", moves::select),
    ("aten.index.Tensor", products::index),
    ("aten.roll.default", moves::roll),
    ("aten.flip.default", moves::flip),
    ("aten.split.Tensor", moves::split),
    ("aten.split_with_sizes.default", moves::split),
    ("aten.split.sizes", moves::split),
    ("aten.chunk.default", moves::split),
    ("aten.unbind.int", moves::unbind),
    ("aten.pad.default", moves::pad),
    ("aten.constant_pad_nd.default", moves::pad),

    ("aten.mean.default", reductions::mean),
    ("aten.mean.dim", reductions::mean),
    ("aten.sum.default", reductions::sum),
    ("aten.sum.dim_IntList", reductions::sum),
    ("aten.amax.default", reductions::max),
    ("aten.var.default", reductions::variance),
    ("aten.var.dim", reductions::variance),
    ("aten.var.correction", reductions::variance),
    ("aten.linalg_vector_norm.default", reductions::norm),
    ("aten.softmax.int", reductions::softmax),
    ("aten.log_softmax.int", reductions::log_softmax),
    ("aten.logsumexp.default", reductions::log_sum_exp),

    ("aten.cross_entropy_loss.default", losses::cross_entropy),
    ("aten.nll_loss_nd.default", losses::nll),
    ("aten.mse_loss.default", losses::squared_error),
    ("aten.l1_loss.default", losses::absolute_error),
    ("aten.binary_cross_entropy_with_logits.default", losses::binary_with_logits),
];

/// What to write instead of operators that are not known, by their names without overload.
static INSTEAD: &[(&str, &str)] = &[
    ("sort", SORTED),
    ("argsort", SORTED),
    ("topk", "take the largest 16 at most, of numbers, or amax"),
    ("scatter_add", ADDED),
    ("scatter_reduce", ADDED),
    ("index_add", ADDED),
    (
        "index_put",
        "choose by where, with a mask of the tensor's shape; add by a product with one_hot",
    ),
    ("rnn_relu", "take tanh, or an LSTM or GRU"),
    ("grid_sampler", "take interpolate, or have the data hold images that are turned"),
];
const SORTED: &str = "take the largest by topk or amax, or have the data hold what is sorted";
const ADDED: &str =
    "multiply by a matrix of what is added where: one_hot of the places, or the adjacency matrix";
const ANY: &str = "write the module with others (tensorwire.torch.operators() names them), or keep this part out of what is trained";

/// What to write instead of an operator that is not known.
pub(crate) fn instead(operator: &str) -> &'static str {
    let name = operator.split('.').nth(1).unwrap_or_default().trim_end_matches('_');
    INSTEAD.iter().find(|(known, _)| *known == name).map_or(ANY, |(_, said)| said)
}

/// The names of all operators that are known.
pub fn known() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, _)| *name)
}

/// The row of an operator, or of what it does in place.
pub(crate) fn rule(operator: &str) -> Option<Rule> {
    let row = |wanted: &str| ROWS.iter().find(|(name, _)| *name == wanted).map(|(_, rule)| *rule);
    row(operator).or_else(|| row(&operator.replacen("_.", ".", 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operator_has_two_rows() {
        let mut names: Vec<&str> = known().collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn what_works_in_place_means_the_same() {
        assert_eq!(
            rule("aten.relu_.default").map(|f| f as usize),
            rule("aten.relu.default").map(|f| f as usize)
        );
        assert!(rule("aten.__and__.Tensor").is_some());
        assert!(rule("aten.fft_fft.default").is_none());
    }
}
