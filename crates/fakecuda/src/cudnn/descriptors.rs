//! Descriptors: attributes that are set, held against what each kind of descriptor has, and what they are together.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::RangeInclusive;

use tensorwire_device::sys::cudnn::*;

use super::convolution::{Convolution, Engine, Pass, Tensor, Window};
use super::{Status, descriptor, not_supported, owner, wrong};
use crate::numbers::Kind;

/// What was made.
#[derive(Debug)]
pub(super) struct Descriptor {
    kind: cudnnBackendDescriptorType_t,
    /// By name: the bytes of the elements.
    set: BTreeMap<cudnnBackendAttributeName_t, Vec<u8>>,
    made: Option<Made>,
}

/// What a descriptor is that is finalized.
#[derive(Clone, Debug)]
pub(super) enum Made {
    Tensor(Tensor),
    Window(Window),
    Operation(Convolution),
    Graph(Convolution),
    /// With its mode.
    Heuristic(Convolution, u32),
    Configuration(Convolution, Engine),
    Engine(Engine),
    /// With its handle.
    Plan(Convolution, Engine, usize),
    Pack(Pack),
}

/// Where tensors lie.
#[derive(Clone, Debug)]
pub(super) struct Pack {
    names: Vec<i64>,
    addresses: Vec<u64>,
    pub(super) workspace: u64,
}

impl Pack {
    pub(super) fn address_of(&self, name: i64) -> Option<u64> {
        let at = self.names.iter().position(|found| *found == name)?;
        self.addresses.get(at).copied()
    }
}

/// The attributes of an operation, alike in all three: alpha, beta, window, and the tensors x, w and y.
const OPERATIONS: [(cudnnBackendDescriptorType_t, Pass, [cudnnBackendAttributeName_t; 6]); 3] = [
    (
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        Pass::Forward,
        [
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
        ],
    ),
    (
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        Pass::GradInput,
        [
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        ],
    ),
    (
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        Pass::GradWeight,
        [
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
        ],
    ),
];

/// The types that an attribute of a kind of descriptor may have, and how many elements.
fn attribute(
    kind: cudnnBackendDescriptorType_t,
    name: cudnnBackendAttributeName_t,
) -> Option<(&'static [cudnnBackendAttributeType_t], RangeInclusive<i64>)> {
    const OBJECT: &[u32] = &[CUDNN_TYPE_BACKEND_DESCRIPTOR];
    const INTEGER: &[u32] = &[CUDNN_TYPE_INT64];
    const OWNER: &[u32] = &[CUDNN_TYPE_HANDLE];
    const DATA: &[u32] = &[CUDNN_TYPE_DATA_TYPE];
    const POINTER: &[u32] = &[CUDNN_TYPE_VOID_PTR];
    if let Some((_, _, names)) = OPERATIONS.iter().find(|(of, ..)| *of == kind) {
        let at = names.iter().position(|found| *found == name)?;
        let scale = &[CUDNN_TYPE_FLOAT, CUDNN_TYPE_DOUBLE][..];
        return Some((if at < 2 { scale } else { OBJECT }, 1..=1));
    }
    Some(match (kind, name) {
        (
            CUDNN_BACKEND_TENSOR_DESCRIPTOR,
            CUDNN_ATTR_TENSOR_UNIQUE_ID | CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
        ) => (INTEGER, 1..=1),
        (CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE) => (DATA, 1..=1),
        (
            CUDNN_BACKEND_TENSOR_DESCRIPTOR,
            CUDNN_ATTR_TENSOR_DIMENSIONS | CUDNN_ATTR_TENSOR_STRIDES,
        ) => (INTEGER, 4..=4),
        (CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) => (DATA, 1..=1),
        (CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE) => {
            (&[CUDNN_TYPE_CONVOLUTION_MODE], 1..=1)
        }
        (CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) => {
            (INTEGER, 1..=1)
        }
        (
            CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
            CUDNN_ATTR_CONVOLUTION_DILATIONS
            | CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES
            | CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS
            | CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
        ) => (INTEGER, 2..=2),
        (CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
        | (CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) => {
            (OWNER, 1..=1)
        }
        (CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS)
        | (CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
        | (CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) => {
            (OBJECT, 1..=1)
        }
        (CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE) => {
            (&[CUDNN_TYPE_HEUR_MODE], 1..=1)
        }
        (CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) => {
            (INTEGER, 1..=8)
        }
        (CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) => {
            (POINTER, 1..=8)
        }
        (CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) => {
            (POINTER, 1..=1)
        }
        _ => return None,
    })
}

fn bytes_of(kind: cudnnBackendAttributeType_t) -> usize {
    match kind {
        CUDNN_TYPE_HANDLE
        | CUDNN_TYPE_INT64
        | CUDNN_TYPE_DOUBLE
        | CUDNN_TYPE_VOID_PTR
        | CUDNN_TYPE_BACKEND_DESCRIPTOR => 8,
        _ => 4,
    }
}

impl Descriptor {
    pub(super) fn new(kind: cudnnBackendDescriptorType_t) -> Status<Descriptor> {
        let is_known = OPERATIONS.iter().any(|(of, ..)| *of == kind)
            || [
                CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
                CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                CUDNN_BACKEND_TENSOR_DESCRIPTOR,
            ]
            .contains(&kind);
        match is_known {
            true => Ok(Descriptor { kind, set: BTreeMap::new(), made: None }),
            false => not_supported("no such kind of descriptor"),
        }
    }

    pub(super) fn made(&self) -> Option<Made> {
        self.made.clone()
    }

    /// # Safety
    /// There are so many elements of that type.
    pub(super) unsafe fn set(
        &mut self,
        name: cudnnBackendAttributeName_t,
        kind: cudnnBackendAttributeType_t,
        count: i64,
        elements: *const c_void,
    ) -> Status {
        if self.made.is_some() {
            return wrong("what is finalized is not changed");
        }
        let Some((kinds, counts)) = attribute(self.kind, name) else {
            return wrong("a descriptor has no such attribute");
        };
        if !kinds.contains(&kind) || !counts.contains(&count) || elements.is_null() {
            return wrong("an attribute is of another type, or has more elements or fewer");
        }
        // fits: few
        let bytes = count as usize * bytes_of(kind);
        let mut all = vec![0; bytes];
        // SAFETY: there are so many bytes: the caller's duty.
        unsafe { std::ptr::copy_nonoverlapping(elements.cast::<u8>(), all.as_mut_ptr(), bytes) };
        self.set.insert(name, all);
        Ok(())
    }

    /// Makes it an answer, if it is of that kind and was not used yet.
    pub(super) fn fill(&mut self, kind: cudnnBackendDescriptorType_t, made: Made) -> Status {
        if self.kind != kind || self.made.is_some() || !self.set.is_empty() {
            return wrong("an answer takes a descriptor of its own kind that nothing was set of");
        }
        self.made = Some(made);
        Ok(())
    }

    pub(super) fn keep(&mut self, made: Made) {
        self.made = Some(made);
    }

    /// What it is with all that was set.
    pub(super) fn finished(&self) -> Status<Made> {
        if self.made.is_some() {
            return wrong("it is finalized already");
        }
        if let Some((_, pass, names)) = OPERATIONS.iter().find(|(of, ..)| *of == self.kind) {
            return self.operation(*pass, *names);
        }
        match self.kind {
            CUDNN_BACKEND_TENSOR_DESCRIPTOR => self.tensor(),
            CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR => self.window(),
            CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR => {
                owner(self.number(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)? as usize)?;
                match self.object(CUDNN_ATTR_OPERATIONGRAPH_OPS)? {
                    Made::Operation(convolution) => Ok(Made::Graph(convolution)),
                    _ => wrong("a graph is of operations"),
                }
            }
            CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR => {
                let mode = self.small(CUDNN_ATTR_ENGINEHEUR_MODE)?;
                match self.object(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)? {
                    Made::Graph(convolution) => Ok(Made::Heuristic(convolution, mode)),
                    _ => wrong("a heuristic is asked about a graph"),
                }
            }
            CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR => {
                let handle = self.number(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)? as usize;
                owner(handle)?;
                match self.object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)? {
                    Made::Configuration(_, Engine::Broken) => {
                        not_supported("this engine cannot be had here")
                    }
                    Made::Configuration(of, engine) => Ok(Made::Plan(of, engine, handle)),
                    _ => wrong("a plan is of a configuration"),
                }
            }
            CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR => {
                let names: Vec<i64> = self
                    .numbers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)?
                    .into_iter()
                    .map(u64::cast_signed)
                    .collect();
                let addresses = self.numbers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)?;
                let workspace = self.number(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)?;
                if names.len() != addresses.len() {
                    return wrong("a pack has an address for each tensor");
                }
                Ok(Made::Pack(Pack { names, addresses, workspace }))
            }
            _ => wrong("such a descriptor is not finalized by its user here"),
        }
    }

    fn bytes(&self, name: cudnnBackendAttributeName_t) -> Status<&[u8]> {
        match self.set.get(&name) {
            Some(bytes) => Ok(bytes),
            None => wrong(&format!("attribute {name} was not set")),
        }
    }

    fn numbers(&self, name: cudnnBackendAttributeName_t) -> Status<Vec<u64>> {
        let (numbers, _) = self.bytes(name)?.as_chunks::<8>();
        Ok(numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect())
    }

    fn number(&self, name: cudnnBackendAttributeName_t) -> Status<u64> {
        Ok(self.numbers(name)?.first().copied().unwrap_or(0))
    }

    fn small(&self, name: cudnnBackendAttributeName_t) -> Status<u32> {
        let bytes = self.bytes(name)?.first_chunk::<4>().copied();
        Ok(bytes.map_or(0, u32::from_ne_bytes))
    }

    /// Sizes of two or four dimensions.
    fn sizes<const N: usize>(&self, name: cudnnBackendAttributeName_t) -> Status<[usize; N]> {
        let numbers = self.numbers(name)?;
        let mut sizes = [0; N];
        for (size, number) in sizes.iter_mut().zip(numbers) {
            let number = i64::try_from(number).ok().and_then(|number| usize::try_from(number).ok());
            match number {
                Some(number) => *size = number,
                None => return wrong("a size is negative"),
            }
        }
        Ok(sizes)
    }

    fn object(&self, name: cudnnBackendAttributeName_t) -> Status<Made> {
        // fits: a handle
        let handle = self.number(name)? as usize;
        let made = descriptor(std::ptr::without_provenance(handle))?.lock().made();
        match made {
            Some(made) => Ok(made),
            None => wrong("what a descriptor is made of is not finalized"),
        }
    }

    fn kind_of(&self, name: cudnnBackendAttributeName_t) -> Status<Kind> {
        match self.small(name)? {
            CUDNN_DATA_FLOAT => Ok(Kind::F32),
            CUDNN_DATA_DOUBLE => Ok(Kind::F64),
            CUDNN_DATA_BFLOAT16 => Ok(Kind::Bf16),
            _ => not_supported("a tensor of another type"),
        }
    }

    fn tensor(&self) -> Status<Made> {
        let tensor = Tensor {
            name: self.number(CUDNN_ATTR_TENSOR_UNIQUE_ID)?.cast_signed(),
            kind: self.kind_of(CUDNN_ATTR_TENSOR_DATA_TYPE)?,
            alignment: self.number(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)?,
            dims: self.sizes(CUDNN_ATTR_TENSOR_DIMENSIONS)?,
            steps: self.sizes(CUDNN_ATTR_TENSOR_STRIDES)?,
        };
        if tensor.alignment == 0 || !tensor.alignment.is_multiple_of(tensor.kind.bytes() as u64) {
            return wrong("a tensor's alignment is none of its elements'");
        }
        match tensor.is_whole() {
            true => Ok(Made::Tensor(tensor)),
            false => wrong("a tensor is empty, or has gaps, or overlaps itself"),
        }
    }

    fn window(&self) -> Status<Made> {
        let window = Window {
            computed: self.kind_of(CUDNN_ATTR_CONVOLUTION_COMP_TYPE)?,
            stride: self.sizes(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)?,
            dilation: self.sizes(CUDNN_ATTR_CONVOLUTION_DILATIONS)?,
            before: self.sizes(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)?,
            after: self.sizes(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)?,
        };
        let mode = self.small(CUDNN_ATTR_CONVOLUTION_CONV_MODE)?;
        let dims = self.number(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)?;
        let is_none = |sizes: [usize; 2]| sizes.contains(&0);
        if dims != 2 || is_none(window.stride) || is_none(window.dilation) {
            return wrong("a convolution has two dimensions here, and steps");
        }
        match mode {
            CUDNN_CROSS_CORRELATION => Ok(Made::Window(window)),
            _ => wrong("a convolution that turns its weight round is not this project's"),
        }
    }

    fn operation(&self, pass: Pass, names: [cudnnBackendAttributeName_t; 6]) -> Status<Made> {
        let [alpha, beta, window, x, w, y] = names;
        let scale = |name| {
            let bytes = self.bytes(name)?;
            Ok::<f64, u32>(match (bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
                (Some(bytes), _) => f64::from_ne_bytes(*bytes),
                (_, Some(bytes)) => f32::from_ne_bytes(*bytes).into(),
                _ => f64::NAN,
            })
        };
        if (scale(alpha)?, scale(beta)?) != (1.0, 0.0) {
            return wrong("alpha is 1 and beta 0 here");
        }
        let Made::Window(window) = self.object(window)? else {
            return wrong("an operation has a convolution");
        };
        let tensor = |name| match self.object(name)? {
            Made::Tensor(tensor) => Ok::<Tensor, u32>(tensor),
            _ => wrong("an operation has tensors"),
        };
        let tensors = [tensor(x)?, tensor(w)?, tensor(y)?];
        Ok(Made::Operation(Convolution::of(pass, window, tensors)?))
    }
}
