//! How this program is linked.

/// A program that is linked statically: it has no dynamic linker, and computes and talks by what is in it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadsNothing {
    pub why: &'static str,
    pub mend: &'static str,
}

/// Why no library of the system can be loaded, whatever the system has; none: it can.
pub const LOADS_NOTHING: Option<LoadsNothing> = if cfg!(target_feature = "crt-static") {
    Some(LoadsNothing {
        why: "this tensorwire is linked statically and loads no libraries",
        mend: "take the archive whose name does not end in -static, the package, or a build of your own",
    })
} else {
    None
};
