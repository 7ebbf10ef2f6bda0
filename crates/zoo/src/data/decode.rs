//! JPEG and PNG files into pixels, and parts of them scaled. Knows no sample.

use std::fmt::Display;
use std::io::Cursor;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::crop::Part;

const PNG: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
const JPEG: [u8; 2] = [0xff, 0xd8];
/// A longer side is an error: a small file can say that it is huge.
const SIDE_MAX: usize = 1 << 14;

/// An image in memory: rows of pixels of red, green and blue.
pub(super) struct Decoded {
    /// Width and height.
    pub(super) size: [u32; 2],
    pixels: Vec<u8>,
}

impl Decoded {
    /// Decodes a file of a JPEG or PNG, whatever it is named. What is transparent shows the colour below.
    ///
    /// # Errors
    /// Why it is no such image, in one line.
    pub(super) fn read(bytes: &[u8]) -> Result<Decoded, String> {
        match bytes {
            [] => Err("it is empty".to_owned()),
            _ if bytes.starts_with(&JPEG) => Decoded::jpeg(bytes),
            _ if bytes.starts_with(&PNG) => Decoded::png(bytes),
            _ => Err("it is neither JPEG nor PNG".to_owned()),
        }
    }

    fn jpeg(bytes: &[u8]) -> Result<Decoded, String> {
        if !ends(bytes) {
            return Err(format!("its JPEG has no end in {} bytes", bytes.len()));
        }
        let options = DecoderOptions::default()
            .jpeg_set_out_colorspace(ColorSpace::RGB)
            .set_max_width(SIDE_MAX)
            .set_max_height(SIDE_MAX);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        let pixels = decoder.decode().map_err(in_one_line)?;
        let info = decoder.info().ok_or("its JPEG has no size")?;
        match decoder.output_colorspace() {
            Some(ColorSpace::RGB) => {}
            other => return Err(format!("its JPEG has colours of an unknown kind: {other:?}")),
        }
        Ok(Decoded { size: [u32::from(info.width), u32::from(info.height)], pixels })
    }

    fn png(bytes: &[u8]) -> Result<Decoded, String> {
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        let mut reader = decoder.read_info().map_err(in_one_line)?;
        let size = [reader.info().width, reader.info().height];
        // fits: 64 bits here
        if size.iter().any(|&side| side as usize > SIDE_MAX) {
            return Err(format!("its PNG is of {} × {} pixels", size[0], size[1]));
        }
        let bytes = reader.output_buffer_size().ok_or("its PNG is too large")?;
        let mut frame = vec![0; bytes];
        let info = reader.next_frame(&mut frame).map_err(in_one_line)?;
        reader.finish().map_err(in_one_line)?;
        frame.truncate(info.buffer_size());
        let grey = |&value: &u8| [value; 3];
        let pixels = match info.color_type {
            ColorType::Rgb => frame,
            ColorType::Rgba => {
                frame.as_chunks::<4>().0.iter().flat_map(|p| [p[0], p[1], p[2]]).collect()
            }
            ColorType::Grayscale => frame.iter().flat_map(grey).collect(),
            ColorType::GrayscaleAlpha => frame.iter().step_by(2).flat_map(grey).collect(),
            ColorType::Indexed => {
                return Err("its PNG has a palette that is not applied".to_owned());
            }
        };
        Ok(Decoded { size, pixels })
    }

    /// A part of it, scaled to `[width, height]`: each pixel is the mean of those around it, nearer ones weighing more.
    pub(super) fn scaled(
        &self,
        part: Part,
        [width, height]: [usize; 2],
    ) -> Result<Vec<[u8; 3]>, String> {
        let [source_width, source_height] = self.size;
        let source = TypedImageRef::<U8x3>::from_buffer(source_width, source_height, &self.pixels);
        let source = source.map_err(in_one_line)?;
        let mut scaled = vec![U8x3::new([0; 3]); width * height];
        // fits: a model's images are smaller than 2^32
        let mut into = TypedImage::from_pixels_slice(width as u32, height as u32, &mut scaled)
            .map_err(in_one_line)?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop(part.left, part.top, part.width, part.height);
        // of one type of pixels: what takes any brings 3 MB of code for all of them into a program
        Resizer::new().resize_typed(&source, &mut into, &options).map_err(in_one_line)?;
        Ok(scaled.into_iter().map(|pixel| pixel.0).collect())
    }
}

fn in_one_line(error: impl Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// True if the last scan of a JPEG has an end behind it. The decoder makes what is missing grey and says nothing.
fn ends(jpeg: &[u8]) -> bool {
    let last = |marker: [u8; 2]| jpeg.windows(2).rposition(|two| two == marker);
    match (last([0xff, 0xda]), last([0xff, 0xd9])) {
        (Some(scan), Some(end)) => scan < end,
        _ => false,
    }
}
