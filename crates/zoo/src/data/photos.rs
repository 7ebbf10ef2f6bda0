//! Photographs: JPEG and PNG files in folders, decoded when they are asked for, cut out and scaled to the size that a model
//! takes. Training sees a random part of each, mirrored or not, another in each epoch; the test sees the middle.
//!
//! Colours are 0..=1, less ImageNet's mean, by its standard deviation, as the literature trains.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorwire_nn::order::random;
use tensorwire_nn::{Data, Dataset, Description, Result, Sample};

use super::crop::{middle_part, random_part};
use super::decode::Decoded;
use super::error::DataError;
use super::folder::{ImageFile, Listing};
use super::kind::SampleKind;
use super::sources::{Given, Opened};
use super::table::numbered;

/// Mean and standard deviation of ImageNet's red, green and blue, in 0..=1.
const COLOURS: [[f32; 2]; 3] = [[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]];
/// Those of grey values: the means of both.
const GREY: [[f32; 2]; 1] = [[0.449, 0.226]];
/// The random streams that choose parts are numbered from here on. Those below put epochs in order.
const PART_STREAMS: u64 = 1 << 61;
/// Files after one that is no image that are tried in its place.
const REPLACEMENTS_MAX: usize = 100;

/// Photographs of a folder, split into train and test.
#[derive(Debug)]
pub struct ImageFolder {
    pub train: Photos,
    /// None: too few for one.
    pub test: Option<Photos>,
}

/// Photographs with their classes: "input" `f32[batch, h, w, c]` and "labels" `i32[batch]`.
#[derive(Debug)]
pub struct Photos {
    root: PathBuf,
    files: Vec<ImageFile>,
    /// Height, width and channels that samples get.
    dims: [usize; 3],
    /// The names of the folders: class `i` is folder `i`.
    classes: Arc<[String]>,
    /// Random parts; none: the middle.
    seed: Option<u64>,
    skip_bad: bool,
    /// How often a file was no image and another took its place.
    skipped: AtomicU64,
    /// For each channel what each of its 256 values is in a sample.
    values: Vec<[f32; 256]>,
}

pub(super) fn open(given: &Given, kind: SampleKind, seed: u64) -> Opened {
    let SampleKind::Images { dims, .. } = kind else { unreachable!("{kind:?} of images") };
    let folder = ImageFolder::open(&given.files[0], dims, given.has("skip-bad"), seed)?;
    Ok(match folder.test {
        Some(test) => (folder.train, test).into(),
        None => Data::from(folder.train),
    })
}

impl ImageFolder {
    /// Finds the images in `root/train` and `root/val`, or in `root`, of which a tenth is then for the test: a folder a class.
    /// Samples are of `dims` = `[height, width, channels]`, of 3 channels or of 1. With `skip_bad` the next file takes the
    /// place of one that is no image.
    ///
    /// # Errors
    /// When there are no such folders. Images are read only when they are asked for.
    pub fn open(
        root: &Path,
        dims: [usize; 3],
        skip_bad: bool,
        seed: u64,
    ) -> Result<ImageFolder, DataError> {
        let Listing { classes, train, test } = Listing::read(root, seed)?;
        let classes: Arc<[String]> = classes.into();
        let photos = |files: Vec<ImageFile>, seed| Photos {
            root: root.to_owned(),
            files,
            dims,
            classes: Arc::clone(&classes),
            seed,
            skip_bad,
            skipped: AtomicU64::new(0),
            values: match dims[2] {
                1 => GREY.map(normal).to_vec(),
                _ => COLOURS.map(normal).to_vec(),
            },
        };
        let test = (!test.is_empty()).then(|| photos(test, None));
        Ok(ImageFolder { train: photos(train, Some(seed)), test })
    }
}

/// What each value of a channel of this mean and deviation is in a sample.
fn normal([mean, deviation]: [f32; 2]) -> [f32; 256] {
    // fits: 0 to 255
    std::array::from_fn(|value| (value as f32 / 255.0 - mean) / deviation)
}

/// The luma of a colour (ITU-R BT.601, as JPEG has it).
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    // fits: a mean of bytes
    ((sum + 500) / 1000) as u8
}

impl Photos {
    /// How often a file was no image and another took its place.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Writes image `index` as epoch `epoch` sees it.
    fn write(&self, index: usize, epoch: u64, into: &mut [f32]) -> Result<(), DataError> {
        let path = self.root.join(&self.files[index].path);
        let no_image = |reason: String| {
            let file = path.display().to_string();
            match self.skip_bad {
                true => DataError::SkippedImage { file, reason },
                false => DataError::NoImage { file, reason },
            }
        };
        let [height, width, channels] = self.dims;
        let bytes = std::fs::read(&path).map_err(|error| no_image(error.to_string()))?;
        let source = Decoded::read(&bytes).map_err(no_image)?;
        let (part, mirrored) = match self.seed {
            Some(seed) => {
                // fits: nobody takes so many samples
                let stream = PART_STREAMS + epoch * self.files.len() as u64 + index as u64;
                random_part(source.size, &mut random(seed, stream))
            }
            // fits: an image's side is below 2^32
            None => (middle_part(source.size, [width as u32, height as u32]), false),
        };
        let pixels = source.scaled(part, [width, height]).map_err(no_image)?;
        for (from, to) in pixels.chunks_exact(width).zip(into.chunks_exact_mut(width * channels)) {
            let values = to.chunks_exact_mut(channels);
            match mirrored {
                true => from.iter().rev().zip(values).for_each(|(from, to)| self.pixel(from, to)),
                false => from.iter().zip(values).for_each(|(from, to)| self.pixel(from, to)),
            }
        }
        Ok(())
    }

    fn pixel(&self, colour: &[u8; 3], to: &mut [f32]) {
        match to {
            [value] => *value = self.values[0][usize::from(grey(*colour))],
            _ => {
                for ((value, &byte), of_byte) in to.iter_mut().zip(colour).zip(&self.values) {
                    *value = of_byte[usize::from(byte)];
                }
            }
        }
    }

    /// Counts a file that is no image, and says so.
    fn skip(&self, error: &DataError) {
        let skipped = 1 + self.skipped.fetch_add(1, Ordering::Relaxed);
        // each of the first ten, and then ever fewer
        if skipped <= 10 || skipped.is_power_of_two() {
            tracing::warn!(skipped, %error, "the next image takes its place");
        }
    }
}

impl Dataset for Photos {
    fn name(&self) -> String {
        "images".to_owned()
    }

    fn describe(&self) -> Description {
        SampleKind::Images { dims: self.dims, classes: self.classes.len() }.describe()
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let epoch = sample.epoch();
        let tries = match self.skip_bad {
            true => self.files.len().min(REPLACEMENTS_MAX),
            false => 1,
        };
        let mut first = None;
        for ahead in 0..tries {
            let chosen = (index + ahead) % self.files.len();
            match self.write(chosen, epoch, sample.values("input")?) {
                // fits: classes are labels
                Ok(()) => return sample.set_label("labels", self.files[chosen].class as i32),
                Err(error) if self.skip_bad => self.skip(first.insert(error)),
                Err(error) => return Err(error.into()),
            }
        }
        let file = self.root.join(&self.files[index].path).display().to_string();
        let reason = first.map_or_else(String::new, |error| error.to_string());
        Err(DataError::NoImages { file, bad: tries - 1, reason }.into())
    }

    fn varies(&self) -> bool {
        self.seed.is_some()
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn class_names(&self) -> Option<&[String]> {
        Some(&self.classes)
    }

    fn note(&self) -> Option<String> {
        let [height, width, channels] = self.dims;
        let colours = if channels == 1 { "grey" } else { "in colours" };
        let classes = numbered(&self.classes);
        let why = "; files that are no images are skipped: the next one takes their place";
        let skips = if self.skip_bad { why } else { "" };
        Some(format!("{classes}; images are made {height}×{width}, {colours}{skips}"))
    }
}
