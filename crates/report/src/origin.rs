//! Where lines come from: the machine, its links, the day, the program's commit, and the versions of others. As the lines say it.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::line::Line;

/// The commit of a program that was built where there is no git.
const UNKNOWN: &str = "unknown";

/// What one line says of itself; empty where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    machine: Option<String>,
    host: Option<String>,
    links: Vec<String>,
    day: Option<String>,
    commit: Option<String>,
    versions: Vec<String>,
    /// By so much times between the clocks of two hosts may be wrong.
    clock_error_us: Option<u64>,
    /// Its numbers are of a cluster that is described, and nothing beside them was measured.
    is_simulated: bool,
}

/// What several lines say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Provenance {
    /// Cores, processor and kernel.
    pub(crate) machines: BTreeSet<String>,
    pub(crate) hosts: BTreeSet<String>,
    pub(crate) links: BTreeSet<String>,
    pub(crate) days: BTreeSet<String>,
    pub(crate) commits: BTreeSet<String>,
    /// Of the systems that were measured, with their names.
    pub(crate) versions: BTreeSet<String>,
    /// The most that times between hosts may be wrong by.
    clock_error_us: Option<u64>,
    /// Lines whose numbers were measured, and lines whose numbers were simulated.
    measured: usize,
    simulated: usize,
}

impl Origin {
    pub(crate) fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    /// None if the line says nothing of it.
    pub(crate) fn of(line: &Line) -> Option<Rc<Origin>> {
        // of a run that was trained the last line says it, with all else of the run
        let is_summary = line.optional_text("summary.machine.host").is_some();
        let on = if is_summary { "summary.machine" } else { "machine" };
        let at = |name: &str| format!("{on}.{name}");
        let text = |name: &str| line.optional_text(&at(name)).map(str::to_string);
        let cut = |text: &str, length: usize| text.chars().take(length).collect::<String>();
        let commit = line.optional_text("commit").map(str::to_string).or(text("commit"));
        let origin = Origin {
            machine: text("cpu").map(|cpu| {
                machine(&cpu, line.optional_number(&at("cores")), text("kernel").as_deref())
            }),
            host: text("host"),
            links: line.optional_texts(&at("links")).into_iter().map(str::to_string).collect(),
            day: text("date").map(|date| cut(&date, "2026-11-26".len())),
            commit: commit.map(|commit| cut(&commit, 12)),
            versions: versions(line),
            // fits: positive, and far below 2^64
            clock_error_us: line
                .optional_number("clock_error_ns")
                .map(|error| (error / 1e3).ceil() as u64),
            is_simulated: line.optional_text("cluster").is_some()
                && line.optional_number("measured_step_s").is_none(),
        };
        (origin != Origin::default()).then(|| Rc::new(origin))
    }
}

impl Provenance {
    pub(crate) fn of<'a>(origins: impl IntoIterator<Item = &'a Rc<Origin>>) -> Provenance {
        let mut all = Provenance::default();
        for origin in origins {
            let Origin { machine, host, links, day, commit, versions, .. } = &**origin;
            let Origin { clock_error_us, is_simulated, .. } = &**origin;
            all.clock_error_us = all.clock_error_us.max(*clock_error_us);
            all.machines.extend(machine.clone());
            all.hosts.extend(host.clone());
            all.links.extend(links.iter().cloned());
            all.days.extend(day.clone());
            all.commits.extend(commit.clone());
            all.versions.extend(versions.iter().cloned());
            match is_simulated {
                true => all.simulated += 1,
                false => all.measured += 1,
            }
        }
        all
    }

    /// `2026-11-26`, or `2026-11-24 to 2026-11-26`.
    pub(crate) fn date(&self) -> Option<String> {
        let (first, last) = (self.days.first()?, self.days.last()?);
        Some(if first == last { first.clone() } else { format!("{first} to {last}") })
    }

    /// What was done there.
    pub(crate) fn how(&self) -> &'static str {
        match (self.measured, self.simulated) {
            (_, 0) => "Measured",
            (0, _) => "Simulated (not measured)",
            (_, _) => "Measured and simulated",
        }
    }

    /// Commit, date and host, as far as the lines say them.
    pub(crate) fn whence(&self) -> String {
        let named = |what: &str, all: &BTreeSet<String>| {
            (!all.is_empty()).then(|| format!("{what}{}", joined(all, ", ")))
        };
        let parts = [named("commit ", &self.commits), self.date(), named("host ", &self.hosts)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "its lines say neither commit, date nor host".to_string(),
            false => parts.join("; "),
        }
    }

    /// The commit that all of it is of, if it is one and known.
    pub(crate) fn commit(&self) -> Option<&str> {
        let is_one = self.commits.len() == 1;
        self.commits.first().filter(|commit| is_one && *commit != UNKNOWN).map(String::as_str)
    }

    /// For captions, which stand alone.
    pub(crate) fn sentence(&self) -> String {
        let named = |what: &str, all: &BTreeSet<String>| {
            (!all.is_empty()).then(|| format!("{what}{}", joined(all, ", ")))
        };
        let on = match self.machines.is_empty() {
            true => format!("{} on a machine that the lines do not name", self.how()),
            false => format!("{} on {}", self.how(), joined(&self.machines, "; and on ")),
        };
        let parts = [
            Some(on),
            named("host ", &self.hosts),
            named("links ", &self.links),
            self.date(),
            named("commit ", &self.commits),
            named("with ", &self.versions),
            self.clock_error_us
                .map(|error| format!("times between hosts within {error} µs, as their clocks go")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{}.", parts.join("; "))
    }
}

/// One after the other.
pub(crate) fn joined(all: &BTreeSet<String>, between: &str) -> String {
    all.iter().map(String::as_str).collect::<Vec<_>>().join(between)
}

fn machine(cpu: &str, cores: Option<f64>, kernel: Option<&str>) -> String {
    let machine = match cores {
        Some(1.0) => format!("1 core, {cpu}"),
        Some(cores) => format!("{cores} cores, {cpu}"),
        None => cpu.to_string(),
    };
    match kernel {
        Some(kernel) => format!("{machine}, Linux {kernel}"),
        None => machine,
    }
}

/// A comparison names several systems; a peer's own line has one version.
fn versions(line: &Line) -> Vec<String> {
    let named = line.texts_by_name("versions");
    let all = named.into_iter().map(|(name, version)| format!("{} {version}", system(&name)));
    let own = line.optional_text("system").or(line.optional_text("peer"));
    let own = own.zip(line.optional_text("version"));
    let own = own.map(|(name, version)| format!("{} {version}", system(name)));
    all.chain(own).collect()
}

/// As people call it; one of ours by its program, whatever its strategy.
fn system(name: &str) -> &str {
    match name {
        "tensorflow" => "TensorFlow",
        "mxnet" => "MXNet",
        "openmpi" => "Open MPI",
        "gloo" => "gloo of PyTorch",
        "tonic" => "gRPC (tonic)",
        "libzmq" => "ZeroMQ (libzmq)",
        name if name.starts_with("tensorwire ") => "tensorwire",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Option<Rc<Origin>> {
        Origin::of(&Line::read_all("a", text).unwrap()[0])
    }

    #[test]
    fn a_sentence_has_all_that_lines_say() {
        let ours = r#"{"machine":{"cores":2,"cpu":"CPU","kernel":"6.1","host":"h","date":"2026-11-26T01:02:03Z",
            "links":["eth0, 10000 Mb/s"],"commit":"0123456789abcdef"}}"#;
        let theirs = r#"{"versions":{"openmpi":"4.1","gloo":null},"machine":{"date":"2026-11-24"},"clock_error_ns":1201}"#;
        let ours = ours.replace('\n', "");
        let all = Provenance::of(&[origin(&ours).unwrap(), origin(theirs).unwrap()]);
        assert_eq!(
            all.sentence(),
            "Measured on 2 cores, CPU, Linux 6.1; host h; links eth0, 10000 Mb/s; 2026-11-24 to 2026-11-26; \
             commit 0123456789ab; with Open MPI 4.1; times between hosts within 2 µs, as their clocks go."
        );
    }

    #[test]
    fn the_summary_of_a_run_says_where_it_was() {
        let run = r#"{"summary":{"steps":9,"machine":{"cores":1,"cpu":"CPU","host":"h","commit":"0123456789abcdef"}}}"#;
        let all = Provenance::of(&[origin(run).unwrap()]);
        assert_eq!(all.sentence(), "Measured on 1 core, CPU; host h; commit 0123456789ab.");
    }

    #[test]
    fn what_was_simulated_is_not_said_to_be_measured() {
        let machine = r#""machine":{"cores":2,"cpu":"CPU"}"#;
        let simulated = format!(r#"{{"bench":"simulate","cluster":"c","step_s":1,{machine}}}"#);
        let validated =
            format!(r#"{{"bench":"simulate","cluster":"c","measured_step_s":1,{machine}}}"#);
        let [simulated, validated] = [simulated, validated].map(|text| origin(&text).unwrap());
        let says = |of: &[Rc<Origin>]| Provenance::of(of).sentence();
        assert_eq!(
            says(std::slice::from_ref(&simulated)),
            "Simulated (not measured) on 2 cores, CPU."
        );
        assert_eq!(says(std::slice::from_ref(&validated)), "Measured on 2 cores, CPU.");
        assert_eq!(says(&[simulated, validated]), "Measured and simulated on 2 cores, CPU.");
    }

    #[test]
    fn a_line_that_says_nothing_has_none() {
        assert_eq!(origin(r#"{"bench":"x","version":"1"}"#), None);
        let held = origin(r#"{"versions":{"libzmq":"4.3.5","tonic":"0.14.9"}}"#).unwrap();
        assert_eq!(held.versions, ["ZeroMQ (libzmq) 4.3.5", "gRPC (tonic) 0.14.9"]);
        let peer = origin(r#"{"system":"mxnet","version":"1.9"}"#).unwrap();
        assert_eq!(peer.versions, ["MXNet 1.9"]);
        let none = Provenance::default().sentence();
        assert_eq!(none, "Measured on a machine that the lines do not name.");
    }
}
