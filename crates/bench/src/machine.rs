//! What a figure was measured on.

use std::path::Path;
use std::time::SystemTime;

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
    /// Its name.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// The moment, as RFC 3339 has it: `2026-11-26T01:23:45Z`.
    pub date: String,
    /// Network interfaces and RDMA ports that are up, with their speed where the system says it: `eth0, 10000 Mb/s`.
    pub links: Vec<String>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let system = rustix::system::uname();
        Machine {
            cores: cores(),
            cpu: cpu_name(&text),
            commit: env!("TENSORWIRE_COMMIT"),
            host: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            links: links_of(Path::new("/sys/class")),
        }
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

/// What `/sys/class`, or a folder like it, says of links, by name.
fn links_of(class: &Path) -> Vec<String> {
    let mut links = Vec::new();
    for (interface, name) in entries(&class.join("net")) {
        if name != "lo" && said(&interface.join("operstate")).is_some_and(|state| state == "up") {
            // -1 where there is none to speak of, as of a virtual one
            let speed = said(&interface.join("speed")).and_then(|text| text.parse::<u64>().ok());
            links.push(speed.map_or_else(|| name.clone(), |speed| format!("{name}, {speed} Mb/s")));
        }
    }
    for (device, name) in entries(&class.join("infiniband")) {
        for (port, number) in entries(&device.join("ports")) {
            if said(&port.join("state")).is_some_and(|state| state.ends_with("ACTIVE")) {
                let rate = said(&port.join("rate")).unwrap_or_default();
                links.push(format!("{name}:{number}, {rate}"));
            }
        }
    }
    links
}

/// What a folder holds, in the order of names; nothing where there is none.
fn entries(folder: &Path) -> Vec<(std::path::PathBuf, String)> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = found
        .map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
        .collect();
    found.sort();
    found
}

fn said(file: &Path) -> Option<String> {
    Some(std::fs::read_to_string(file).ok()?.trim().to_string())
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

    #[test]
    fn links_that_are_up_are_named_with_their_speed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (name, state, speed) in [
            ("eth1", "down", "1000\n"),
            ("eth0", "up", "10000\n"),
            ("lo", "up", "1\n"),
            ("veth7", "up", "-1\n"),
        ] {
            write(&format!("net/{name}/operstate"), &format!("{state}\n"));
            write(&format!("net/{name}/speed"), speed);
        }
        write("infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        write("infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        write("infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        let expected = ["eth0, 10000 Mb/s", "veth7", "mlx5_0:1, 100 Gb/sec (4X EDR)"];
        assert_eq!(links_of(folder.path()), expected);
        assert!(links_of(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn a_date_sorts_as_it_is_written() {
        let date = Machine::here().date;
        assert!(date.len() == 20 && date.ends_with('Z') && date.as_str() > "2026", "{date}");
    }
}
