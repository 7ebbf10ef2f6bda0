//! Objects of cuDNN: tensors, windows, operations, and what its heuristics answer.

use std::ffi::{c_char, c_void};

use super::{ConvolutionPass, LIBRARY_ALIGNMENT, RealType};
use crate::device::Handle;
use crate::error::{Failure, Refused, text_of};
use crate::sys::cudnn::*;

/// Answers of a heuristic that are looked at, and what is said of an engine, at most.
const ANSWERS: usize = 64;
const NOTES: usize = 32;

/// Of what the library says of a failure.
const TEXT_BYTES: usize = 512;

/// An object of the library's, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) at: Handle<c_void>,
    destroy: unsafe extern "C" fn(cudnnBackendDescriptor_t) -> cudnnStatus_t,
    /// What it was made of, which lives as long.
    pub(super) parts: Vec<Descriptor>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made for this value by the function that goes with it, and given back once. Whoever owns a plan sees to it
        // that no GPU works for it any more; all others are memory of the host.
        unsafe { (self.destroy)(self.at.0) };
    }
}

/// What attributes are, as the library calls their types.
pub(super) trait Element: Copy {
    const KIND: cudnnBackendAttributeType_t;
}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident($of:ty) is $kind:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(pub(super) $of);
        impl Element for $name {
            const KIND: cudnnBackendAttributeType_t = $kind;
        }
    )*};
}

elements! {
    Int64(i64) is CUDNN_TYPE_INT64;
    Float(f32) is CUDNN_TYPE_FLOAT;
    Double(f64) is CUDNN_TYPE_DOUBLE;
    /// An address, which nobody follows here.
    Pointer(*mut c_void) is CUDNN_TYPE_VOID_PTR;
    Owner(cudnnHandle_t) is CUDNN_TYPE_HANDLE;
    Object(cudnnBackendDescriptor_t) is CUDNN_TYPE_BACKEND_DESCRIPTOR;
    DataType(u32) is CUDNN_TYPE_DATA_TYPE;
    ConvolutionMode(u32) is CUDNN_TYPE_CONVOLUTION_MODE;
    HeuristicMode(u32) is CUDNN_TYPE_HEUR_MODE;
    Note(u32) is CUDNN_TYPE_NUMERICAL_NOTE;
}

impl Pointer {
    pub(super) fn at(address: u64) -> Pointer {
        // fits: an address of this machine
        Pointer(std::ptr::without_provenance_mut(address as usize))
    }
}

/// Makes objects by the table.
pub(super) struct Maker<'a>(pub(super) &'a CudnnFunctions);

impl Maker<'_> {
    pub(super) fn create(&self, kind: cudnnBackendDescriptorType_t) -> Result<Descriptor, Refused> {
        let mut at = std::ptr::null_mut();
        // SAFETY: there is room for the pointer.
        let status = unsafe { (self.0.cudnnBackendCreateDescriptor)(kind, &mut at) };
        checked(self.0, "cudnnBackendCreateDescriptor", status)?;
        let destroy = self.0.cudnnBackendDestroyDescriptor;
        Ok(Descriptor { at: Handle(at), destroy, parts: Vec::new() })
    }

    /// Sets an attribute of an object to elements of the type that the manual gives it.
    pub(super) fn set<T: Element>(
        &self,
        of: &Descriptor,
        attribute: cudnnBackendAttributeName_t,
        elements: &[T],
    ) -> Result<(), Refused> {
        // SAFETY: the object lives; as many elements are read as there are, of the type that is said.
        let status = unsafe {
            (self.0.cudnnBackendSetAttribute)(
                of.at.0,
                attribute,
                T::KIND,
                // fits: few
                elements.len() as i64,
                elements.as_ptr().cast(),
            )
        };
        checked(self.0, "cudnnBackendSetAttribute", status)
    }

    /// Fills a place with elements of an attribute: how many there are.
    fn get<T: Element>(
        &self,
        of: &Descriptor,
        attribute: cudnnBackendAttributeName_t,
        room: &mut [T],
    ) -> Result<usize, Refused> {
        let mut count = 0;
        // SAFETY: the object lives; there is room for as many elements as are asked for, of the type that is said, and for
        // their number.
        let status = unsafe {
            (self.0.cudnnBackendGetAttribute)(
                of.at.0,
                attribute,
                T::KIND,
                // fits: few
                room.len() as i64,
                &mut count,
                room.as_mut_ptr().cast(),
            )
        };
        checked(self.0, "cudnnBackendGetAttribute", status)?;
        Ok(usize::try_from(count).unwrap_or(0).min(room.len()))
    }

    pub(super) fn finish(&self, of: &Descriptor, call: &'static str) -> Result<(), Refused> {
        // SAFETY: the object lives.
        let status = unsafe { (self.0.cudnnBackendFinalize)(of.at.0) };
        checked(self.0, call, status)
    }

    pub(super) fn tensor(
        &self,
        name: i64,
        of: RealType,
        dims: [Int64; 4],
        steps: [Int64; 4],
    ) -> Result<Descriptor, Refused> {
        let made = self.create(CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        self.set(&made, CUDNN_ATTR_TENSOR_UNIQUE_ID, &[Int64(name)])?;
        self.set(&made, CUDNN_ATTR_TENSOR_DATA_TYPE, &[data_type(of)])?;
        // fits: 16
        let alignment = [Int64(LIBRARY_ALIGNMENT as i64)];
        self.set(&made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &alignment)?;
        self.set(&made, CUDNN_ATTR_TENSOR_DIMENSIONS, &dims)?;
        self.set(&made, CUDNN_ATTR_TENSOR_STRIDES, &steps)?;
        self.finish(&made, "cudnnBackendFinalize (of a tensor)")?;
        Ok(made)
    }

    /// Of stride, dilation, and padding before and behind.
    pub(super) fn window(
        &self,
        of: RealType,
        [stride, dilation, before, after]: [[Int64; 2]; 4],
    ) -> Result<Descriptor, Refused> {
        let made = self.create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        let computed = if of == RealType::F64 { of } else { RealType::F32 };
        self.set(&made, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[data_type(computed)])?;
        let mode = [ConvolutionMode(CUDNN_CROSS_CORRELATION)];
        self.set(&made, CUDNN_ATTR_CONVOLUTION_CONV_MODE, &mode)?;
        self.set(&made, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[Int64(2)])?;
        self.set(&made, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &stride)?;
        self.set(&made, CUDNN_ATTR_CONVOLUTION_DILATIONS, &dilation)?;
        self.set(&made, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &before)?;
        self.set(&made, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &after)?;
        self.finish(&made, "cudnnBackendFinalize (of a convolution)")?;
        Ok(made)
    }

    pub(super) fn operation(
        &self,
        pass: ConvolutionPass,
        of: RealType,
        window: &Descriptor,
        tensors: [&Descriptor; 3],
    ) -> Result<Descriptor, Refused> {
        let (kind, [alpha, beta, conv, x, w, y]) = match pass {
            ConvolutionPass::Forward => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
            ),
            ConvolutionPass::GradInput => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                ],
            ),
            ConvolutionPass::GradWeight => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                ],
            ),
        };
        let made = self.create(kind)?;
        for (attribute, object) in [x, w, y].into_iter().zip(tensors).chain([(conv, window)]) {
            self.set(&made, attribute, &[Object(object.at.0)])?;
        }
        for (attribute, scale) in [(alpha, 1u8), (beta, 0)] {
            match of {
                RealType::F64 => self.set(&made, attribute, &[Double(scale.into())])?,
                _ => self.set(&made, attribute, &[Float(scale.into())])?,
            }
        }
        self.finish(&made, "cudnnBackendFinalize (of an operation)")?;
        Ok(made)
    }

    /// A graph of one operation.
    pub(super) fn graph(
        &self,
        handle: cudnnHandle_t,
        operation: &Descriptor,
    ) -> Result<Descriptor, Refused> {
        let made = self.create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        self.set(&made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[Owner(handle)])?;
        self.set(&made, CUDNN_ATTR_OPERATIONGRAPH_OPS, &[Object(operation.at.0)])?;
        self.finish(&made, "cudnnBackendFinalize (of a graph)")?;
        Ok(made)
    }

    /// What a heuristic answers of a graph: engines with what is chosen of them, the best first.
    pub(super) fn configurations(
        &self,
        graph: &Descriptor,
        mode: u32,
    ) -> Result<Vec<Descriptor>, Refused> {
        let heuristic = self.create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        let of = [Object(graph.at.0)];
        self.set(&heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &of)?;
        self.set(&heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, &[HeuristicMode(mode)])?;
        self.finish(&heuristic, "cudnnBackendFinalize (of a heuristic)")?;
        // objects that it makes are what it writes to
        let mut made = Vec::with_capacity(ANSWERS);
        for _ in 0..ANSWERS {
            made.push(self.create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?);
        }
        let mut room: Vec<Object> = made.iter().map(|made| Object(made.at.0)).collect();
        let count = self.get(&heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut room)?;
        made.truncate(count);
        Ok(made)
    }

    /// What is said of the engine of a configuration.
    pub(super) fn notes(&self, configuration: &Descriptor) -> Result<Vec<u32>, Refused> {
        let engine = self.create(CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        let mut room = [Object(engine.at.0)];
        self.get(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, &mut room)?;
        let mut notes = [Note(0); NOTES];
        let count = self.get(&engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
        Ok(notes[..count].iter().map(|note| note.0).collect())
    }

    pub(super) fn plan(
        &self,
        handle: cudnnHandle_t,
        configuration: &Descriptor,
    ) -> Result<Descriptor, Refused> {
        let made = self.create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        self.set(&made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[Owner(handle)])?;
        let of = [Object(configuration.at.0)];
        self.set(&made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &of)?;
        self.finish(&made, "cudnnBackendFinalize (of a plan)")?;
        Ok(made)
    }

    pub(super) fn workspace_bytes(&self, plan: &Descriptor) -> Result<usize, Refused> {
        let mut bytes = [Int64(0)];
        self.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &mut bytes)?;
        // none is so large that is not
        Ok(usize::try_from(bytes[0].0).unwrap_or(usize::MAX))
    }
}

fn data_type(of: RealType) -> DataType {
    DataType(match of {
        RealType::F32 => CUDNN_DATA_FLOAT,
        RealType::F64 => CUDNN_DATA_DOUBLE,
        RealType::Bf16 => CUDNN_DATA_BFLOAT16,
    })
}

/// Makes an error of what is no success.
pub(super) fn checked(
    functions: &CudnnFunctions,
    call: &'static str,
    status: cudnnStatus_t,
) -> Result<(), Refused> {
    match status {
        CUDNN_STATUS_SUCCESS => Ok(()),
        code => Err(Refused { call, failure: failure(functions, code) }),
    }
}

pub(super) fn failure(functions: &CudnnFunctions, code: cudnnStatus_t) -> Box<Failure> {
    let mut room = [0 as c_char; TEXT_BYTES];
    // SAFETY: there is room for all but the last byte, which stays 0; the other takes any number, and what it returns is text
    // of the library's.
    let [name, text] = unsafe {
        (functions.cudnnGetLastErrorString)(room.as_mut_ptr(), TEXT_BYTES - 1);
        [text_of((functions.cudnnGetErrorString)(code)), text_of(room.as_ptr())]
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Box::new(Failure { code, name, text })
}
