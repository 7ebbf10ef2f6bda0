//! Graphs of what was captured.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_device::sys::*;

use super::{in_context, on_stream, pointer, put, started};
use crate::capture::Exec;
use crate::stream::Op;

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    on_stream(stream, |fake, stream| {
        let capture = stream.capture().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let recording = Arc::new(capture.end(stream)?);
        // SAFETY: room is the caller's duty.
        unsafe { put(graph, pointer(fake.recordings.add(recording))) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    in_context(|fake, _| {
        let recording = fake.recordings.get(graph.addr())?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let made = Exec { ops: recording.ops.clone(), turn: Mutex::default() };
        // SAFETY: room is the caller's duty.
        unsafe { put(exec, pointer(fake.execs.add(Arc::new(made)))) }
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    started(|fake| fake.recordings.remove(graph.addr()).map(|_| ()))
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    on_stream(stream, |fake, stream| {
        let exec = fake.execs.get(exec.addr())?;
        stream.tell(Op::Graph(exec))
    })
}

/// # Safety
/// As of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    started(|fake| fake.execs.remove(exec.addr()).map(|_| ()))
}
