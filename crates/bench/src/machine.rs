//! What a figure was measured on.

use serde::Serialize;

/// The machine, as far as a reader of figures wants to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// The processor's own name.
    pub cpu: String,
    /// What this program was built from, as far as it was known then.
    pub commit: &'static str,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let commit = env!("TENSORWIRE_COMMIT");
        Machine { cores: cores(), cpu: cpu_name(&text), commit }
    }
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_name(cpuinfo: &str) -> String {
    let names = cpuinfo.lines().filter_map(|line| line.strip_prefix("model name"));
    let name = names.filter_map(|rest| rest.split_once(':')).map(|(_, name)| name.trim()).next();
    name.unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_first_processor_counts() {
        let text =
            "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t: a\nmodel name\t: Other";
        assert_eq!(cpu_name(text), "Some CPU @ 2 GHz");
        assert_eq!(cpu_name("processor: 0\n"), "unknown");
    }
}
