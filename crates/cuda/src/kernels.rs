//! The kernels by name, and the PTX in which they are.

use std::ffi::CStr;

use tensorwire_tensor::DType;

/// Kernels that a driver loads together: one file of `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct PtxModule {
    /// Of its file.
    pub name: &'static str,
    /// For compute capability 8.0 and later.
    pub ptx: &'static CStr,
    groups: &'static [&'static [&'static str]],
}

impl PtxModule {
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
            ptx: text(concat!(include_str!(concat!("../ptx/", $name, ".ptx")), "\0")),
            groups: &[$($group),+],
        }
    };
}

const fn text(ptx: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(ptx.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("PTX is text"),
    }
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
];
