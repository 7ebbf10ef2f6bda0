//! Another benchmark of this program over links of a given rate: its own command, on two hosts, whose lines say which link it was. A
//! link of which this machine's cores carry less than half is no such link: that is said, and what is measured over it is of a link
//! as cores carry it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::LinkRate;
use crate::error::BenchError;
use crate::evaluation::{NotMeasured, Runner, tell_missing};

/// Of a link's rate, what cores carry at least.
const CARRIED: f64 = 0.5;
/// What a link is called that they do not fill.
const AS_CARRIED: &str = "as cores carry";

/// A benchmark over such links.
#[derive(Clone, Debug)]
pub struct LinkBench {
    /// Of the page, and of `bench evaluation --only`: where it belongs if it cannot be measured.
    pub figure: &'static str,
    pub only: &'static str,
    pub rate: LinkRate,
    /// What `tensorwire bench` is given, without the hosts and the file for its lines.
    pub arguments: Vec<String>,
    /// Where temporary files belong.
    pub scratch: PathBuf,
}

impl LinkBench {
    pub(in crate::evaluation) fn name(&self) -> String {
        format!("{} over {}", self.arguments.join(" "), self.rate.name)
    }

    fn command(&self, json: &Path) -> Vec<OsString> {
        let given = self.arguments.iter().map(OsString::from);
        let all = ["bench".into()].into_iter().chain(given);
        all.chain(["--json".into(), json.into()]).collect()
    }

    /// What is said where cores carry so many 10⁹ bytes a second of the link; none: enough.
    fn missing(&self, carried_gbs: f64) -> Option<NotMeasured> {
        let is_carried = carried_gbs >= CARRIED * self.rate.payload_gbs();
        (!is_carried).then(|| NotMeasured {
            figure: self.figure,
            subject: vec![self.rate.name],
            why: format!(
                "this machine's cores carry {:.1} Gb/s over a link of {} between two of its hosts, measured in the same run by raw sockets",
                8.0 * carried_gbs,
                self.rate.name
            ),
            command: Some(format!("tensorwire bench evaluation --only {}", self.only)),
        })
    }
}

impl Runner<'_> {
    pub(in crate::evaluation) fn link_bench(
        &mut self,
        spec: &LinkBench,
        on_line: &mut dyn FnMut(Value),
    ) -> Result<(), BenchError> {
        let carried_gbs = self.carried(spec.rate, &spec.scratch)?.gbs;
        let missing = spec.missing(carried_gbs);
        missing.iter().try_for_each(|missing| tell_missing(on_line, missing))?;
        let command = |json: &Path| spec.command(json);
        for line in self.measured_over(spec.rate, 1, &spec.scratch, &command)? {
            on_line(of_link(line, missing.is_some()));
        }
        Ok(())
    }
}

/// A line with the link that it is of.
fn of_link(mut line: Value, is_as_carried: bool) -> Value {
    if let (Value::Object(line), true) = (&mut line, is_as_carried) {
        line.insert("link".to_string(), AS_CARRIED.into());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_link_that_cores_do_not_fill_do_not_claim_its_rate() {
        let line = serde_json::json!({ "bench": "transfer", "link": "100gbit" });
        assert_eq!(of_link(line.clone(), true)["link"], "as cores carry");
        assert_eq!(of_link(line, false)["link"], "100gbit");
    }

    #[test]
    fn a_link_that_cores_do_not_carry_is_missing_and_what_they_carry_is_said() {
        let spec = LinkBench {
            figure: "xue-8",
            only: "transfer-links",
            rate: LinkRate { name: "100gbit", bits_per_second: 1e11 },
            arguments: ["transfer", "--quick"].map(str::to_string).to_vec(),
            scratch: PathBuf::new(),
        };
        assert_eq!(spec.name(), "transfer --quick over 100gbit");
        let command = spec.command(Path::new("f"));
        assert_eq!(command, ["bench", "transfer", "--quick", "--json", "f"].map(OsString::from));
        let missing = spec.missing(2.5).unwrap();
        assert_eq!(missing.subject, ["100gbit"]);
        assert!(missing.why.contains("carry 20.0 Gb/s over a link of 100gbit"), "{}", missing.why);
        assert!(spec.missing(6.5).is_none());
    }
}
