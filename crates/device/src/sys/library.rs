//! Tables of the functions of CUDA's libraries, each found by its name.

/// Makes prototypes a table, and a list of them for who holds them against a header.
macro_rules! library {
    (
        $(#[$doc:meta])* $visible:vis struct $table:ident, $prototypes:ident;
        $($name:ident: fn($($type:ty),* $(,)?) -> $result:ty;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $visible struct $table {
            $(pub $name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl $table {
            /// # Errors
            /// The name of a function that is not there.
            ///
            /// # Safety
            /// `library` is the one of these functions, in a version that has them so, and is never unloaded.
            pub(crate) unsafe fn of(library: &libloading::Library) -> Result<$table, &'static str> {
                $(
                    // SAFETY: a function of that name has this type in the library's header; that it is this library is
                    // the caller's duty.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) -> $result>(
                            stringify!($name).as_bytes(),
                        )
                    };
                    let $name = *found.map_err(|_| stringify!($name))?;
                )*
                Ok($table { $($name,)* })
            }
        }

        /// Name, types of the arguments and of the result, as they are written here.
        pub const $prototypes: &[(&str, &[&str], &str)] =
            &[$((stringify!($name), &[$(stringify!($type)),*], stringify!($result))),*];

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}

/// Makes constants, and a list of them for who holds them against a header.
macro_rules! numbers {
    ($list:ident; $($name:ident = $value:literal,)*) => {
        $(pub const $name: std::ffi::c_uint = $value;)*

        /// Each constant and its value.
        pub const $list: &[(&str, std::ffi::c_uint)] = &[$((stringify!($name), $value)),*];
    };
}

pub(crate) use {library, numbers};
