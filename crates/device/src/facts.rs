//! What a GPU is and can do: plain data, in the driver's own words where it has some.

/// One GPU, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its number in this process, from 0 on.
    pub ordinal: usize,
    pub name: String,
    /// As nvidia-smi writes it: `GPU-…`.
    pub uuid: String,
    /// As under `/sys/bus/pci/devices`: `0000:3b:00.0`.
    pub pci_bus_id: String,
    /// Compute capability: major, minor.
    pub compute: (u32, u32),
    pub memory_bytes: u64,
    pub multiprocessors: u32,
    pub threads_per_block_max: u32,
    /// Shared memory that a block has without asking.
    pub shared_bytes_max: u32,
    /// Shared memory that a block may be allowed ([`crate::Function::allow_shared`]).
    pub shared_bytes_allowed_max: u32,
    /// Copies that run beside kernels.
    pub copy_engines: u32,
    /// Host and device have one address space.
    pub unified_addressing: bool,
    /// Memory is allocated and mapped apart (VMM), which all memory here needs.
    pub virtual_memory: bool,
    /// An allocation can be exported as a file descriptor.
    pub export: bool,
    /// A NIC may reach an allocation.
    pub rdma: bool,
    /// An allocation can be shown to a NIC as a dma-buf.
    pub dmabuf: bool,
    /// Streams wait on and write words of memory.
    pub memory_operations: bool,
    pub ordering: WritesOrdering,
    /// A call of the host's flushes a NIC's writes ([`crate::Device::flush_remote_writes`]).
    pub flush: bool,
    /// The host's memory next to it; none where the driver does not say.
    pub numa_node: Option<u32>,
}

/// Who sees a NIC's writes in order, once something that was written behind them is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritesOrdering {
    /// Nobody: they are flushed first.
    None,
    /// The GPU that they go to.
    Owner,
    /// Every GPU.
    AllDevices,
}
