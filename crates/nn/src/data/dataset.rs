//! The traits that users implement to bring their data: [`Dataset`], and [`Stream`] for endless data. All samples have the
//! same size. Order, batches and the workers' shares are made here.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorwire_tensor::Element;

use super::description::{Description, Extent, Feature, Values};
use super::memory::{BatchMemory, Filled, elements, spec};
use super::order::permutation;
use super::source::BatchSource;
use crate::PADDING_LABEL;
use crate::error::{Error, Result, said};

/// A number of samples of the same size, read in any order.
///
/// Every worker opens the data set and reads its share of each step's samples, in an order that depends only on seed and
/// epoch. A separate thread makes batches one step ahead.
///
/// ```
/// use tensorwire_nn::{Dataset, Description, DType, Result, Sample};
///
/// /// Points of the plane, and whether they lie in the unit circle.
/// struct Points(Vec<[f32; 2]>);
///
/// impl Dataset for Points {
///     fn describe(&self) -> Description {
///         Description::new().input("input", DType::F32, &[2]).labels("labels", 2)
///     }
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///
///     fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
///         let [x, y] = self.0[index];
///         sample.set("input", &[x, y])?;
///         sample.set_label("labels", i32::from(x * x + y * y < 1.0))
///     }
/// }
/// ```
pub trait Dataset: Send + Sync {
    /// The name that messages use. By default the name of the type.
    fn name(&self) -> String {
        short_type_name::<Self>().to_string()
    }

    /// The tensors of a sample. Must always return the same.
    fn describe(&self) -> Description;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes sample `index`, which is below [`Dataset::len`]. Must write every tensor, and must always write the same for the
    /// same index and the same [`Sample::epoch`]. May be called from several threads at once.
    ///
    /// # Errors
    /// When the sample cannot be read. An error or a panic ends the job with a message that names the sample.
    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()>;

    /// True if a sample is not the same in every epoch, such as an image that is cropped at random: [`Sample::epoch`] then
    /// counts. False by default, and each epoch is epoch 0.
    fn varies(&self) -> bool {
        false
    }

    /// True if each epoch takes the samples in the order of their numbers, which somebody has chosen. False by default: each
    /// takes them in a random order of its own.
    fn keeps_order(&self) -> bool {
        false
    }

    /// True if making a sample takes much time, such as decoding an image: batches are then made on several threads. False by
    /// default.
    fn is_costly(&self) -> bool {
        false
    }

    /// A remark for users, shown once when training starts.
    fn note(&self) -> Option<String> {
        None
    }

    /// The names of the classes, by their numbers. They are saved beside the weights, which refuse data that number them otherwise.
    /// None by default: classes have numbers alone.
    fn class_names(&self) -> Option<&[String]> {
        None
    }
}

/// Endless samples of the same size, read in order: generated data, or more data than a job ever reads.
///
/// With W workers of batch B, step s reads samples s·W·B to (s+1)·W·B, worker by worker. A job that resumes at a step
/// therefore resumes at the same samples.
pub trait Stream: Send + Sync {
    /// The name that messages use. By default the name of the type.
    fn name(&self) -> String {
        short_type_name::<Self>().to_string()
    }

    /// The tensors of a sample. Must always return the same.
    fn describe(&self) -> Description;

    /// Writes sample `index`, as [`Dataset::get`] does. Any index may be asked for.
    ///
    /// # Errors
    /// As for [`Dataset::get`].
    fn get(&self, index: u64, sample: &mut Sample<'_>) -> Result<()>;

    /// True if making a sample takes much time, as [`Dataset::is_costly`].
    fn is_costly(&self) -> bool {
        false
    }
}

/// The name of a type without its path and its parameters.
pub(crate) fn short_type_name<T: ?Sized>() -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}

/// The tensors of one sample, to be written. What they hold before is unspecified.
pub struct Sample<'a> {
    features: &'a [Feature],
    rows: Vec<&'a mut [u8]>,
    /// Which of them were asked for.
    written: Vec<bool>,
    epoch: u64,
}

impl Sample<'_> {
    /// The epoch in which the sample is trained on, from 0. Always 0 in a test, in a [`Stream`], and of data that do not
    /// [vary](Dataset::varies).
    ///
    /// What is left to chance should depend on a seed, this and the sample's index alone, as by [`order::random`]; then every
    /// worker, and a job that goes on from any step, sees the same.
    ///
    /// [`order::random`]: crate::order::random
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The elements of tensor `name`, to be written in row-major order.
    ///
    /// # Errors
    /// When there is no such tensor, or its elements are of another type.
    pub fn values<T: Element>(&mut self, name: &str) -> Result<&mut [T]> {
        let Some(at) = self.features.iter().position(|feature| feature.name == name) else {
            let known: Vec<String> = self.features.iter().map(Feature::to_string).collect();
            return Err(Error::other(format!("there is no '{name}' in {}", known.join(", "))));
        };
        self.written[at] = true;
        elements(name, self.features[at].dtype, self.rows[at])
    }

    /// Writes tensor `name`.
    ///
    /// # Errors
    /// When there is no such tensor, or it has another number of elements or another type.
    pub fn set<T: Element>(&mut self, name: &str, values: &[T]) -> Result<()> {
        let into = self.values::<T>(name)?;
        let (wanted, found) = (into.len(), values.len());
        if wanted != found {
            return Err(Error::other(format!(
                "'{name}' has {wanted} elements, {found} were given"
            )));
        }
        into.copy_from_slice(values);
        Ok(())
    }

    /// Writes tensor `name`, which is one i32.
    ///
    /// # Errors
    /// As [`Sample::set`].
    pub fn set_label(&mut self, name: &str, label: i32) -> Result<()> {
        self.set(name, &[label])
    }

    /// Checks what was written.
    fn check(&self) -> Result<(), String> {
        for ((feature, row), written) in self.features.iter().zip(&self.rows).zip(&self.written) {
            let name = &feature.name;
            if !written {
                return Err(format!("'{name}' was not written; get() must write every tensor"));
            }
            let Some(bound) = feature.values.bound() else { continue };
            // i32, of which the description was checked
            let values = row.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
            let is_inside = |value: &i32| usize::try_from(*value).is_ok_and(|v| v < bound);
            if let Some(value) = values.into_iter().find(|value| !is_inside(value)) {
                return Err(format!("'{name}' is {value}, outside 0..{bound}"));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Sample<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("features", &self.features).finish_non_exhaustive()
    }
}

/// A [`Dataset`] in batches.
pub(super) struct Samples<D> {
    data: D,
    description: Description,
}

impl<D: Dataset> Samples<D> {
    pub(super) fn new(data: D) -> Samples<D> {
        let description = data.describe();
        Samples { data, description }
    }
}

impl<D: Dataset> BatchSource for Samples<D> {
    fn name(&self) -> String {
        self.data.name()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn samples(&self) -> Option<usize> {
        Some(self.data.len())
    }

    fn note(&self) -> Option<String> {
        self.data.note()
    }

    fn class_names(&self) -> Option<&[String]> {
        self.data.class_names()
    }

    fn is_costly(&self) -> bool {
        self.data.is_costly()
    }

    /// Of data that vary, the entry of sample `i` in epoch `e` is `i + e × samples`.
    fn order(&self, _workers: usize, _batch: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let samples = self.data.len();
        let mut order = match self.data.keeps_order() {
            true => (0..samples).collect(),
            false => permutation(samples, seed, epoch),
        };
        if self.data.varies() {
            // fits: nobody takes so many epochs
            let first = (epoch as usize).wrapping_mul(samples);
            order.iter_mut().for_each(|entry| *entry = entry.wrapping_add(first));
        }
        order
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        let samples = self.data.len().max(1);
        let get = |entry: usize, sample: &mut Sample<'_>| {
            sample.epoch = (entry / samples) as u64;
            self.data.get(entry % samples, sample)
        };
        let number = |entry: usize| entry % samples;
        fill(&self.name(), &self.description, entries, batch, memory, (&get, &number))
    }
}

/// A [`Stream`] in batches.
pub(super) struct StreamSamples<S> {
    stream: S,
    description: Description,
}

impl<S: Stream> StreamSamples<S> {
    pub(super) fn new(stream: S) -> StreamSamples<S> {
        let description = stream.describe();
        StreamSamples { stream, description }
    }
}

impl<S: Stream> BatchSource for StreamSamples<S> {
    fn name(&self) -> String {
        self.stream.name()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn samples(&self) -> Option<usize> {
        None
    }

    fn is_costly(&self) -> bool {
        self.stream.is_costly()
    }

    fn fill(
        &self,
        entries: &[usize],
        batch: usize,
        memory: &mut dyn BatchMemory,
    ) -> Result<Filled> {
        // fits: a usize has at most 64 bits here
        let get = |index: usize, sample: &mut Sample<'_>| self.stream.get(index as u64, sample);
        fill(&self.name(), &self.description, entries, batch, memory, (&get, &|index| index))
    }
}

/// Writes the sample of an entry, and says which sample an entry is.
type Get<'a> = (&'a dyn Fn(usize, &mut Sample<'_>) -> Result<()>, &'a dyn Fn(usize) -> usize);

/// Writes the samples `entries`, one a row, and pads up to `batch` rows.
fn fill(
    data: &str,
    description: &Description,
    entries: &[usize],
    batch: usize,
    memory: &mut dyn BatchMemory,
    (get, number): Get<'_>,
) -> Result<Filled> {
    let features = description.features();
    let mut wanted = Vec::with_capacity(features.len());
    for feature in features {
        let dims = batch_dims(data, feature, batch)?;
        wanted.push((feature.name.as_str(), spec(&feature.name, feature.dtype, &dims)?));
    }
    let tensors = memory.claim(&wanted)?;
    let mut rows = Vec::with_capacity(tensors.len());
    for bytes in tensors {
        // a feature has elements, so a row has bytes
        let row = (bytes.len() / batch).max(1);
        rows.push(bytes.chunks_exact_mut(row));
    }
    for &index in entries {
        let rows = rows.iter_mut().filter_map(Iterator::next).collect();
        let written = vec![false; features.len()];
        let mut sample = Sample { features, rows, written, epoch: 0 };
        let done = catch_unwind(AssertUnwindSafe(|| get(index, &mut sample)));
        let (reason, cause) = match done {
            Ok(Ok(())) => (sample.check().err(), None),
            Ok(Err(error)) => (Some(error.to_string()), Some(Box::new(error))),
            Err(panic) => (Some(format!("get() panicked: {}", said(&*panic))), None),
        };
        if let Some(reason) = reason {
            let (data, sample) = (data.to_string(), number(index));
            return Err(Error::Sample { data, sample, reason, cause });
        }
    }
    for (feature, rows) in features.iter().zip(rows) {
        for row in rows {
            match feature.values {
                Values::Labels(_) => {
                    row.as_chunks_mut().0.fill(PADDING_LABEL.to_ne_bytes());
                }
                Values::Any | Values::Below(_) => row.fill(0),
            }
        }
    }
    Ok(Filled { samples: entries.len(), labels: entries.len() * description.labels_each() })
}

/// The dimensions of a batch's tensor, in which samples lie one after the other.
fn batch_dims(data: &str, feature: &Feature, batch: usize) -> Result<Vec<usize>> {
    let mut dims = Vec::with_capacity(feature.dims.len());
    for (axis, dim) in feature.dims.iter().enumerate() {
        match (axis, dim) {
            (0, Extent::Batch(each)) => dims.push(each.saturating_mul(batch)),
            (1.., Extent::Known(size)) => dims.push(*size),
            _ => {
                let reason = format!(
                    "'{feature}' is not of one size for each sample; describe it by input(), labels() \
                     or tokens(), or implement BatchSource"
                );
                return Err(Error::Description { data: data.to_string(), reason });
            }
        }
    }
    Ok(dims)
}
