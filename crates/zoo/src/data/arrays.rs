//! Samples in files of raw elements, one file a tensor: what a program writes that has its data in memory, and reads nowhere
//! else. A file holds the elements of sample after sample, little end first, and is called after its tensor: `input.bin`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensorwire_nn::{DType, Dataset, Description, Error, Extent, Result, Sample};

use super::DataError;

/// Samples in a folder of such files. They are read when they are asked for: nothing stays in memory.
#[derive(Debug)]
pub struct Arrays {
    description: Description,
    /// In the order of the description.
    files: Vec<File>,
    samples: usize,
    is_shuffled: bool,
}

impl Arrays {
    /// Opens the files of the tensors that are described, of so many samples; each epoch takes them in a random order of its
    /// own if they are to be shuffled, and else in theirs.
    ///
    /// # Errors
    /// When a file is not there, or is not as long as it must be.
    pub fn open(
        folder: &Path,
        description: Description,
        samples: usize,
        is_shuffled: bool,
    ) -> Result<Arrays, DataError> {
        let mut files = Vec::new();
        for feature in description.features() {
            let path = folder.join(format!("{}.bin", feature.name));
            let unreadable =
                |source| DataError::Unreadable { file: path.display().to_string(), source };
            let file = File::open(&path).map_err(unreadable)?;
            let found = file.metadata().map_err(unreadable)?.len();
            let each = feature.dims.iter().map(|dim| match *dim {
                Extent::Known(size) | Extent::Batch(size) => size,
                Extent::Varying(_) => 1,
            });
            let wanted = (samples * feature.dtype.bytes() * each.product::<usize>()) as u64;
            if found != wanted {
                let what = format!("{found} bytes; {samples} samples of {feature} have {wanted}");
                let source = std::io::Error::new(std::io::ErrorKind::InvalidData, what);
                return Err(unreadable(source));
            }
            files.push(file);
        }
        Ok(Arrays { description, files, samples, is_shuffled })
    }
}

impl Dataset for Arrays {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn len(&self) -> usize {
        self.samples
    }

    fn keeps_order(&self) -> bool {
        !self.is_shuffled
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        for (feature, file) in self.description.features().iter().zip(&self.files) {
            let name = &feature.name;
            let into: &mut [u8] = match feature.dtype {
                DType::F32 => bytemuck::cast_slice_mut(sample.values::<f32>(name)?),
                DType::F64 => bytemuck::cast_slice_mut(sample.values::<f64>(name)?),
                DType::I32 => bytemuck::cast_slice_mut(sample.values::<i32>(name)?),
                DType::I64 => bytemuck::cast_slice_mut(sample.values::<i64>(name)?),
                DType::U8 => sample.values::<u8>(name)?,
                DType::BF16 => return Err(Error::other("samples of bf16 are not read; give f32")),
            };
            file.read_exact_at(into, (index * into.len()) as u64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_nn::{Data, HostBatch};

    use super::*;

    fn described() -> Description {
        Description::new().input("x", DType::F32, &[2]).input("y", DType::I32, &[])
    }

    #[test]
    fn samples_come_in_their_order_or_another() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        write("x.bin", (0..8u8).flat_map(|x| f32::from(x).to_le_bytes()).collect());
        write("y.bin", (0..4i32).flat_map(|y| (y - 1).to_le_bytes()).collect());
        let open = |is_shuffled| Arrays::open(folder.path(), described(), 4, is_shuffled).unwrap();
        let train = Data::from(open(false)).train;
        assert_eq!(train.order(2, 1, 7, 3), [0, 1, 2, 3]);
        let mut batch = HostBatch::new();
        train.fill(&[3, 0], 2, &mut batch).unwrap();
        let found = |name: &str| batch.get(name).unwrap().bytes().to_vec();
        assert_eq!(found("x"), [6.0f32, 7.0, 0.0, 1.0].map(f32::to_le_bytes).concat());
        assert_eq!(found("y"), [2i32, -1].map(i32::to_le_bytes).concat());
        let mut shuffled = Data::from(open(true)).train.order(1, 1, 7, 3);
        assert_ne!(shuffled, [0, 1, 2, 3]);
        shuffled.sort_unstable();
        assert_eq!(shuffled, [0, 1, 2, 3]);
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.bin"), [0; 9]).unwrap();
        let refused = Arrays::open(folder.path(), described(), 4, false).unwrap_err().to_string();
        assert!(refused.contains("9 bytes; 4 samples of x: f32[batch×2] have 32"), "{refused}");
    }
}
