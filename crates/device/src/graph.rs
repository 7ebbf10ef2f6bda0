//! What a stream was told, as one thing that is told again: a graph costs the host one call, however much is in it.

use std::sync::Arc;

use tensorwire_memory::Keepalive;

use crate::device::{Device, Handle};
use crate::error::DeviceError;
use crate::stream::Stream;
use crate::sys::*;

/// What was captured. It keeps its kernels and the memory of its copies and words, but for what came by other streams; the
/// memory that its launches' arguments name is kept by whoever launched.
#[derive(Debug)]
pub struct Graph {
    device: Arc<Device>,
    handle: Handle<CUgraphExec_st>,
    _kept: Vec<Keepalive>,
}

impl Stream {
    /// From here on what the stream is told is kept instead of done, until [`Stream::end_capture`]. In between, nobody asks
    /// the stream whether it is done, and other streams take part only by events that lead there and back.
    ///
    /// # Errors
    /// When it is captured already, or the driver refuses.
    pub fn begin_capture(&self) -> Result<(), DeviceError> {
        self.device().call("cuStreamBeginCapture", |functions| {
            // memory and images may be made meanwhile; what conflicts with the capture is refused all the same
            let mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the stream lives.
            unsafe { (functions.cuStreamBeginCapture_v2)(self.raw(), mode) }
        })?;
        self.start_keeping();
        Ok(())
    }

    /// Ends a capture, also a failed one: the stream works as before.
    ///
    /// # Errors
    /// When none was begun, what was told cannot be captured, or the driver refuses.
    pub fn end_capture(&self) -> Result<Graph, DeviceError> {
        let kept = self.stop_keeping();
        let device = self.device();
        let mut graph = std::ptr::null_mut();
        device.call("cuStreamEndCapture", |functions| {
            // SAFETY: there is room for the pointer, and the stream lives.
            unsafe { (functions.cuStreamEndCapture)(self.raw(), &mut graph) }
        })?;
        let mut made = std::ptr::null_mut();
        let status = device.try_call(|functions| {
            // SAFETY: there is room for the pointer; the graph was made just now, and is destroyed once, here. What was
            // instantiated of it stays.
            unsafe {
                let status = (functions.cuGraphInstantiateWithFlags)(&mut made, graph, 0);
                (functions.cuGraphDestroy)(graph);
                status
            }
        })?;
        device.check_memory("cuGraphInstantiate", status, 0)?;
        Ok(Graph { device: device.clone(), handle: Handle(made), _kept: kept })
    }
}

impl Graph {
    /// Tells `stream` all of it. A graph that is not done yet begins again when it is.
    ///
    /// # Errors
    /// When the driver refuses, or the GPU is lost.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.device.call("cuGraphLaunch", |functions| {
            // SAFETY: both live; that what the launches name still does is the promise of whoever captured them
            // ([`Stream::launch`]).
            unsafe { (functions.cuGraphLaunch)(self.handle.0, stream.raw()) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made for this value, and destroyed once; the driver lets what runs of it end. What it keeps waits for
        // that when it is dropped.
        let _ = self
            .device
            .try_call(|functions| unsafe { (functions.cuGraphExecDestroy)(self.handle.0) });
    }
}
