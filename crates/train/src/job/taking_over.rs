//! A job whose launcher was killed, and whose processes wait for another (`--launcher-patience`): it is found by the folder of its
//! checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tensorwire_launch::{Abandoned, JobSpec, JobUpdate, Takeover, TakeoverError};

use super::{Payload, Prepared, Supply};
use crate::config::TrainConfig;
use crate::resizing::Resizing;
use crate::run::{JobFailure, TrainUpdate};

/// What may differ between the command that began a job and the one that takes it over.
const OF_THE_COMMAND: [&str; 4] = ["resume", "restarts", "trace", "launcher_patience_ms"];

impl Prepared {
    /// Returns where the launcher of this job writes down what another needs; none if no other can find it.
    pub(crate) fn record(&self, how: &JobSpec) -> Option<PathBuf> {
        let (checkpoint, folder) = (self.config.checkpoint.as_ref()?, how.status_folder.as_ref()?);
        // whoever started the processes starts them again
        how.gathering.is_none().then(|| Takeover::record_of(folder, &checkpoint.path))
    }

    /// Returns how this job outlives its launcher, if it does.
    pub(crate) fn takeover(&self, how: &JobSpec) -> Option<Takeover> {
        let patience = Duration::from_millis(self.config.launcher_patience_ms?);
        Some(Takeover { record: self.record(how)?, patience })
    }

    /// Returns this job as its processes run it already.
    ///
    /// # Errors
    /// Why it cannot be taken over, in words.
    pub(crate) fn as_abandoned(
        &self,
        left: &Abandoned,
        resizing: Option<&Resizing<'_>>,
        supply: &dyn Supply,
    ) -> Result<Prepared, String> {
        if !self.config.resumes_own() {
            return Err("--resume auto goes on with it".to_string());
        }
        let other_version = || "they are of another version".to_string();
        let Payload { config, shape, .. } = left.payload().ok_or_else(other_version)?;
        if !left.is_whole() {
            return Err("not all of them are left".to_string());
        }
        let resized = resizing.zip(self.config.resized_as(&config));
        let same = match &resized {
            Some((resizing, config)) => resizing.prepared_as(config.clone(), supply),
            // what is traced are the first steps
            None => {
                let config = TrainConfig { trace: None, ..self.config.clone() };
                Ok(Prepared { config, ..self.clone() })
            }
        };
        let same = same.map_err(|error| error.to_string())?;
        let (here, there) = (compared(&same.config), compared(&config));
        if here != there {
            let differing = differing(&here, &there).join(", ");
            return Err(format!("they were started with other options: {differing}"));
        }
        if let Some((resizing, _)) = resized {
            resizing.runs_as(&same.config);
        }
        Ok(Prepared { shape, ..same })
    }

    /// What is said of this job's members, where they are others than the `whole` job began with.
    pub(crate) fn resized_from(&self, whole: &Prepared) -> Option<TrainUpdate> {
        let (roles, workers) = (self.roles(), self.workers_by_rank());
        (workers != whole.workers_by_rank()).then_some(JobUpdate::WasResized { roles, workers })
    }
}

/// Returns what an earlier launcher left of the job that keeps its state where this one does, if it is to outlive its launcher.
///
/// # Errors
/// When that launcher runs.
pub(crate) fn abandoned(
    prepared: &Prepared,
    how: &JobSpec,
) -> Result<Option<Abandoned>, TakeoverError> {
    let record = prepared.record(how);
    record.map_or(Ok(None), |record| Abandoned::find(&record))
}

/// Returns the job as its members run it already, with other workers where it is `resizing`, if an earlier launcher left them; `how`
/// takes them over then. Those of another job are ended.
pub(crate) fn take_over(
    prepared: &Prepared,
    resizing: Option<&Resizing<'_>>,
    supply: &dyn Supply,
    how: &mut JobSpec,
    on_update: &mut dyn FnMut(TrainUpdate),
) -> Result<Option<Prepared>, TakeoverError> {
    let Some(left) = abandoned(prepared, how)? else { return Ok(None) };
    match prepared.as_abandoned(&left, resizing, supply) {
        Ok(same) => {
            how.abandoned = Some(left);
            Ok(Some(same))
        }
        Err(why) => {
            left.end();
            on_update(JobUpdate::NotTakenOver { why, step: prepared.steps_done() });
            Ok(None)
        }
    }
}

/// Returns the job as it begins behind its newest checkpoint, where not all came whose launcher had died.
pub(crate) fn begin_instead(
    prepared: &Prepared,
    how: &JobSpec,
    left: Abandoned,
    failure: JobFailure,
    on_update: &mut dyn FnMut(TrainUpdate),
) -> Result<Prepared, JobFailure> {
    // where a file system knows no claims another launcher may have them by now
    abandoned(prepared, how)?;
    left.end();
    match prepared.again() {
        Ok(next) => {
            let (why, step) = (failure.to_string(), next.steps_done());
            how.status.iter().for_each(|status| status.launches_again(&why));
            on_update(JobUpdate::NotTakenOver { why, step });
            Ok(next)
        }
        Err(why) => Err(JobFailure::NotRestarted { failure: Box::new(failure), why }),
    }
}

/// What differs between two configurations, by name.
fn differing(here: &Value, there: &Value) -> Vec<String> {
    let (Some(fields), Some(others)) = (here.as_object(), there.as_object()) else {
        return Vec::new();
    };
    let mut names: Vec<String> =
        others.keys().filter(|name| !fields.contains_key(*name)).cloned().collect();
    for (name, value) in fields {
        let other = others.get(name).unwrap_or(&Value::Null);
        if value == other {
            continue;
        }
        match differing(value, other) {
            inner if inner.is_empty() => names.push(name.clone()),
            inner => names.extend(inner.iter().map(|inner| format!("{name}.{inner}"))),
        }
    }
    names
}

fn compared(config: &TrainConfig) -> Value {
    let mut value = serde_json::to_value(config).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| !OF_THE_COMMAND.contains(&name.as_str()));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn the_same_job_may_be_resumed_and_nothing_else_may_differ() {
        let first = TrainConfig { launcher_patience_ms: Some(5), ..config() };
        let again = TrainConfig { resume: Some("auto".into()), restarts: 2, ..config() };
        assert_eq!(compared(&first), compared(&again));
        let other = TrainConfig { batch: config().batch + 1, seed: 9, ..config() };
        assert_eq!(differing(&compared(&first), &compared(&other)), ["batch", "seed"]);
    }
}
