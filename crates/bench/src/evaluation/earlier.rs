//! What the file of an earlier run has, so that the same command goes on behind it.

use std::collections::HashMap;

use serde_json::Value;

use super::{Case, Figure};
use crate::machine::Machine;

/// What the lines of a case have as `case`: its figure, its name, and that it is of a quick run.
pub fn case_key(figure: &Figure, case: &Case, quick: bool) -> String {
    let (figure, name) = (figure.name, case.name());
    if quick { format!("{figure}, quick: {name}") } else { format!("{figure}: {name}") }
}

/// The lines of an earlier run. Those of a case are written at once, behind its end: a case that has one is done.
#[derive(Debug, Default)]
pub struct Earlier {
    lines: Vec<Value>,
    cases: HashMap<String, MeasuredBy>,
}

/// By which program, and on which machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredBy {
    pub commit: String,
    pub host: String,
}

impl Earlier {
    /// Lines without a `case` are of no evaluation, and count for nothing.
    ///
    /// # Errors
    /// The first line that is not JSON, counted from 1.
    pub fn read(text: &str) -> Result<Earlier, usize> {
        let mut earlier = Earlier::default();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Value = serde_json::from_str(line).map_err(|_| at + 1)?;
            let Some(case) = line["case"].as_str() else { continue };
            let of = |field: &str| line["machine"][field].as_str().unwrap_or_default().to_string();
            let by = MeasuredBy { commit: of("commit"), host: of("host") };
            earlier.cases.insert(case.to_string(), by);
            earlier.lines.push(line);
        }
        Ok(earlier)
    }

    /// Who measured a case last; none: nobody has.
    pub fn measured_by(&self, key: &str) -> Option<&MeasuredBy> {
        self.cases.get(key)
    }

    /// Lines of cases, in their order.
    pub fn lines(&self) -> &[Value] {
        &self.lines
    }
}

impl MeasuredBy {
    /// True of this program on this machine.
    pub fn is(&self, here: &Machine) -> bool {
        self.commit == here.commit && self.host == here.host
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::evaluation::{FIGURES, FigureScope};
    use tensorwire_train::Exchange;

    #[test]
    fn a_case_is_done_once_it_has_a_line() {
        let text = r#"{"bench":"step","machine":{"commit":"a","host":"h"}}

{"bench":"throughput","case":"throughput: x","machine":{"commit":"a","host":"h"}}
{"bench":"throughput","case":"throughput: x","machine":{"commit":"b","host":"h"}}
"#;
        let earlier = Earlier::read(text).unwrap();
        let by = MeasuredBy { commit: "b".to_string(), host: "h".to_string() };
        assert_eq!(earlier.measured_by("throughput: x"), Some(&by));
        assert_eq!(earlier.measured_by("throughput, quick: x"), None);
        assert_eq!(earlier.lines().len(), 2);
        assert!(!by.is(&Machine::here()));
        let here = Machine::here();
        assert!(MeasuredBy { commit: here.commit.to_string(), host: here.host.clone() }.is(&here));
        let cut_off = format!("{text}{{\"bench\":\"thr");
        assert_eq!(Earlier::read(&cut_off).unwrap_err(), 5);
    }

    #[test]
    fn no_two_cases_of_an_evaluation_are_called_the_same() {
        let exchanges =
            vec![Exchange::ZeroCopy, Exchange::Write, Exchange::Copy, Exchange::GrpcTcp];
        for (quick, no_gpu) in [(true, None), (false, None), (false, Some("none".to_string()))] {
            let (exchanges, no_rdma) = (exchanges.clone(), no_gpu.clone());
            let scope = FigureScope { quick, exchanges, no_gpu, no_rdma, ..FigureScope::default() };
            for figure in FIGURES {
                let mut keys = HashSet::new();
                for case in figure.cases(&scope) {
                    let key = case_key(figure, &case, quick);
                    assert!(keys.insert(key.clone()), "{key}");
                }
            }
        }
    }
}
