//! A folder of small made-up images: JPEG and PNG, of several sizes, a folder a class. Also used by `examples/loader.rs`.

use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};

/// Writes images of about `side` × `side` pixels into `folder`, so many for each class. Classes differ in their colour, images
/// of a class in where a bright square lies; every fifth image is a PNG.
pub(crate) fn write(folder: &Path, classes: u32, each: u32, side: u32) {
    for class in 0..classes {
        let of_class = folder.join(format!("class{class:03}"));
        std::fs::create_dir_all(&of_class).unwrap();
        for index in 0..each {
            let (suffix, format) = match index % 5 {
                4 => ("png", ImageFormat::Png),
                _ => ("jpg", ImageFormat::Jpeg),
            };
            let path = of_class.join(format!("{index:05}.{suffix}"));
            image(class, index, side).save_with_format(path, format).unwrap();
        }
    }
}

/// An image: a colour that fades, and a bright square.
pub(crate) fn image(class: u32, index: u32, side: u32) -> RgbImage {
    let (width, height) = (side + 3 * (index % 7), side + 5 * (index % 3));
    let at = (index * 37 % width, index * 91 % height);
    RgbImage::from_fn(width, height, |x, y| {
        let is_bright = x.abs_diff(at.0) < side / 8 && y.abs_diff(at.1) < side / 8;
        // fits: each is taken modulo 256
        let fade = (255 * x / width) as u8;
        let colour = [class * 83 % 256, class * 149 % 256, 255 - class * 61 % 256].map(|c| c as u8);
        match is_bright {
            true => Rgb([255, 250, 240]),
            false => Rgb([colour[0], colour[1].midpoint(fade), colour[2]]),
        }
    })
}
