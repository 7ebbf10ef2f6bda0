//! Tables of numbers from files of numpy and from text.

use std::io::{Cursor, Write};

use tensorwire_nn::{Batches, DType, Data, TestBatches};
use tensorwire_zoo::data::{DataError, SampleKind, Source};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fn open(source: &str) -> Result<Data, DataError> {
    source.parse::<Source>()?.open(SampleKind::Images { dims: [28, 28, 1], classes: 10 }, 1)
}

fn kind(data: &Data) -> Option<SampleKind> {
    SampleKind::of(&data.train.describe())
}

/// A file of arrays, in memory.
struct Arrays(ZipWriter<Cursor<Vec<u8>>>);

/// A type of numpy's, and an element's bytes.
trait Element: Copy {
    const KIND: &'static str;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! elements {
    ($($type:ty: $kind:literal),*) => {$(
        impl Element for $type {
            const KIND: &'static str = $kind;
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        }
    )*};
}

elements!(u8: "|u1", i32: "<i4", i64: "<i8", f32: "<f4", f64: "<f8");

impl Arrays {
    fn new() -> Arrays {
        Arrays(ZipWriter::new(Cursor::new(vec![])))
    }

    fn add<T: Element>(mut self, name: &str, shape: &[usize], values: &[T]) -> Arrays {
        let shape: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
        let header =
            format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}\n", T::KIND);
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|value| value.bytes()));
        self.0.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
        self.0.write_all(&bytes).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.finish().unwrap().into_inner()
    }
}

#[test]
fn arrays_of_pixels_and_classes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let source = format!("npz:{}", path.display());
    let pixels: Vec<u8> = (0..5 * 6).map(|i| i * 8).collect();
    let arrays = Arrays::new()
        .add("x_train", &[5, 2, 3], &pixels)
        .add("y_train", &[5], &[0i64, 1, 2, 1, 0])
        .add("x_test", &[1, 2, 3], &[255u8; 6])
        .add("y_test", &[1, 1], &[3i32]);
    std::fs::write(&path, arrays.bytes()).unwrap();
    let data = open(&source).unwrap();
    assert_eq!(kind(&data), Some(SampleKind::Images { dims: [2, 3, 1], classes: 4 }));
    let batch = Batches::new(data.train, 1, 5, 1).unwrap().batch(0, 0).unwrap();
    let input: &[f32] = batch.get("input").unwrap().values();
    let labels: &[i32] = batch.get("labels").unwrap().values();
    for (row, label) in input.chunks(6).zip(labels) {
        let sample = (row[0] * 255.0 / 48.0).round() as usize;
        assert_eq!(*label, [0, 1, 2, 1, 0][sample]);
        assert_eq!(row[5], f32::from(pixels[6 * sample + 5]) / 255.0);
    }
    let test = TestBatches::new(data.test.unwrap(), 1).unwrap().batch(0).unwrap();
    assert_eq!(test.get("input").unwrap().values::<f32>(), [1.0; 6]);

    // features that are no image, without a test of their own
    let x: Vec<f64> = (0..40).map(f64::from).collect();
    let arrays = Arrays::new().add("X", &[20, 2], &x).add("y", &[20], &[1u8; 20]);
    std::fs::write(&path, arrays.bytes()).unwrap();
    let data = open(&source).unwrap();
    assert_eq!(kind(&data), Some(SampleKind::Images { dims: [1, 1, 2], classes: 2 }));
    assert_eq!((data.train.samples(), data.test.unwrap().samples()), (Some(18), Some(2)));
}

#[test]
fn arrays_that_make_no_samples_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let said = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let line = open(&format!("npz:{}", path.display())).unwrap_err().to_string();
        assert!(line.contains("a.npz'") && !line.contains('\n'), "{line}");
        line
    };
    let one = |name: &str| Arrays::new().add(name, &[2, 2], &[1.0f32; 4]);
    assert!(said(b"no zip").contains("savez"));
    assert!(said(&one("z").bytes()).contains("array 'x': there is none among: z"));
    assert!(said(&one("x").bytes()).contains("array 'y': there is none among: x"));
    let three = one("x").add("y", &[3], &[1i32; 3]).bytes();
    assert!(said(&three).contains("it has 2 samples, 'y' has 3"));
    assert!(said(&one("x").add("y", &[2, 2], &[1i32; 4]).bytes()).contains("one number a sample"));
    let endless = one("x").add("y", &[2], &[f32::NAN; 2]).bytes();
    assert!(said(&endless).contains("finite"));
    let nothing = Arrays::new().add("x", &[0, 2], &[0.0f32; 0]).add("y", &[0], &[0i32; 0]);
    assert!(said(&nothing.bytes()).contains("holds no samples"));
    let whole = Arrays::new().add("x", &[9, 9], &[1.0f32; 81]).add("y", &[9], &[1i32; 9]).bytes();
    for cut in [10, whole.len() / 2, whole.len() - 3] {
        said(&whole[..cut]);
    }
    assert!(open("npz:/nowhere/a.npz").unwrap_err().to_string().contains("/nowhere/a.npz"));
}

#[test]
fn labels_that_are_counted_from_1_are_refused_where_as_many_classes_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let labelled = |labels: std::ops::RangeInclusive<u32>| {
        let rows: String = labels.map(|label| format!("0.5,{label}\n")).collect();
        std::fs::write(&path, rows).unwrap();
        open(&format!("csv:{}", path.display()))
    };
    let said = labelled(1..=10).unwrap_err().to_string();
    let says = "a.csv': its labels are from 1 to 10, and classes are counted from 0: 10 were asked for; \
                subtract 1 from each, as y - 1";
    assert!(said.ends_with(says), "{said}");
    // a file's own classes, whatever a model is usually trained on
    for (labels, classes) in [(0..=10, 11), (1..=9, 10), (1..=11, 12), (0..=9, 10)] {
        let data = labelled(labels).unwrap();
        assert_eq!(kind(&data), Some(SampleKind::Images { dims: [1, 1, 1], classes }));
    }
}

#[test]
fn text_of_numbers_has_classes_or_targets() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let classes = write("a.csv", "x,y,label\n1,2,0\n3,4,2\n");
    let test = write("b.csv", "x,y,label\n5,6,1\n");
    let data = open(&format!("csv:{classes},{test}")).unwrap();
    assert_eq!(kind(&data), Some(SampleKind::Images { dims: [1, 1, 2], classes: 3 }));
    assert_eq!((data.train.samples(), data.test.unwrap().samples()), (Some(2), Some(1)));

    let numbers = write("c.csv", "1,2,0.5\n3,4,-2\n");
    let data = open(&format!("csv:{numbers}")).unwrap();
    assert!(data.test.is_none());
    let described = data.train.describe();
    assert_eq!(described.get("target").map(|target| target.dtype), Some(DType::F32));
    let batch = Batches::new(data.train, 1, 2, 1).unwrap().batch(0, 0).unwrap();
    let mut targets = batch.get("target").unwrap().values::<f32>().to_vec();
    targets.sort_by(f32::total_cmp);
    assert_eq!(targets, [-2.0, 0.5]);

    let said = |source: &str| open(source).unwrap_err().to_string();
    let wide = write("d.csv", "1,2,3,4\n");
    assert!(said(&format!("csv:{classes},{wide}")).contains("d.csv'"));
    for (name, text) in [("e.csv", ""), ("f.csv", "a,b\n")] {
        let path = write(name, text);
        assert!(said(&format!("csv:{path}")).contains(&format!("{name}' holds no samples")));
    }
    assert!(said("csv:/nowhere/a.csv").contains("/nowhere/a.csv"));
}
