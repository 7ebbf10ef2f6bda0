//! Tasks of the project itself. Knows the project as text and as `cargo metadata`; uses none of its
//! crates, so that it works while they do not compile.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub mod gpu;
pub mod licences;
pub mod ptx;
pub mod soft_roce;
pub mod tidy;
pub mod verbs;

/// The folder of the workspace.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        // this crate is a direct child of the workspace, so there is always a parent
        let built = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        // a program that was carried to another machine is started in a checkout
        let here = std::env::current_dir().unwrap_or_default();
        let is_checkout = here.join("xtask/Cargo.toml").is_file();
        if is_checkout && !built.is_dir() { here } else { built.to_owned() }
    });
    &ROOT
}
