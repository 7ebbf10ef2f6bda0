//! Tasks of the project itself. Knows the project as text and as `cargo metadata`; uses none of its
//! crates, so that it works while they do not compile.
#![forbid(unsafe_code)]

pub mod gpu;
pub mod licences;
pub mod ptx;
pub mod soft_roce;
pub mod tidy;
pub mod verbs;

/// The folder of the workspace.
pub fn root() -> &'static std::path::Path {
    // this crate is a direct child of the workspace, so there is always a parent
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
