//! CUDA's driver, loaded when it is wanted, and what it tells of its GPUs. Makes no context: looking costs no memory of
//! a GPU.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Access;
use tensorwire_base::LOADS_NOTHING;

use crate::error::{DeviceError, DriverVersion, Failure, OpenError, is_sticky, mend};
use crate::facts::{DeviceFacts, WritesOrdering};
use crate::sys::*;

/// The library's name, as the dynamic linker looks for it.
pub const SONAME: &str = "libcuda.so.1";

/// The least version: it has every function of the table.
const VERSION_MIN: DriverVersion = DriverVersion { major: 12, minor: 0 };

/// Files without which the driver sees no GPU.
const FILES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"];

/// The loaded driver. It stays loaded: it has threads of its own.
pub struct Driver {
    pub(crate) functions: Functions,
    version: DriverVersion,
    looked_for: String,
    _handle: ManuallyDrop<libloading::Library>,
}

impl Driver {
    /// Loads and starts the library of that path, or libcuda.so.1, for which the dynamic linker looks.
    ///
    /// # Errors
    /// When there is none, it does not start, or it is too old; see [`OpenError::is_absence`].
    pub fn open(library: Option<&Path>) -> Result<Arc<Driver>, OpenError> {
        let name = library.unwrap_or(Path::new(SONAME));
        let looked_for = name.display().to_string();
        let missing = |reason| OpenError::Missing { looked_for: looked_for.clone(), reason };
        if let Some(program) = LOADS_NOTHING {
            return Err(missing(program.why.to_string()));
        }
        // SAFETY: a library's initialisers run: that the driver's may is what a caller asks for who opens it.
        let handle = unsafe { libloading::Library::new(name) };
        let handle = handle.map_err(|error| missing(error.to_string()))?;
        let handle = ManuallyDrop::new(handle);
        // SAFETY: what the caller names, or the system has under this name, is CUDA's driver; it is never unloaded.
        let functions = unsafe { Functions::of(&handle) };
        let functions = functions.map_err(|function| {
            let looked_for = looked_for.clone();
            OpenError::Function { looked_for, function }
        })?;
        // SAFETY: takes 0, and may be called any number of times.
        start_with("cuInit", &functions, unsafe { (functions.cuInit)(0) })?;
        let mut number: c_int = 0;
        // SAFETY: there is room for the number.
        let status = unsafe { (functions.cuDriverGetVersion)(&mut number) };
        start_with("cuDriverGetVersion", &functions, status)?;
        let number = u32::try_from(number).unwrap_or(0);
        let version = DriverVersion { major: number / 1000, minor: number % 1000 / 10 };
        if version < VERSION_MIN {
            return Err(OpenError::TooOld { found: version, needed: VERSION_MIN });
        }
        Ok(Arc::new(Driver { functions, version, looked_for, _handle: handle }))
    }

    /// Returns the version of CUDA that the driver has.
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// Returns what was loaded: a path, or the name that the dynamic linker looked for.
    pub fn looked_for(&self) -> &str {
        &self.looked_for
    }

    /// Returns how many GPUs this process sees.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn device_count(&self) -> Result<usize, DeviceError> {
        let mut count: c_int = 0;
        // SAFETY: there is room for the number.
        let status = unsafe { (self.functions.cuDeviceGetCount)(&mut count) };
        self.check(0, "cuDeviceGetCount", status)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns what is known of every GPU, by ordinal.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>, DeviceError> {
        (0..self.device_count()?).map(|ordinal| self.facts(ordinal)).collect()
    }

    /// Returns what is known of one GPU.
    ///
    /// # Errors
    /// When there is none of that ordinal, or the driver refuses.
    pub fn facts(&self, ordinal: usize) -> Result<DeviceFacts, DeviceError> {
        let device = self.handle(ordinal)?;
        let read = |attribute| self.attribute(ordinal, device, attribute);
        let number = |attribute| Ok(u32::try_from(read(attribute)?.unwrap_or(0)).unwrap_or(0));
        let has = |attribute| Ok::<bool, DeviceError>(read(attribute)?.unwrap_or(0) > 0);
        let ordering = match number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)? {
            CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES.. => WritesOrdering::AllDevices,
            CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER.. => WritesOrdering::Owner,
            _ => WritesOrdering::None,
        };
        let flush = number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        let numa_node = read(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?;
        Ok(DeviceFacts {
            ordinal,
            name: self.name(ordinal, device)?,
            uuid: self.uuid(ordinal, device)?,
            pci_bus_id: self.pci_bus_id(ordinal, device)?,
            compute: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory_bytes: self.memory_bytes(ordinal, device)?,
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            threads_per_block_max: number(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            shared_bytes_max: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            shared_bytes_allowed_max: number(
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            copy_engines: number(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
            unified_addressing: has(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?,
            virtual_memory: has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            export: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            rdma: has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            dmabuf: has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            memory_operations: has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?,
            ordering,
            flush: flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST != 0,
            numa_node: numa_node.and_then(|node| u32::try_from(node).ok()),
        })
    }

    /// True if kernels and copies of GPU `from` reach the memory of GPU `to`.
    ///
    /// # Errors
    /// When there is none of such an ordinal, or the driver refuses.
    pub fn can_reach(&self, from: usize, to: usize) -> Result<bool, DeviceError> {
        let (of, peer) = (self.handle(from)?, self.handle(to)?);
        if from == to {
            return Ok(true);
        }
        let mut can: c_int = 0;
        // SAFETY: there is room for the number, and both are devices.
        let status = unsafe { (self.functions.cuDeviceCanAccessPeer)(&mut can, of, peer) };
        self.check(from, "cuDeviceCanAccessPeer", status)?;
        Ok(can != 0)
    }

    /// True if CUDA's libraries work by this driver: they load libcuda.so.1 themselves, which may be another file.
    pub(crate) fn is_everybodys(&self) -> bool {
        use libloading::os::unix::{Library, RTLD_LAZY};
        /// Of Linux, where nothing is loaded by it.
        const RTLD_NOLOAD: c_int = 4;
        // SAFETY: nothing is loaded, so that nothing of it runs.
        let Ok(other) = (unsafe { Library::open(Some(SONAME), RTLD_LAZY | RTLD_NOLOAD) }) else {
            return true;
        };
        // SAFETY: the address is compared, and not called.
        let start = unsafe { other.get::<*const c_void>(b"cuInit\0") };
        let own = self.functions.cuInit as *const c_void;
        let is_own = start.is_ok_and(|start| start.into_raw().cast_const().addr() == own.addr());
        // it stays loaded by who loaded it
        std::mem::forget(other);
        is_own
    }

    /// The driver's number of a device.
    pub(crate) fn handle(&self, ordinal: usize) -> Result<CUdevice, DeviceError> {
        let count = self.device_count()?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(DeviceError::NoSuchDevice { ordinal, count })?;
        let mut device: CUdevice = 0;
        // SAFETY: there is room for the number.
        let status = unsafe { (self.functions.cuDeviceGet)(&mut device, number) };
        self.check(ordinal, "cuDeviceGet", status)?;
        Ok(device)
    }

    /// Makes an error of what is no success. `device`: the ordinal of the GPU that it is about.
    pub(crate) fn check(
        &self,
        device: usize,
        call: &'static str,
        status: CUresult,
    ) -> Result<(), DeviceError> {
        match status {
            CUDA_SUCCESS => Ok(()),
            _ => Err(self.error(device, call, status)),
        }
    }

    pub(crate) fn error(&self, device: usize, call: &'static str, status: CUresult) -> DeviceError {
        let failure = self.failure(status);
        match is_sticky(status) {
            true => DeviceError::Lost { device, call, failure },
            false => DeviceError::Call { device, call, failure },
        }
    }

    pub(crate) fn failure(&self, status: CUresult) -> Box<Failure> {
        failure(&self.functions, status)
    }

    /// A property of a device; none if the driver is older than the property.
    fn attribute(
        &self,
        ordinal: usize,
        device: CUdevice,
        attribute: CUdevice_attribute,
    ) -> Result<Option<c_int>, DeviceError> {
        let mut value: c_int = 0;
        // SAFETY: there is room for the number.
        let status =
            unsafe { (self.functions.cuDeviceGetAttribute)(&mut value, attribute, device) };
        if status == CUDA_ERROR_INVALID_VALUE {
            return Ok(None);
        }
        self.check(ordinal, "cuDeviceGetAttribute", status)?;
        Ok(Some(value))
    }

    fn name(&self, ordinal: usize, device: CUdevice) -> Result<String, DeviceError> {
        self.text(ordinal, "cuDeviceGetName", |room, bytes| {
            // SAFETY: there is room for as many bytes.
            unsafe { (self.functions.cuDeviceGetName)(room, bytes, device) }
        })
    }

    fn pci_bus_id(&self, ordinal: usize, device: CUdevice) -> Result<String, DeviceError> {
        let id = self.text(ordinal, "cuDeviceGetPCIBusId", |room, bytes| {
            // SAFETY: there is room for as many bytes.
            unsafe { (self.functions.cuDeviceGetPCIBusId)(room, bytes, device) }
        })?;
        // as the kernel writes it under /sys/bus/pci/devices, with four digits of a domain where they do
        let id = id.to_ascii_lowercase();
        Ok(id.strip_prefix("0000").filter(|rest| rest.len() == 12).unwrap_or(&id).to_owned())
    }

    /// What `read` writes into the room that it is given.
    fn text(
        &self,
        ordinal: usize,
        call: &'static str,
        read: impl FnOnce(*mut c_char, c_int) -> CUresult,
    ) -> Result<String, DeviceError> {
        const ROOM: usize = 256;
        let mut room = [0u8; ROOM];
        // the last byte stays 0, whatever is written
        let status = read(room.as_mut_ptr().cast(), ROOM as c_int - 1);
        self.check(ordinal, call, status)?;
        let text = CStr::from_bytes_until_nul(&room).map(CStr::to_string_lossy);
        Ok(text.map(|text| text.trim().to_owned()).unwrap_or_default())
    }

    /// As nvidia-smi writes it.
    fn uuid(&self, ordinal: usize, device: CUdevice) -> Result<String, DeviceError> {
        let mut uuid = CUuuid::default();
        // SAFETY: there is room for it.
        let status = unsafe { (self.functions.cuDeviceGetUuid_v2)(&mut uuid, device) };
        self.check(ordinal, "cuDeviceGetUuid", status)?;
        let mut text = String::from("GPU");
        for (at, byte) in uuid.bytes.into_iter().enumerate() {
            let dash = if [0, 4, 6, 8, 10].contains(&at) { "-" } else { "" };
            text += &format!("{dash}{byte:02x}");
        }
        Ok(text)
    }

    fn memory_bytes(&self, ordinal: usize, device: CUdevice) -> Result<u64, DeviceError> {
        let mut bytes = 0;
        // SAFETY: there is room for the number.
        let status = unsafe { (self.functions.cuDeviceTotalMem_v2)(&mut bytes, device) };
        self.check(ordinal, "cuDeviceTotalMem", status)?;
        // fits: a size of this machine
        Ok(bytes as u64)
    }
}

fn start_with(
    call: &'static str,
    functions: &Functions,
    status: CUresult,
) -> Result<(), OpenError> {
    if status == CUDA_SUCCESS {
        return Ok(());
    }
    let mend = forbidden_file().unwrap_or_else(|| mend(status).to_owned());
    Err(OpenError::Start { call, failure: failure(functions, status), mend })
}

/// What to say of a file of the driver's that is there and that this process may not open: the driver itself says that
/// there is no GPU.
fn forbidden_file() -> Option<String> {
    let may = |file| rustix::fs::access(file, Access::READ_OK | Access::WRITE_OK).is_ok();
    let file = FILES.into_iter().find(|file| Path::new(file).exists() && !may(*file))?;
    Some(format!(
        "this user may not open {file}: sudo chmod a+rw {file}, or join the group that `ls -l {file}` shows"
    ))
}

fn failure(functions: &Functions, code: CUresult) -> Box<Failure> {
    let text = |read: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: there is room for the pointer.
        let known = unsafe { read(code, &mut text) } == CUDA_SUCCESS && !text.is_null();
        // SAFETY: the driver's texts are constants that end with a 0.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    Box::new(Failure {
        code,
        name: text(functions.cuGetErrorName).unwrap_or_else(|| "an unknown error".to_owned()),
        text: text(functions.cuGetErrorString).unwrap_or_else(|| "no description".to_owned()),
    })
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {} ({})", self.version, self.looked_for)
    }
}
