//! Words that belong to one crate. A word in the wrong crate is the first sign that a thing is being
//! built in the wrong place.

use super::{Code, Complaint};

/// A row of tokens, who may say it, and what everybody else does instead.
struct Word {
    says: Says,
    allowed: Where,
    instead: &'static str,
}

enum Says {
    /// These tokens in a row.
    Tokens(&'static [&'static str]),
    /// An identifier that starts so.
    Prefix(&'static str),
    /// A type, or a literal of that type.
    Number(&'static str),
}

enum Where {
    /// Only below these folders of `crates/`.
    In(&'static [&'static str]),
    /// Anywhere in `crates/` but in these.
    NotIn(&'static [&'static str]),
}

/// Crates in which `unsafe` lives.
const UNSAFE: &[&str] =
    &["memory", "fabric", "device", "fakecuda", "cuda", "kernels", "mpi", "python"];
const THREADS: &[&str] = &[
    "baselines",
    "bench",
    "cli",
    "collectives/src/communicator",
    "doctor",
    "fabric",
    "fakecuda",
    "launch",
    // loom's, which are none of the system's
    "memory/src/loom_tests.rs",
    "runtime",
    "tensorwire",
    "testkit",
    "train",
];
const CLOCKS: &[&str] = &["base", "bench", "cli", "doctor", "fabric", "launch", "testkit", "train"];
/// `println!` and its like panic when nobody reads; nobody needs them.
const OUTPUT: &[&str] = &["cli/src/output.rs"];
/// Where places in memory are computed that are written to without another look.
const KERNELS: &[&str] = &["kernels/src/cpu"];
/// The environment says which tests must not skip, and a skip says why. It says what a driver without a GPU is.
const ENVIRONMENT: &[&str] = &["cli", "fakecuda", "tensorwire", "testkit"];
/// A model says how many orders were tried.
const COMPLAINTS: &[&str] = &["base/src/sync/modelled.rs", "cli/src/output.rs", "testkit"];
const NO_ELEMENTS: &[&str] = &["fabric", "memory"];

const ASK_FABRIC: &str = "ask the fabric for it by its API";
const SAFE: &str = "build it from what those crates offer, or move it there";
const ARGUMENT: &str = "take it as an argument; the command line reads the environment";
const BLOCKING: &str = "block with a deadline, or poll";
const NO_THREADS: &str = "be called from a thread that the runtime, train or fabric owns";
const RETURN_IT: &str = "return it, log it with tracing, or say it through cli/src/output.rs";
const BYTES: &str = "move bytes; only crates above know what they mean";
const ASSERT: &str = "say assert: what is written to rests on it in every build";
const DEADLINE: &str = "take a Deadline, or use tensorwire_base::Clock";

const WORDS: &[Word] = &[
    word(Says::Prefix("ibv_"), Where::In(&["fabric/src/verbs"]), ASK_FABRIC),
    word(Says::Tokens(&["unsafe"]), Where::In(UNSAFE), SAFE),
    word(Says::Tokens(&["std", "::", "env"]), Where::In(ENVIRONMENT), ARGUMENT),
    word(Says::Tokens(&["tokio", "::"]), Where::In(&["baselines"]), BLOCKING),
    word(Says::Tokens(&["thread", "::", "spawn"]), Where::In(THREADS), NO_THREADS),
    word(Says::Tokens(&["thread", "::", "scope"]), Where::In(THREADS), NO_THREADS),
    word(Says::Tokens(&["thread", "::", "Builder"]), Where::In(THREADS), NO_THREADS),
    word(Says::Tokens(&["println", "!"]), Where::In(OUTPUT), RETURN_IT),
    word(Says::Tokens(&["print", "!"]), Where::In(OUTPUT), RETURN_IT),
    word(Says::Tokens(&["eprintln", "!"]), Where::In(COMPLAINTS), RETURN_IT),
    word(Says::Tokens(&["eprint", "!"]), Where::In(OUTPUT), RETURN_IT),
    word(Says::Number("f32"), Where::NotIn(NO_ELEMENTS), BYTES),
    word(Says::Number("f64"), Where::NotIn(NO_ELEMENTS), BYTES),
    word(Says::Tokens(&["Instant", "::", "now"]), Where::In(CLOCKS), DEADLINE),
    word(Says::Prefix("debug_assert"), Where::NotIn(KERNELS), ASSERT),
    word(Says::Tokens(&["SystemTime"]), Where::In(CLOCKS), DEADLINE),
];

const fn word(says: Says, allowed: Where, instead: &'static str) -> Word {
    Word { says, allowed, instead }
}

/// Holds one file's words against the crates they belong to; `file` is its path in the project. Items
/// under `#[cfg(test)]` and files of tests are free, and so is everything outside of `crates/*/src`.
pub fn check_words(file: &str, code: &Code) -> Vec<Complaint> {
    let Some(place) = file.strip_prefix("crates/").filter(|place| place.contains("/src/")) else {
        return Vec::new();
    };
    let mut complaints = Vec::new();
    for word in WORDS.iter().filter(|word| !word.allowed.holds(place)) {
        let lines = word.says.lines(code);
        complaints.extend(lines.into_iter().map(|line| {
            let (name, crates, instead) = (word.says.name(), word.allowed.crates(), word.instead);
            Complaint::new(file, line, format!("`{name}` belongs {crates}; {instead}"))
        }));
    }
    complaints
}

/// A library that may not say `unsafe` has the compiler forbid it.
pub fn check_forbids_unsafe(file: &str, text: &str) -> Option<Complaint> {
    let name = file.strip_suffix("/src/lib.rs")?;
    let name = name.strip_prefix("crates/").unwrap_or(name);
    let forbids = text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    let message = "crate without `#![forbid(unsafe_code)]`; add it below the `//!` lines";
    (!forbids && !UNSAFE.contains(&name)).then(|| Complaint::new(file, 1, message.to_owned()))
}

impl Says {
    fn lines(&self, code: &Code) -> Vec<usize> {
        let outside = |test: &dyn Fn(&str) -> bool| {
            let tokens = code.tokens.iter().filter(|token| !token.in_test);
            tokens.filter(|token| test(&token.text)).map(|token| token.line).collect()
        };
        match self {
            Says::Tokens(pattern) => {
                code.find(pattern).filter(|token| !token.in_test).map(|token| token.line).collect()
            }
            Says::Prefix(prefix) => outside(&|text| text.starts_with(prefix)),
            Says::Number(name) => outside(&|text| {
                let decimal =
                    text.starts_with(|c: char| c.is_ascii_digit()) && !text.starts_with("0x");
                text == *name || decimal && text.ends_with(name)
            }),
        }
    }

    fn name(&self) -> String {
        match self {
            Says::Tokens(pattern) => pattern.concat(),
            Says::Prefix(name) | Says::Number(name) => (*name).to_owned(),
        }
    }
}

impl Where {
    /// `place` is a path below `crates/`.
    fn holds(&self, place: &str) -> bool {
        let below = |folders: &[&str]| {
            let rest = folders.iter().filter_map(|folder| place.strip_prefix(folder));
            rest.into_iter().any(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self {
            Where::In(folders) => below(folders),
            Where::NotIn(folders) => !below(folders),
        }
    }

    fn crates(&self) -> String {
        match self {
            Where::In(folders) => format!("to {}", folders.join(", ")),
            Where::NotIn(folders) => format!("to any crate but {}", folders.join(", ")),
        }
    }
}
