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

/// The cases of an earlier run. The lines of a case are written at once, behind its end: one that has a line is done.
#[derive(Debug, Default)]
pub struct Earlier {
    cases: HashMap<String, DoneCase>,
}

/// A case that was done, by its last line.
#[derive(Clone, Debug, PartialEq)]
pub struct DoneCase {
    line: Value,
}

impl Earlier {
    /// Lines without a `case` are of no evaluation, and count for nothing.
    ///
    /// # Errors
    /// The first line that is not JSON, counted from 1.
    pub fn read(text: &str) -> Result<Earlier, usize> {
        let mut cases = HashMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Value = serde_json::from_str(line).map_err(|_| at + 1)?;
            if let Some(case) = line["case"].as_str() {
                cases.insert(case.to_string(), DoneCase { line });
            }
        }
        Ok(Earlier { cases })
    }

    /// A case, if it is done; if it was several times, then the last one.
    pub fn case(&self, key: &str) -> Option<&DoneCase> {
        self.cases.get(key)
    }
}

impl DoneCase {
    pub(super) fn line(&self) -> &Value {
        &self.line
    }

    /// True if this program measured it on this machine.
    pub fn is_of(&self, here: &Machine) -> bool {
        let by = &self.line["machine"];
        by["commit"] == here.commit && by["host"] == here.host.as_str()
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
        let here = Machine::here();
        let (commit, host) = (here.commit, &here.host);
        let text = format!(
            r#"{{"bench":"step","machine":{{"commit":"a","host":"h"}}}}

{{"bench":"throughput","case":"throughput: x","machine":{{"commit":"{commit}","host":"{host}"}}}}
{{"bench":"throughput","case":"throughput: y","machine":{{"commit":"{commit}","host":"{host}"}}}}
{{"bench":"throughput","case":"throughput: x","machine":{{"commit":"b","host":"{host}"}}}}
"#
        );
        let earlier = Earlier::read(&text).unwrap();
        let is_of_here = |key| earlier.case(key).map(|done| done.is_of(&here));
        assert_eq!(is_of_here("throughput: x"), Some(false), "the last counts");
        assert_eq!(is_of_here("throughput: y"), Some(true));
        assert_eq!(is_of_here("throughput, quick: x"), None);
        let cut_off = format!("{text}{{\"bench\":\"thr");
        assert_eq!(Earlier::read(&cut_off).unwrap_err(), 6);
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
