//! Photographs: JPEG and PNG files in folders, decoded when they are asked for, cut out and scaled to the size that a model
//! takes. Training sees a random part of each, mirrored or not, another in each epoch; the test sees the middle.
//!
//! Colours are 0..=1, less ImageNet's mean, by its standard deviation, as the literature trains.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageFormat, ImageReader};
use tensorwire_nn::order::random;
use tensorwire_nn::{Data, Dataset, Description, Result, Sample};

use super::crop::{Part, middle_part, random_part};
use super::error::DataError;
use super::folder::{ImageFile, Listing};
use super::kind::SampleKind;
use super::sources::{Given, Opened};

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
    /// The names of the folders: class `i` is folder `i`.
    pub classes: Vec<String>,
}

/// Photographs with their classes: "input" `f32[batch, h, w, c]` and "labels" `i32[batch]`.
#[derive(Debug)]
pub struct Photos {
    root: PathBuf,
    files: Vec<ImageFile>,
    /// Height, width and channels that samples get.
    dims: [usize; 3],
    classes: usize,
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
        let photos = |files: Vec<ImageFile>, seed| Photos {
            root: root.to_owned(),
            files,
            dims,
            classes: classes.len(),
            seed,
            skip_bad,
            skipped: AtomicU64::new(0),
            values: match dims[2] {
                1 => GREY.map(normal).to_vec(),
                _ => COLOURS.map(normal).to_vec(),
            },
        };
        let test = (!test.is_empty()).then(|| photos(test, None));
        Ok(ImageFolder { train: photos(train, Some(seed)), test, classes })
    }
}

/// What each value of a channel of this mean and deviation is in a sample.
fn normal([mean, deviation]: [f32; 2]) -> [f32; 256] {
    // fits: 0 to 255
    std::array::from_fn(|value| (value as f32 / 255.0 - mean) / deviation)
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
            DataError::NoImage { file, reason }
        };
        let [height, width, channels] = self.dims;
        let bytes = std::fs::read(&path).map_err(|error| no_image(error.to_string()))?;
        let source = decode(&bytes, channels).map_err(no_image)?;
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
        for (from, to) in
            pixels.chunks_exact(width * channels).zip(into.chunks_exact_mut(width * channels))
        {
            let columns = from.chunks_exact(channels);
            let values = to.chunks_exact_mut(channels);
            match mirrored {
                true => columns.rev().zip(values).for_each(|(from, to)| self.pixel(from, to)),
                false => columns.zip(values).for_each(|(from, to)| self.pixel(from, to)),
            }
        }
        Ok(())
    }

    fn pixel(&self, from: &[u8], to: &mut [f32]) {
        for ((value, &byte), of_byte) in to.iter_mut().zip(from).zip(&self.values) {
            *value = of_byte[usize::from(byte)];
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
        SampleKind::Images { dims: self.dims, classes: self.classes }.describe()
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

    fn note(&self) -> Option<String> {
        let why = "files that are no images are skipped: the next one takes their place";
        self.skip_bad.then(|| why.to_owned())
    }
}

/// An image in memory: rows of pixels, each of one byte a channel.
struct Decoded {
    size: [u32; 2],
    channels: usize,
    pixels: Vec<u8>,
}

/// Decodes a file of a JPEG or PNG, whatever it is named.
fn decode(bytes: &[u8], channels: usize) -> Result<Decoded, String> {
    // in one line
    let said = |error: &dyn std::error::Error| {
        error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let reader = reader.map_err(|error| said(&error))?;
    match reader.format() {
        Some(ImageFormat::Jpeg) if !ends(bytes) => {
            return Err(format!("its JPEG has no end in {} bytes", bytes.len()));
        }
        Some(ImageFormat::Jpeg | ImageFormat::Png) => {}
        _ if bytes.is_empty() => return Err("it is empty".to_owned()),
        _ => return Err("it is neither JPEG nor PNG".to_owned()),
    }
    let image = reader.decode().map_err(|error| said(&error))?;
    let size = [image.width(), image.height()];
    let pixels = match channels {
        1 => image.into_luma8().into_raw(),
        _ => image.into_rgb8().into_raw(),
    };
    Ok(Decoded { size, channels, pixels })
}

/// True if the last scan of a JPEG has an end behind it. The decoder makes what is missing grey and says nothing.
fn ends(jpeg: &[u8]) -> bool {
    let last = |marker: [u8; 2]| jpeg.windows(2).rposition(|two| two == marker);
    match (last([0xff, 0xda]), last([0xff, 0xd9])) {
        (Some(scan), Some(end)) => scan < end,
        _ => false,
    }
}

impl Decoded {
    /// A part of it, scaled to `[width, height]`: each pixel is the mean of those around it, nearer ones weighing more.
    fn scaled(&self, part: Part, [width, height]: [usize; 2]) -> Result<Vec<u8>, String> {
        let kind = if self.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        let [source_width, source_height] = self.size;
        let source = ImageRef::new(source_width, source_height, &self.pixels, kind);
        let source = source.map_err(|error| error.to_string())?;
        // fits: a model's images are smaller than 2^32
        let mut scaled = Image::new(width as u32, height as u32, kind);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop(part.left, part.top, part.width, part.height);
        match self.channels {
            1 => resize::<U8>(&source, &mut scaled, &options)?,
            _ => resize::<U8x3>(&source, &mut scaled, &options)?,
        }
        Ok(scaled.into_vec())
    }
}

/// Scales an image whose pixels are of type `P`: what takes any type brings 3 MB of code for all of them into a program.
fn resize<P: PixelTrait>(
    source: &ImageRef<'_>,
    scaled: &mut Image<'_>,
    options: &ResizeOptions,
) -> Result<(), String> {
    let (Some(source), Some(mut scaled)) =
        (source.typed_image::<P>(), scaled.typed_image_mut::<P>())
    else {
        return Err("its pixels are of another type than its channels say".to_string());
    };
    let done = Resizer::new().resize_typed(&source, &mut scaled, options);
    done.map_err(|error| error.to_string())
}
