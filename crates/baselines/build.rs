//! Tells the crate which version of gRPC it is built with: figures beside it are of that version. The library does not say it.

fn main() {
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={lock}");
    let text = std::fs::read_to_string(lock).unwrap_or_default();
    // where the crate is built elsewhere, nobody says it
    if let Some(version) = version_of("tonic", &text) {
        println!("cargo:rustc-env=TENSORWIRE_TONIC={version}");
    }
}

/// The version of a package in a lock file.
fn version_of<'a>(name: &str, lock: &'a str) -> Option<&'a str> {
    let (_, behind) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(behind.split_once('"')?.0)
}
