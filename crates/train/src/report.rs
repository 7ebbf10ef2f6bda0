//! What a process of a training job says of its steps, and at the end.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use serde::{Deserialize, Deserializer, Serialize};
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_runtime::Counters;

/// One step of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// From 1.
    pub step: u64,
    /// Mean loss over the samples that this process saw.
    pub loss: f32,
    /// How this process waited for tensors in this step.
    pub polling: Polling,
    /// Of a step after which there is an evaluation: the last of an epoch ([`crate::TrainConfig::evaluate_each_epoch`]), or one
    /// of [`crate::TrainConfig::evaluate_every`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochEnd>,
}

impl Progress {
    /// What was found behind the step, by whom and where there was an evaluation.
    pub(crate) fn evaluation(&self) -> Option<&Evaluation> {
        self.epoch.as_ref()?.evaluation.as_ref()
    }
}

/// How far a worker is at the end of an epoch, or of a step that is evaluated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochEnd {
    /// Since its first step began, without its own evaluations.
    pub seconds: f64,
    /// Tensors that it exchanged so far.
    pub traffic: Traffic,
    /// Of worker 0.
    pub evaluation: Option<Evaluation>,
}

/// Bytes of tensors that a worker exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Pushed to a store and pulled from it.
    pub store_bytes: u64,
    /// Inside its client: 2(n - 1)/n of a vector that n members reduce, which is the least that each must send, and
    /// a vector that is broadcast, at each who gets it. How many of them move, its transport and algorithm decide.
    pub client_bytes: u64,
}

/// What weights do with the test's samples: what the model measures, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    #[serde(deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
}

impl Evaluation {
    /// The share of the labels that are found, if the model classifies.
    pub fn accuracy(&self) -> Option<f64> {
        self.metrics.get(ACCURACY).copied()
    }

    /// The mean loss.
    pub fn loss(&self) -> Option<f64> {
        self.metrics.get(LOSS).copied()
    }

    /// What the model measures besides.
    pub fn others(&self) -> BTreeMap<String, f64> {
        let mut metrics = self.metrics.clone();
        metrics.retain(|name, _| name != ACCURACY && name != LOSS);
        metrics
    }
}

impl FromIterator<(String, f64)> for Evaluation {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(metrics: I) -> Evaluation {
        Evaluation { metrics: metrics.into_iter().collect() }
    }
}

const ACCURACY: &str = "accuracy";
pub(crate) const LOSS: &str = "loss";

/// How a process waited for tensors (Xue et al. §4), in one step or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polling {
    /// Times a tensor was asked for, and how often it was not there yet.
    pub polls: u64,
    pub poll_misses: u64,
    /// Times the process blocked, since nothing could run until something arrived.
    pub waits: u64,
    /// Time lost in polls that found nothing, and in waits.
    pub poll_ns: u64,
    pub wait_ns: u64,
    /// Time in which something was under way: a tensor that was asked for in vain, a send, or what a group reduces.
    #[serde(default)]
    pub under_way_ns: u64,
}

/// What a process reports when its part is done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TrainReport {
    /// The last step that it made; 0 from servers that only answer.
    #[serde(default)]
    pub steps: u64,
    /// The job was told to end, and did so behind that step.
    #[serde(default)]
    pub interrupted: bool,
    /// Mean loss of its replicas in the last step; none for servers.
    pub final_loss: Option<f64>,
    /// From a worker's first step to the end of its last; 0 from servers that only answer, and know not what is trained.
    pub train_seconds: f64,
    /// What `warm_steps` steps took behind the first one, which waits until all processes have set up; 0 of fewer than two.
    pub warm_seconds: f64,
    #[serde(default)]
    pub warm_steps: u64,
    /// Seconds a step, of each of these in turn; where there are many, of as many in a row as make 128 numbers at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm_pieces: Vec<f64>,
    /// Bytes that the runtime copied from memory to memory on their way from one process to another.
    pub bytes_copied: u64,
    /// All bytes that the runtime copied, those of `bytes_copied` among them: a key `bytes_copied_…` for each purpose.
    #[serde(flatten, with = "copies_by_purpose")]
    pub copies: Copies,
    /// Only worker 0 evaluates: the share of the test's labels that are found, and the mean loss over them.
    pub test_accuracy: Option<f64>,
    pub test_loss: Option<f64>,
    /// What that took.
    #[serde(default)]
    pub test_seconds: f64,
    /// What else the model measures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
    /// The most memory that the process had at once, in bytes.
    pub peak_bytes: u64,
    pub weights_sha256: Option<String>,
    pub kernels: String,
    /// Of all training steps.
    pub polling: Polling,
    pub bytes_written: u64,
    /// Memory that peers of a store may read or write, in bytes.
    #[serde(default)]
    pub registered_bytes: u64,
    /// What was pushed to a store and pulled from it, in bytes.
    #[serde(default)]
    pub store_bytes: u64,
    /// Kernels of a step that ran while gradients of the step before were still reduced or pushed, and weights changed by them.
    #[serde(default)]
    pub early_kernels: u64,
    /// Graphs that a device was told in the place of single kernels.
    #[serde(default)]
    pub graphs_launched: u64,
    /// How a device is told a step, and why so; none without one.
    #[serde(default)]
    pub device_steps: Option<String>,
    /// Matrix products and convolutions that a device left to a library.
    #[serde(default)]
    pub library_calls: u64,
    /// Operators that a device computed because a library that it has does not take them.
    #[serde(default)]
    pub library_refusals: u64,
    /// Vectors that NCCL reduced with the devices of others.
    #[serde(default)]
    pub nccl_reductions: u64,
    /// Of what was copied to devices, the bytes that were while the step before computed.
    #[serde(default)]
    pub bytes_copied_ahead: u64,
}

impl TrainReport {
    /// Counts what was copied.
    pub(crate) fn add_copies(&mut self, copies: &Copies) {
        self.copies.merge(copies);
        self.bytes_copied = self.copies.exchanged();
    }
}

/// The key of a purpose in JSON.
pub fn copies_key(purpose: CopyPurpose) -> String {
    format!("bytes_copied_{}", purpose.name())
}

/// [`Copies`] as one key a purpose.
pub(crate) mod copies_by_purpose {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;
    use tensorwire_memory::{Copies, CopyPurpose};

    use super::copies_key;

    pub(crate) fn serialize<S: Serializer>(copies: &Copies, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(CopyPurpose::ALL.map(|purpose| (copies_key(purpose), copies.of(purpose))))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Copies, D::Error> {
        let found = BTreeMap::<String, Value>::deserialize(from)?;
        let mut copies = Copies::default();
        for purpose in CopyPurpose::ALL {
            let bytes = found.get(&copies_key(purpose)).and_then(Value::as_u64);
            copies.add(purpose, bytes.unwrap_or_default());
        }
        Ok(copies)
    }
}

impl Sub for Traffic {
    type Output = Traffic;

    /// What was added since `earlier`.
    fn sub(self, earlier: Traffic) -> Traffic {
        Traffic {
            store_bytes: self.store_bytes.saturating_sub(earlier.store_bytes),
            client_bytes: self.client_bytes.saturating_sub(earlier.client_bytes),
        }
    }
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        // what a member says never panics here
        Traffic {
            store_bytes: self.store_bytes.saturating_add(other.store_bytes),
            client_bytes: self.client_bytes.saturating_add(other.client_bytes),
        }
    }
}

impl From<Counters> for Polling {
    fn from(counters: Counters) -> Polling {
        let Counters { polls, poll_misses, waits, poll_ns, wait_ns, under_way_ns, .. } = counters;
        Polling { polls, poll_misses, waits, poll_ns, wait_ns, under_way_ns }
    }
}

impl Polling {
    fn with(self, other: Polling, combine: fn(u64, u64) -> u64) -> Polling {
        Polling {
            polls: combine(self.polls, other.polls),
            poll_misses: combine(self.poll_misses, other.poll_misses),
            waits: combine(self.waits, other.waits),
            poll_ns: combine(self.poll_ns, other.poll_ns),
            wait_ns: combine(self.wait_ns, other.wait_ns),
            under_way_ns: combine(self.under_way_ns, other.under_way_ns),
        }
    }
}

impl Add for Polling {
    type Output = Polling;

    fn add(self, other: Polling) -> Polling {
        // what a member says never panics here
        self.with(other, u64::saturating_add)
    }
}

impl Sub for Polling {
    type Output = Polling;

    /// What was added since `earlier`.
    fn sub(self, earlier: Polling) -> Polling {
        self.with(earlier, u64::saturating_sub)
    }
}

impl std::iter::Sum for Polling {
    fn sum<I: Iterator<Item = Polling>>(all: I) -> Polling {
        all.fold(Polling::default(), Add::add)
    }
}

/// What is measured may be no finite number. JSON writes null for that, which is read as one that is none.
pub(crate) fn numbers<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let read = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(read.into_iter().map(|(name, number)| (name, number.unwrap_or(f64::NAN))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_without_a_finite_loss_is_told_as_one() {
        for loss in [f64::NAN, f64::INFINITY] {
            let evaluation = Evaluation::from_iter([(LOSS.to_string(), loss)]);
            let report = TrainReport { metrics: evaluation.metrics.clone(), ..Default::default() };
            let told = serde_json::to_value(&evaluation).unwrap();
            let heard: Evaluation = serde_json::from_value(told).unwrap();
            assert!(heard.loss().is_some_and(f64::is_nan), "{heard:?}");
            let told = serde_json::to_value(&report).unwrap();
            let heard: TrainReport = serde_json::from_value(told).unwrap();
            assert!(heard.metrics[LOSS].is_nan(), "{heard:?}");
        }
    }

    #[test]
    fn what_was_copied_is_a_key_for_each_purpose_and_comes_back() {
        let (mut copies, mut report) = (Copies::default(), TrainReport::default());
        for (at, purpose) in CopyPurpose::ALL.into_iter().enumerate() {
            copies.add(purpose, 1 << at);
        }
        report.add_copies(&copies);
        let json = serde_json::to_value(&report).unwrap();
        // staging, messages and store
        assert_eq!(json["bytes_copied"], 0b111);
        assert_eq!(
            (&json["bytes_copied_store"], &json["bytes_copied_feeding"]),
            (&4.into(), &16.into())
        );
        let same: TrainReport = serde_json::from_value(json).unwrap();
        assert_eq!((same.copies, same.bytes_copied), (copies, 0b111));
        // of a member that counts less
        let json = serde_json::json!({"bytes_copied": 7, "kernels": "cpu", "train_seconds": 0.0,
            "warm_seconds": 0.0, "peak_bytes": 0, "bytes_written": 0, "polling": Polling::default()});
        let old: TrainReport = serde_json::from_value(json).unwrap();
        assert_eq!((old.bytes_copied, old.copies), (7, Copies::default()));
    }
}
