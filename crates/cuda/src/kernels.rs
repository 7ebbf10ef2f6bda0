//! The kernels by name, and the PTX in which they are.

use std::io::Read;

use flate2::read::GzDecoder;
use tensorwire_tensor::DType;

/// Kernels that a driver loads together: one file of `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct PtxModule {
    /// Of its file.
    pub name: &'static str,
    packed: &'static [u8],
    groups: &'static [&'static [&'static str]],
}

impl PtxModule {
    /// The text, for compute capability 8.0 and later. It is packed in the program, a fifth as large, and unpacked here.
    ///
    /// # Panics
    /// Never: what is unpacked is in the program.
    pub fn ptx(&self) -> String {
        let mut text = String::new();
        let unpacked = GzDecoder::new(self.packed).read_to_string(&mut text);
        unpacked.expect("cargo xtask ptx has packed it");
        text
    }

    /// The kernels in it, by name.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.groups.iter().copied().flatten().copied()
    }
}

/// All kernels, module by module.
pub fn modules() -> &'static [PtxModule] {
    MODULES
}

/// The names of all kernels, each of which is in one module.
pub fn kernel_names() -> impl Iterator<Item = &'static str> {
    MODULES.iter().flat_map(PtxModule::kernels)
}

/// One kernel for each floating type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floats([&'static str; 3]);

/// One kernel for what is computed in f32, which may be kept as bf16, and one for f64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reals([&'static str; 2]);

/// Kernels of tiles, and one of wide tiles, of f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub(crate) reals: Reals,
    pub(crate) wide: &'static str,
}

/// One kernel for elements of 1, 2, 4 and 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths([&'static str; 4]);

impl Floats {
    /// The kernel of a type, if it is a floating one.
    pub(crate) fn of(self, dtype: DType) -> Option<&'static str> {
        let [f32, f64, bf16] = self.0;
        match dtype {
            DType::F32 => Some(f32),
            DType::F64 => Some(f64),
            DType::BF16 => Some(bf16),
            DType::I32 | DType::I64 | DType::U8 => None,
        }
    }
}

impl Reals {
    /// The kernel of a type, if it is a floating one.
    pub(crate) fn of(self, dtype: DType) -> Option<&'static str> {
        let [f32, f64] = self.0;
        match dtype {
            DType::F32 | DType::BF16 => Some(f32),
            DType::F64 => Some(f64),
            DType::I32 | DType::I64 | DType::U8 => None,
        }
    }
}

impl Widths {
    /// The kernel of a type's width.
    pub(crate) fn of(self, dtype: DType) -> &'static str {
        let [one, two, four, eight] = self.0;
        match dtype.bytes() {
            1 => one,
            2 => two,
            4 => four,
            _ => eight,
        }
    }
}

macro_rules! floats {
    ($name:literal) => {
        Floats([concat!($name, "_f32"), concat!($name, "_f64"), concat!($name, "_bf16")])
    };
}

macro_rules! reals {
    ($name:expr) => {
        Reals([concat!($name, "_f32"), concat!($name, "_f64")])
    };
}

macro_rules! tiles {
    ($name:literal) => {
        Tiles { reals: reals!($name), wide: concat!($name, "_wide_f32") }
    };
}

/// One for each recurrent cell.
macro_rules! cells {
    ($name:literal) => {
        [
            reals!(concat!($name, "_rnn")),
            reals!(concat!($name, "_gru")),
            reals!(concat!($name, "_lstm")),
        ]
    };
}

macro_rules! widths {
    ($name:literal) => {
        Widths([
            concat!($name, "_1"),
            concat!($name, "_2"),
            concat!($name, "_4"),
            concat!($name, "_8"),
        ])
    };
}

/// A module with its PTX.
macro_rules! module {
    ($name:literal, $($group:expr),+ $(,)?) => {
        PtxModule {
            name: $name,
            packed: include_bytes!(concat!("../ptx/", $name, ".ptx.gz")),
            groups: &[$($group),+],
        }
    };
}

pub(crate) const MAP_ONE: Floats = floats!("map_one");
pub(crate) const MAP_TWO: Floats = floats!("map_two");
pub(crate) const BIAS_ADD: Floats = floats!("bias_add");
pub(crate) const SCALE_BY: Floats = floats!("scale_by");
pub(crate) const DROPOUT: Floats = floats!("dropout");
pub(crate) const FOLD: Reals = reals!("fold");
pub(crate) const FILL: Widths = widths!("fill");
/// There is none of one byte: nothing that is computed has one.
pub(crate) const SELECT: Widths = widths!("select");
const SELECTS: &[&str] = &[SELECT.0[1], SELECT.0[2], SELECT.0[3]];
pub(crate) const CASTS: [&str; 6] = [
    "cast_f32_f64",
    "cast_f32_bf16",
    "cast_f64_f32",
    "cast_f64_bf16",
    "cast_bf16_f32",
    "cast_bf16_f64",
];

pub(crate) const BINARY: Reals = reals!("binary");
pub(crate) const COMPARE: Floats = floats!("compare");
pub(crate) const COMPARE_INTEGERS: [&str; 3] = ["compare_i32", "compare_i64", "compare_u8"];
pub(crate) const EXPAND: Widths = widths!("expand");

pub(crate) const COPY_ROWS: &str = "copy_rows";
pub(crate) const PAD_ROWS: &str = "pad_rows";
pub(crate) const GATHER: &str = "gather";
pub(crate) const TURN: Widths = widths!("turn");

pub(crate) const PRODUCT: Tiles = tiles!("product");
pub(crate) const SUM_PARTS: Reals = reals!("sum_parts");

pub(crate) const REDUCE_COLUMNS: Reals = reals!("reduce_columns");
pub(crate) const REDUCE_ROWS: Reals = reals!("reduce_rows");
pub(crate) const REDUCE_GRAD: Reals = reals!("reduce_grad");
pub(crate) const SOFTMAX: Reals = reals!("softmax");
pub(crate) const SOFTMAX_GRAD: Reals = reals!("softmax_grad");
pub(crate) const SQUARE_SUMS: Reals = reals!("square_sums");
pub(crate) const CLIP_SCALE: &str = "clip_scale";

pub(crate) const CHECK_LABELS: &str = "check_labels";
pub(crate) const CROSS_ENTROPY: Reals = reals!("cross_entropy");
pub(crate) const SUM_LOSSES: Reals = reals!("sum_losses");
pub(crate) const COUNT_WITHIN: Reals = reals!("count_within");

pub(crate) const COUNT_STEP: &str = "count_step";
pub(crate) const APPLY: Reals = reals!("apply");
pub(crate) const LAMB_MOMENTS: Reals = reals!("lamb_moments");
pub(crate) const LAMB_RATIO: &str = "lamb_ratio";
pub(crate) const LAMB_STEP: Reals = reals!("lamb_step");
pub(crate) const APPLY_AVERAGE: Reals = reals!("apply_average");

pub(crate) const QUANTIZE: &str = "quantize";
pub(crate) const DEQUANTIZE: &str = "dequantize";
pub(crate) const ADD_GRADIENT: &str = "add_gradient";
pub(crate) const FIND_LAST: &str = "find_last";
pub(crate) const COUNT_LOWER: &str = "count_lower";
pub(crate) const COUNT_PIECES: &str = "count_pieces";
pub(crate) const ORDER_PIECES: &str = "order_pieces";
pub(crate) const CHOOSE: &str = "choose";
pub(crate) const SCATTER_ELEMENTS: &str = "scatter_elements";

pub(crate) const WRITE_WORDS: &str = "write_words";
pub(crate) const LINK_ROWS: &str = "link_rows";
pub(crate) const ADD_ROWS: Reals = reals!("add_rows");
pub(crate) const APPLY_ROWS: Reals = reals!("apply_rows");

pub(crate) const CONVOLVE: Tiles = tiles!("convolve");
pub(crate) const CONVOLVE_GRAD_INPUT: Tiles = tiles!("convolve_grad_input");
pub(crate) const CONVOLVE_GRAD_WEIGHT: Tiles = tiles!("convolve_grad_weight");
pub(crate) const THREAD_CONVOLVE: Reals = reals!("thread_convolve");
pub(crate) const THREAD_GRAD_INPUT: Reals = reals!("thread_grad_input");
pub(crate) const THREAD_GRAD_WEIGHT: Reals = reals!("thread_grad_weight");

pub(crate) const MAX_POOL: Reals = reals!("max_pool");
pub(crate) const AVG_POOL: Reals = reals!("avg_pool");
pub(crate) const MAX_POOL_GRAD: Reals = reals!("pool_grad_max");
pub(crate) const AVG_POOL_GRAD: Reals = reals!("pool_grad_avg");
pub(crate) const RESPONSE_NORM: Reals = reals!("response_norm");
pub(crate) const RESPONSE_NORM_GRAD: Reals = reals!("response_norm_grad");

pub(crate) const COLUMN_MOMENTS: Reals = reals!("column_moments");
pub(crate) const JOIN_MOMENTS: Reals = reals!("join_moments");
pub(crate) const NORMALIZE: Reals = reals!("normalize");
pub(crate) const COLUMN_GRADIENTS: Reals = reals!("column_gradients");
pub(crate) const JOIN_GRADIENTS: Reals = reals!("join_gradients");
pub(crate) const BATCH_NORM_GRAD: Reals = reals!("batch_norm_grad");
pub(crate) const SAMPLE_NORM: Reals = reals!("sample_norm");
pub(crate) const SAMPLE_NORM_GRAD: Reals = reals!("sample_norm_grad");

pub(crate) const ATTENTION: Reals = reals!("attention");
pub(crate) const ATTENTION_LEVEL: Reals = reals!("attention_level");
pub(crate) const ATTENTION_GRAD_KEYS: Reals = reals!("attention_grad_keys");
pub(crate) const ATTENTION_GRAD_QUERIES: Reals = reals!("attention_grad_queries");
pub(crate) const ROTARY_ANGLES: Reals = reals!("rotary_angles");
pub(crate) const ROTARY: Reals = reals!("rotary");

pub(crate) const FIRST_ROWS: &str = "first_rows";
pub(crate) const RECURRENT_BEGIN: Reals = reals!("recurrent_begin");
pub(crate) const RECURRENT_STEP: [Reals; 3] = cells!("recurrent_step");
pub(crate) const RECURRENT_BACK: [Reals; 3] = cells!("recurrent_back");
pub(crate) const ROWS_BEFORE: Reals = reals!("rows_before");

const MODULES: &[PtxModule] = &[
    module!(
        "element_wise",
        &MAP_ONE.0,
        &MAP_TWO.0,
        &BIAS_ADD.0,
        &SCALE_BY.0,
        &DROPOUT.0,
        &FOLD.0,
        &FILL.0,
        SELECTS,
        &CASTS,
    ),
    module!("broadcast", &BINARY.0, &COMPARE.0, &COMPARE_INTEGERS, &EXPAND.0),
    module!("moves", &[COPY_ROWS, PAD_ROWS, GATHER], &TURN.0),
    module!("products", &PRODUCT.reals.0, &[PRODUCT.wide], &SUM_PARTS.0),
    module!(
        "reductions",
        &REDUCE_COLUMNS.0,
        &REDUCE_ROWS.0,
        &REDUCE_GRAD.0,
        &SOFTMAX.0,
        &SOFTMAX_GRAD.0,
        &SQUARE_SUMS.0,
        &[CLIP_SCALE],
    ),
    module!("losses", &[CHECK_LABELS], &CROSS_ENTROPY.0, &SUM_LOSSES.0, &COUNT_WITHIN.0),
    module!(
        "updates",
        &[COUNT_STEP, LAMB_RATIO],
        &APPLY.0,
        &LAMB_MOMENTS.0,
        &LAMB_STEP.0,
        &APPLY_AVERAGE.0,
    ),
    module!(
        "compression",
        &[QUANTIZE, DEQUANTIZE, SCATTER_ELEMENTS],
        &[ADD_GRADIENT, FIND_LAST, COUNT_LOWER, COUNT_PIECES, ORDER_PIECES, CHOOSE],
    ),
    module!(
        "convolution",
        &CONVOLVE.reals.0,
        &CONVOLVE_GRAD_INPUT.reals.0,
        &CONVOLVE_GRAD_WEIGHT.reals.0,
        &[CONVOLVE.wide, CONVOLVE_GRAD_INPUT.wide, CONVOLVE_GRAD_WEIGHT.wide],
        &THREAD_CONVOLVE.0,
        &THREAD_GRAD_INPUT.0,
        &THREAD_GRAD_WEIGHT.0,
    ),
    module!(
        "images",
        &MAX_POOL.0,
        &AVG_POOL.0,
        &MAX_POOL_GRAD.0,
        &AVG_POOL_GRAD.0,
        &RESPONSE_NORM.0,
        &RESPONSE_NORM_GRAD.0,
    ),
    module!(
        "norms",
        &COLUMN_MOMENTS.0,
        &JOIN_MOMENTS.0,
        &NORMALIZE.0,
        &COLUMN_GRADIENTS.0,
        &JOIN_GRADIENTS.0,
        &BATCH_NORM_GRAD.0,
        &SAMPLE_NORM.0,
        &SAMPLE_NORM_GRAD.0,
    ),
    module!(
        "attention",
        &ATTENTION.0,
        &ATTENTION_LEVEL.0,
        &ATTENTION_GRAD_KEYS.0,
        &ATTENTION_GRAD_QUERIES.0,
        &ROTARY_ANGLES.0,
        &ROTARY.0,
    ),
    module!(
        "recurrent",
        &[FIRST_ROWS],
        &RECURRENT_BEGIN.0,
        &RECURRENT_STEP[0].0,
        &RECURRENT_STEP[1].0,
        &RECURRENT_STEP[2].0,
        &RECURRENT_BACK[0].0,
        &RECURRENT_BACK[1].0,
        &RECURRENT_BACK[2].0,
        &ROWS_BEFORE.0,
    ),
    module!("rows", &[WRITE_WORDS, LINK_ROWS], &ADD_ROWS.0, &APPLY_ROWS.0),
];
