//! How much of a suite is tried: a fixed part that suffices for each change, or all of it, where TENSORWIRE_LONG is set.

/// True if whoever runs the tests asks for all of them (`scripts/test.sh --long`).
pub fn is_long() -> bool {
    std::env::var_os("TENSORWIRE_LONG").is_some()
}

/// `all` if all is asked for, else `part`.
pub fn of<T>(part: T, all: T) -> T {
    if is_long() { all } else { part }
}
