//! libibverbs, loaded when it is wanted: a table of its functions, and what its headers define inline, which no
//! library exports. Who calls has the duties that the manual of each function states. Owns nothing.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use tensorwire_base::LOADS_NOTHING;

/// The library's name, as the dynamic linker looks for it.
const SONAME: &str = "libibverbs.so.1";

/// A structure of the library that is known by its address alone.
macro_rules! opaque {
    ($($name:ident,)*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

/// Makes prototypes a table, and each function of `every` a method of it; a library may lack those of `later`.
macro_rules! functions {
    (
        every {
            $(pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
        }
        later {
            $(pub fn $later:ident($($_argument:ident: $later_type:ty),* $(,)?) -> $later_result:ty;)*
        }
    ) => {
        /// The functions of libibverbs.so.1.
        pub struct Library {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $(pub(super) $later: Option<unsafe extern "C" fn($($later_type),*) -> $later_result>,)*
        }

        impl Library {
            /// The error is the name of a function that is not there.
            ///
            /// # Safety
            /// `library` is libibverbs.so.1, and is never unloaded.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<Library, &'static str> {
                Ok(Library {
                    // SAFETY: a function of that name in libibverbs.so.1 has this type (its headers); the
                    // library is the caller's duty.
                    $($name: unsafe { super::find(library, stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                    // SAFETY: as above.
                    $($later: unsafe { super::find(library, stringify!($later)) },)*
                })
            }

            $(
                /// # Safety
                /// As its manual says.
                pub unsafe fn $name(&self, $($argument: $type),*) $(-> $result)? {
                    // SAFETY: the caller's duty.
                    unsafe { (self.$name)($($argument),*) }
                }
            )*
        }

        /// Name, types of the arguments and of the result, as they are written.
        #[cfg(test)]
        pub(super) const PROTOTYPES: &[(&str, &[&str], &str)] = &[
            $((stringify!($name), &[$(stringify!($type)),*], concat!($(stringify!($result))?)),)*
            $((stringify!($later), &[$(stringify!($later_type)),*], stringify!($later_result)),)*
        ];
    };
}

#[allow(dead_code, non_camel_case_types, reason = "names and fields are the library's")]
#[allow(unreachable_pub, reason = "written by a program")]
mod declarations;
#[cfg(test)]
mod layout_tests;

pub(in crate::verbs) use declarations::*;

/// `query_port` of `struct verbs_context`.
type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

/// Loads the library at the first call, for good. `ibv_fork_init` is not called: kernels from 5.12 on keep registered memory where
/// the NIC finds it when a process forks, and before, its `madvise` refuses memory of GPUs and of large pages.
///
/// # Errors
/// What the dynamic linker says, or what is missing in the library.
pub(in crate::verbs) fn load() -> Result<&'static Library, String> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        if let Some(program) = LOADS_NOTHING {
            return Err(program.why.to_string());
        }
        // SAFETY: what libibverbs does when it is loaded is prepare its own data.
        let library = unsafe { libloading::Library::new(SONAME) };
        let library = ManuallyDrop::new(library.map_err(|error| error.to_string())?);
        // SAFETY: the library of that name, which is not unloaded.
        unsafe { Library::of(&library) }.map_err(|name| format!("{SONAME} has no function {name}"))
    });
    loaded.as_ref().map_err(String::clone)
}

/// A function by its name; where the library has several versions of it, the default one, which a program
/// that is linked with the library gets too.
///
/// # Safety
/// `T` is the type of a pointer to that function, and is used only while the library is loaded.
unsafe fn find<T: Copy>(library: &libloading::Library, name: &str) -> Option<T> {
    // SAFETY: the caller's duty.
    unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SONAME)
    }
}

/// What verbs.h wraps in functions of its own. The same duties as there.
impl Library {
    /// `ibv_query_port`: the provider's own function fills as much as the caller has room for, where there is
    /// one; the library's fills what all versions of the structure have.
    ///
    /// # Safety
    /// The context is open, and there is room for the attributes.
    pub(super) unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attributes: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: an open context is the caller's duty.
        match unsafe { provider_query_port(context) } {
            // SAFETY: the provider's function, with the size of what it is to fill.
            Some(query) => unsafe { query(context, port, attributes, size_of::<ibv_port_attr>()) },
            // SAFETY: room for the attributes is the caller's duty; the older structure is their beginning.
            None => unsafe {
                attributes.write_bytes(0, 1);
                self.ibv_query_port(context, port, attributes.cast())
            },
        }
    }

    /// `ibv_query_gid_table`: how many entries were filled, or a negative errno.
    ///
    /// # Safety
    /// The context is open, and there is room for `entries_max` entries.
    pub(super) unsafe fn query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        entries_max: usize,
    ) -> isize {
        match self._ibv_query_gid_table {
            // SAFETY: the caller's duty; flags are not defined yet.
            Some(query) => unsafe {
                query(context, entries, entries_max, 0, size_of::<ibv_gid_entry>())
            },
            None => -(libc::EOPNOTSUPP as isize),
        }
    }

    /// `ibv_reg_mr`: optional access takes the newer call, which leaves out what the kernel does not know; a
    /// library without that call knows no optional access either.
    ///
    /// # Safety
    /// The domain is alive, and the range stays mapped until the registration ends.
    pub(super) unsafe fn reg_mr(
        &self,
        domain: *mut ibv_pd,
        start: *mut c_void,
        bytes: usize,
        access: ibv_access_flags,
    ) -> *mut ibv_mr {
        match self.ibv_reg_mr_iova2 {
            // SAFETY: the caller's duty; peers name the memory by its address here.
            Some(register) if access & IB_UVERBS_ACCESS_OPTIONAL_RANGE != 0 => unsafe {
                register(domain, start, bytes, start.addr() as u64, access)
            },
            // SAFETY: the caller's duty.
            _ => unsafe {
                let required = access & !IB_UVERBS_ACCESS_OPTIONAL_RANGE;
                self.ibv_reg_mr(domain, start, bytes, required as c_int)
            },
        }
    }

    /// `ibv_reg_dmabuf_mr`, for peers to name the memory by `address`; `errno` is ENOSYS where the library has no such call.
    ///
    /// # Safety
    /// The domain is alive, and so is what the descriptor shows until the registration ends.
    pub(super) unsafe fn reg_dmabuf_mr(
        &self,
        domain: *mut ibv_pd,
        (fd, offset): (c_int, u64),
        (address, bytes): (u64, usize),
        access: ibv_access_flags,
    ) -> Result<*mut ibv_mr, std::io::Error> {
        let register = self.ibv_reg_dmabuf_mr;
        let register = register.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOSYS))?;
        // SAFETY: the caller's duty. fits: flags are small.
        Ok(unsafe { register(domain, offset, bytes, address, fd, access as c_int) })
    }

    /// `ibv_query_qp_data_in_order`: 1 if the device promises it for that operation.
    ///
    /// # Safety
    /// The queue pair is alive.
    pub(super) unsafe fn query_qp_data_in_order(
        &self,
        queue_pair: *mut ibv_qp,
        operation: ibv_wr_opcode,
    ) -> c_int {
        // SAFETY: the caller's duty.
        self.ibv_query_qp_data_in_order
            .map_or(0, |query| unsafe { query(queue_pair, operation, 0) })
    }
}

/// The provider's function for ports (`verbs_get_ctx_op` of verbs.h). A provider that has such functions lays a
/// `struct verbs_context` around the context, says so in `abi_compat`, and in `sz` how much of it there is.
///
/// # Safety
/// The context is open.
unsafe fn provider_query_port(context: *mut ibv_context) -> Option<QueryPort> {
    // SAFETY: an open context.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return None;
    }
    let before = |bytes: verbs_context_before| context.wrapping_byte_sub(bytes as usize);
    // SAFETY: the context ends a verbs_context, as it says; its size is the field right before the context.
    let bytes = unsafe { before(VERBS_CONTEXT_SZ_BEFORE).cast::<usize>().read() };
    let needed = VERBS_CONTEXT_QUERY_PORT_BEFORE as usize + size_of::<ibv_context>();
    // SAFETY: the verbs_context reaches as far back as this field, which is a function of this type or null.
    (bytes >= needed)
        .then(|| unsafe {
            before(VERBS_CONTEXT_QUERY_PORT_BEFORE).cast::<Option<QueryPort>>().read()
        })
        .flatten()
}

/// # Safety
/// The queue is alive, and there is room for `entries_max` completions.
pub(super) unsafe fn ibv_poll_cq(
    queue: *mut ibv_cq,
    entries_max: c_int,
    completions: *mut ibv_wc,
) -> c_int {
    // SAFETY: a living queue has a context, whose provider has set its operations.
    let poll = unsafe { (*(*queue).context).ops.poll_cq };
    // SAFETY: the caller's duty.
    poll.map_or(-libc::EOPNOTSUPP, |poll| unsafe { poll(queue, entries_max, completions) })
}

/// # Safety
/// The queue is alive.
pub(super) unsafe fn ibv_req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    let request = unsafe { (*(*queue).context).ops.req_notify_cq };
    // SAFETY: the caller's duty.
    request.map_or(libc::EOPNOTSUPP, |request| unsafe { request(queue, solicited_only) })
}

/// # Safety
/// The queue pair is alive; the chain and its segments are until this returns, and what the segments name until
/// the requests have ended.
pub(super) unsafe fn ibv_post_send(
    queue_pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a living queue pair has a context, whose provider has set its operations.
    let post = unsafe { (*(*queue_pair).context).ops.post_send };
    // SAFETY: the caller's duty.
    post.map_or(libc::EOPNOTSUPP, |post| unsafe { post(queue_pair, first, bad) })
}

/// # Safety
/// As for [`ibv_post_send`].
pub(super) unsafe fn ibv_post_recv(
    queue_pair: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    let post = unsafe { (*(*queue_pair).context).ops.post_recv };
    // SAFETY: the caller's duty.
    post.map_or(libc::EOPNOTSUPP, |post| unsafe { post(queue_pair, first, bad) })
}
