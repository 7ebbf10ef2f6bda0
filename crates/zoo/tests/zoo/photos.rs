//! Photographs in folders: what training and the test see of them, and what is said of files that are none.

use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use tensorwire_nn::{Batches, Data, HostBatch, Result, TestBatches};
use tensorwire_zoo::data::{SampleKind, Source};

use crate::made_images;

/// Opens `images:` with these options for a model of 16×16×`channels`.
fn open(folder: &Path, options: &str, channels: usize, seed: u64) -> Data {
    let source: Source = format!("images:{}{options}", folder.display()).parse().unwrap();
    source.open(SampleKind::Images { dims: [16, 16, channels], classes: 10 }, seed).unwrap()
}

fn made(each: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    made_images::write(folder.path(), 3, each, 40);
    folder
}

fn first(folder: &Path, options: &str) -> Result<HostBatch> {
    let mut batches = Batches::new(open(folder, options, 3, 1).train, 1, 4, 1)?;
    batches.batch(0, 0)
}

fn input(batch: &HostBatch) -> &[f32] {
    batch.get("input").unwrap().values()
}

#[test]
fn images_have_the_size_of_the_model_and_the_classes_of_their_folders() {
    let folder = made(20);
    for channels in [3, 1] {
        let data = open(folder.path(), "", channels, 1);
        let kind = SampleKind::of(&data.train.describe());
        assert_eq!(kind, Some(SampleKind::Images { dims: [16, 16, channels], classes: 3 }));
        let test = data.test.clone().unwrap();
        assert_eq!((data.train.samples(), test.samples()), (Some(54), Some(6)));
        let batch = TestBatches::new(test, 6).unwrap().batch(0).unwrap();
        assert_eq!(batch.get("labels").unwrap().values::<i32>(), [0, 0, 1, 1, 2, 2]);
        assert!(input(&batch).iter().all(|value| (-2.2..2.7).contains(value)));
        assert!(data.train.is_costly());
    }
}

#[test]
fn a_part_depends_on_seed_epoch_and_sample_alone() {
    let folder = made(10);
    let train = |seed| open(folder.path(), "", 3, seed).train;
    let batch = |seed, workers, step, worker| {
        let mut batches = Batches::new(train(seed), workers, 6 / workers, 7).unwrap();
        batches.batch(step, worker).unwrap()
    };
    let whole = batch(1, 1, 11, 0);
    assert_eq!(whole, batch(1, 1, 11, 0));
    // another seed cuts other parts of the same images
    let other = batch(2, 1, 11, 0);
    assert_ne!(input(&whole), input(&other));
    // two workers of half a batch see what one sees
    let halves = [0, 1].map(|worker| input(&batch(1, 2, 11, worker)).to_vec());
    assert_eq!(input(&whole), halves.concat());
    // and a batch that follows another is as one that comes first
    let mut walked = Batches::new(train(1), 1, 6, 7).unwrap();
    (0..11).for_each(|step| drop(walked.batch(step, 0).unwrap()));
    assert_eq!(walked.batch(11, 0).unwrap(), whole);
}

#[test]
fn an_image_is_cut_otherwise_in_each_epoch_and_never_in_a_test() {
    let folder = tempfile::tempdir().unwrap();
    made_images::write(&folder.path().join("train"), 1, 1, 40);
    made_images::write(&folder.path().join("val"), 1, 1, 40);
    let data = open(folder.path(), "", 3, 1);
    let mut batches = Batches::new(data.train, 1, 1, 1).unwrap();
    let epochs: Vec<HostBatch> = (0..3).map(|epoch| batches.batch(epoch, 0).unwrap()).collect();
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
    let tests = TestBatches::new(data.test.unwrap(), 1).unwrap();
    assert_eq!(tests.batch(0).unwrap(), tests.batch(0).unwrap());
}

#[test]
fn colours_are_normal_and_the_test_sees_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["train", "val"] {
        std::fs::create_dir_all(folder.path().join(part).join("a")).unwrap();
        // a red left edge and bottom that the middle seven eighths of a square leave out
        let image = RgbImage::from_fn(64, 32, |x, y| match (x, y) {
            (0..16, _) | (_, 30..) => Rgb([255, 0, 0]),
            _ => Rgb([124, 116, 104]),
        });
        let path = folder.path().join(part).join("a/1.png");
        image.save_with_format(path, ImageFormat::Png).unwrap();
    }
    let data = open(folder.path(), "", 3, 1);
    let batch = TestBatches::new(data.test.unwrap(), 1).unwrap().batch(0).unwrap();
    let wanted = [(124, 0.485, 0.229), (116, 0.456, 0.224), (104, 0.406, 0.225)];
    let wanted =
        wanted.map(|(byte, mean, deviation)| (f32::from(byte as u8) / 255.0 - mean) / deviation);
    // but for the last rows, into which the bottom is blended
    for pixel in input(&batch)[..14 * 16 * 3].chunks(3) {
        assert_eq!(pixel, wanted);
    }
}

#[test]
fn a_file_that_is_no_image_is_named() {
    let folder = made(4);
    let torn = folder.path().join("class001/00002.jpg");
    let whole = std::fs::read(&torn).unwrap();
    let png = std::fs::read(folder.path().join("class000/00000.jpg")).unwrap();
    let wrong: [(&[u8], &str); 5] = [
        (&whole[..whole.len() / 2], "its JPEG has no end in"),
        (b"", "it is empty"),
        (b"GIF89a and more", "it is neither JPEG nor PNG"),
        (&whole[..20], "no end in 20 bytes"),
        (&[&png[..2], b"\xff\xda\xff\xd9"].concat(), "'"),
    ];
    for (bytes, reason) in wrong {
        std::fs::write(&torn, bytes).unwrap();
        let found = seen(folder.path(), "").unwrap_err().to_string();
        assert!(found.contains(reason) && found.contains("class001/00002.jpg'"), "{found}");
        assert!(found.contains("images:DIR,skip-bad") && !found.contains('\n'), "{found}");
    }
    // what a file holds counts, not how it is named
    let image = made_images::image(1, 2, 40);
    image.save_with_format(&torn, ImageFormat::Png).unwrap();
    seen(folder.path(), "").unwrap();
    let torn_png = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &torn_png[..torn_png.len() - 30]).unwrap();
    let found = seen(folder.path(), "").unwrap_err().to_string();
    assert!(found.contains("class001/00002.jpg'"), "{found}");
}

/// Reads a whole epoch.
fn seen(folder: &Path, options: &str) -> Result<HostBatch> {
    let train = open(folder, options, 3, 1).train;
    let samples = train.samples().unwrap();
    Batches::new(train, 1, samples, 1)?.batch(0, 0)
}

#[test]
fn the_next_image_takes_the_place_of_one_that_is_skipped() {
    let folder = made(4);
    std::fs::write(folder.path().join("class001/00003.jpg"), b"none").unwrap();
    let whole = seen(folder.path(), ",skip-bad").unwrap();
    let labels = whole.get("labels").unwrap().values::<i32>();
    let count = |class| labels.iter().filter(|&&label| label == class).count();
    assert_eq!([count(0), count(1), count(2)], [4, 3, 5]);
    let note = open(folder.path(), ",skip-bad", 3, 1).train.note();
    let says = "3 classes: 0 is class000, 1 is class001, 2 is class002; images are made 16×16, in colours; files that are no";
    assert!(note.as_ref().is_some_and(|note| note.starts_with(says)), "{note:?}");
    for class in 0..3 {
        for index in 0..4 {
            let path = folder.path().join(format!("class{class:03}/{index:05}.jpg"));
            std::fs::write(path, b"none").unwrap();
        }
    }
    let error = first(folder.path(), ",skip-bad").unwrap_err().to_string();
    assert!(error.contains("and the 11 images after it are none"), "{error}");
}

#[test]
fn a_folder_that_is_none_is_an_error() {
    let source: Source = "images:/no/such/folder".parse().unwrap();
    let kind = SampleKind::Images { dims: [16, 16, 3], classes: 10 };
    let error = source.open(kind, 1).unwrap_err().to_string();
    assert!(error.contains("'/no/such/folder'") && error.contains("; "), "{error}");
}
