//! The kernels by name, and the PTX in which they are.

use std::ffi::CStr;

use tensorwire_tensor::DType;

/// Kernels that a driver loads together: one file of `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct PtxModule {
    /// Of its file.
    pub name: &'static str,
    text: &'static str,
    groups: &'static [&'static [&'static str]],
}

impl PtxModule {
    /// For compute capability 8.0 and later, as a driver loads it.
    pub fn ptx(&self) -> &'static CStr {
        // it ends with a zero, which the macro below puts there
        CStr::from_bytes_until_nul(self.text.as_bytes()).unwrap_or_default()
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
            text: concat!(include_str!(concat!("../ptx/", $name, ".ptx")), "\0"),
            groups: &[$($group),+],
        }
    };
}

pub(crate) const MAP_ONE: Floats = floats!("map_one");
pub(crate) const MAP_TWO: Floats = floats!("map_two");
pub(crate) const BIAS_ADD: Floats = floats!("bias_add");
pub(crate) const SCALE_BY: Floats = floats!("scale_by");
pub(crate) const DROPOUT: Floats = floats!("dropout");
pub(crate) const FOLD: Floats = floats!("fold");
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

pub(crate) const BINARY: Floats = floats!("binary");
pub(crate) const COMPARE: Floats = floats!("compare");
pub(crate) const COMPARE_INTEGERS: [&str; 3] = ["compare_i32", "compare_i64", "compare_u8"];
pub(crate) const EXPAND: Widths = widths!("expand");

pub(crate) const COPY_ROWS: &str = "copy_rows";
pub(crate) const PAD_ROWS: &str = "pad_rows";
pub(crate) const GATHER: &str = "gather";
pub(crate) const TURN: Widths = widths!("turn");

pub(crate) const PRODUCT: Floats = floats!("product");
/// Of f32 and bf16.
pub(crate) const PRODUCT_WIDE: [&str; 2] = ["product_wide_f32", "product_wide_bf16"];
pub(crate) const SUM_PARTS: Floats = floats!("sum_parts");

pub(crate) const REDUCE_COLUMNS: Floats = floats!("reduce_columns");
pub(crate) const REDUCE_ROWS: Floats = floats!("reduce_rows");
pub(crate) const REDUCE_GRAD: Floats = floats!("reduce_grad");
pub(crate) const SOFTMAX: Floats = floats!("softmax");
pub(crate) const SOFTMAX_GRAD: Floats = floats!("softmax_grad");
pub(crate) const SQUARE_SUMS: Floats = floats!("square_sums");
pub(crate) const CLIP_SCALE: &str = "clip_scale";

pub(crate) const CHECK_LABELS: &str = "check_labels";
pub(crate) const CROSS_ENTROPY: Floats = floats!("cross_entropy");
pub(crate) const SUM_LOSSES: Floats = floats!("sum_losses");
pub(crate) const COUNT_WITHIN: Floats = floats!("count_within");

pub(crate) const COUNT_STEP: &str = "count_step";
pub(crate) const APPLY: Floats = floats!("apply");
pub(crate) const LAMB_MOMENTS: Floats = floats!("lamb_moments");
pub(crate) const LAMB_RATIO: &str = "lamb_ratio";
pub(crate) const LAMB_STEP: Floats = floats!("lamb_step");
pub(crate) const APPLY_AVERAGE: Floats = floats!("apply_average");

pub(crate) const WRITE_WORDS: &str = "write_words";
pub(crate) const LINK_ROWS: &str = "link_rows";
pub(crate) const ADD_ROWS: Floats = floats!("add_rows");
pub(crate) const APPLY_ROWS: Floats = floats!("apply_rows");

/// The kernel of f32 or of bf16, where there are these two.
pub(crate) fn wide([f32, bf16]: [&'static str; 2], dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some(f32),
        DType::BF16 => Some(bf16),
        _ => None,
    }
}

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
    module!("products", &PRODUCT.0, &PRODUCT_WIDE, &SUM_PARTS.0),
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
    module!("rows", &[WRITE_WORDS, LINK_ROWS], &ADD_ROWS.0, &APPLY_ROWS.0),
];
