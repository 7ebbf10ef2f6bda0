//! The files of tensors of a checkpoint: one process's whole variables and pieces of variables, written whole or not at all,
//! and all of them read as if they were one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tensorwire_tensor::{DType, TensorSpec};

use super::{CheckpointError, FileState};
use crate::weights;
use crate::whole_file;

/// Where the pieces are in a file's metadata.
const PIECES: &str = "pieces";
/// More than any header of a model takes.
const HEADER_BYTES_MAX: u64 = 100 << 20;
/// What a file is read and hashed by.
const BLOCK_BYTES: usize = 1 << 20;

/// A variable, or some of its elements in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPiece<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: DType,
    pub(crate) dims: &'a [usize],
    /// Of the whole.
    pub(crate) whole: &'a [usize],
    pub(crate) first_element: usize,
    pub(crate) bytes: &'a [u8],
}

/// Where a piece is in the variable that it is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PieceOf {
    first_element: usize,
    of: Vec<usize>,
}

/// The pieces that a process has of one variable, as the one piece that they are together.
fn joined<'a>(pieces: &[&ShardPiece<'a>]) -> io::Result<(ShardPiece<'a>, Vec<usize>)> {
    let apart =
        |name: &str| io::Error::other(format!("the pieces of '{name}' do not follow each other"));
    let Some((first, others)) = pieces.split_first() else { return Err(apart("")) };
    let mut dims = first.dims.to_vec();
    let mut end = first.first_element + first.dims.iter().product::<usize>();
    for other in others {
        let Some(rows) = dims.first_mut() else { break };
        if other.first_element != end {
            return Err(apart(first.name));
        }
        *rows += other.dims.first().copied().unwrap_or_default();
        end += other.dims.iter().product::<usize>();
    }
    Ok((**first, dims))
}

/// Writes the file of one process, from where the tensors lie.
pub(crate) fn write_shard(path: &Path, pieces: &[ShardPiece<'_>]) -> io::Result<FileState> {
    // as the format's own library has them: the widest first, so that each is aligned
    let mut pieces: Vec<&ShardPiece<'_>> = pieces.iter().collect();
    let key =
        |piece: &&ShardPiece<'_>| (Reverse(weights::dtype(piece.dtype)), piece.name.to_string());
    pieces.sort_by_key(|piece| (key(piece), piece.first_element));
    // one number is there once, whatever has it
    pieces.dedup_by(|next, piece| next.name == piece.name && next.dims.is_empty());
    let mut infos = Vec::with_capacity(pieces.len());
    let mut parts = BTreeMap::new();
    let mut end = 0;
    for of_one in pieces.chunk_by(|piece, next| piece.name == next.name) {
        let (piece, shape) = joined(of_one)?;
        let dtype = weights::dtype(piece.dtype);
        let data_offsets = (end, end + of_one.iter().map(|piece| piece.bytes.len()).sum::<usize>());
        end = data_offsets.1;
        let is_whole = shape == piece.whole;
        infos.push((piece.name.to_string(), TensorInfo { dtype, shape, data_offsets }));
        if !is_whole {
            let (first_element, of) = (piece.first_element, piece.whole.to_vec());
            parts.insert(piece.name, PieceOf { first_element, of });
        }
    }
    let parts = HashMap::from([(PIECES.to_string(), serde_json::to_string(&parts)?)]);
    let metadata = Metadata::new(Some(parts), infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    // fits: usize is 64 bits wide
    let length = (header.len() as u64).to_le_bytes();
    let mut written = (0, Sha256::new());
    whole_file::write(path, |file| {
        let tensors = pieces.iter().map(|piece| piece.bytes);
        for bytes in [&length[..], &header].into_iter().chain(tensors) {
            for block in bytes.chunks(BLOCK_BYTES) {
                file.write_all(block)?;
                written.1.update(block);
            }
            // fits: as above
            written.0 += bytes.len() as u64;
        }
        Ok(())
    })?;
    Ok(FileState { bytes: written.0, sha256: hex::encode(written.1.finalize()) })
}

/// Reads a file through, and returns what it is.
pub(crate) fn file_state(path: &Path) -> io::Result<FileState> {
    let (file, mut hash) = (File::open(path)?, Sha256::new());
    let (mut block, mut at) = (vec![0; BLOCK_BYTES], 0);
    loop {
        match file.read_at(&mut block, at)? {
            0 => return Ok(FileState { bytes: at, sha256: hex::encode(hash.finalize()) }),
            count => {
                hash.update(&block[..count]);
                // fits: usize is 64 bits wide
                at += count as u64;
            }
        }
    }
}

/// All tensors of a checkpoint's files, by name. What they hold is read when it is asked for.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    files: Vec<(PathBuf, File)>,
    values: BTreeMap<String, Value>,
}

/// A variable that is in one file or in several.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) dtype: Dtype,
    pub(crate) dims: Vec<usize>,
    places: Vec<Place>,
}

/// Some bytes of a variable, and where they are.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// In the variable.
    start: u64,
    bytes: u64,
    file: usize,
    /// In the file.
    at: u64,
}

impl ShardIndex {
    /// Reads the headers of these files.
    ///
    /// # Errors
    /// When a file is no safetensors file, or the pieces of a variable do not make one whole.
    pub(crate) fn open(
        folder: &Path,
        names: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Result<ShardIndex, CheckpointError> {
        let mut index = ShardIndex { files: Vec::new(), values: BTreeMap::new() };
        for name in names {
            let path = folder.join(name);
            let damaged = |reason: String| CheckpointError::Damaged { path: path.clone(), reason };
            let (file, header, first) =
                header(&path).map_err(|error| damaged(error.to_string()))?;
            let of = header.metadata().as_ref().and_then(|metadata| metadata.get(PIECES));
            let pieces: BTreeMap<String, PieceOf> = of
                .map_or(Ok(BTreeMap::new()), |of| serde_json::from_str(of))
                .map_err(|error| damaged(format!("its pieces make no sense: {error}")))?;
            let number = index.files.len();
            for (name, info) in header.tensors() {
                let piece = pieces.get(&name);
                let (start, end) = info.data_offsets;
                let dims = piece.map_or_else(|| info.shape.clone(), |piece| piece.of.clone());
                let width = bytes_of(info.dtype);
                let offset = piece.map_or(0, |piece| piece.first_element.saturating_mul(width));
                // fits: usize is 64 bits wide
                let place = Place {
                    start: offset as u64,
                    bytes: (end - start) as u64,
                    file: number,
                    at: first.saturating_add(start as u64),
                };
                let value = Value { dtype: info.dtype, dims, places: Vec::new() };
                let known = index.values.entry(name.clone()).or_insert(value);
                if known.dtype != info.dtype || piece.is_some_and(|piece| piece.of != known.dims) {
                    return Err(damaged(format!("'{name}' is another than in the files before")));
                }
                known.places.push(place);
            }
            index.files.push((path, file));
        }
        for (name, value) in &mut index.values {
            value.places.sort_by_key(|place| place.start);
            if !value.is_whole() {
                let reason = format!("some of '{name}' is missing");
                return Err(CheckpointError::Damaged { path: folder.to_path_buf(), reason });
            }
        }
        Ok(index)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Reads as many bytes of a variable as fit `into`, from its byte `first` on, straight to where they are to be.
    ///
    /// # Errors
    /// When there is no such variable, or it has fewer bytes, or a file cannot be read.
    pub(crate) fn read(
        &self,
        name: &str,
        first: usize,
        into: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let missing = || CheckpointError::Damaged {
            path: self.files.first().map(|(path, _)| path.clone()).unwrap_or_default(),
            reason: format!("'{name}' is missing or too short"),
        };
        let value = self.values.get(name).ok_or_else(missing)?;
        // fits: usize is 64 bits wide
        let (first, end) = (first as u64, first.saturating_add(into.len()) as u64);
        let mut next = first;
        for place in &value.places {
            let last = end.min(place.start.saturating_add(place.bytes));
            if place.start > next || last <= next {
                continue;
            }
            let (path, file) = &self.files[place.file];
            // fits: both are in `into`
            let target = &mut into[(next - first) as usize..(last - first) as usize];
            let read = file.read_exact_at(target, place.at + (next - place.start));
            let failed = |source| CheckpointError::Read { path: path.clone(), source };
            read.map_err(failed)?;
            next = last;
        }
        if next == end { Ok(()) } else { Err(missing()) }
    }
}

impl Value {
    /// True if it is a tensor of this spec.
    pub(crate) fn is(&self, spec: &TensorSpec) -> bool {
        self.dtype == weights::dtype(spec.dtype) && self.dims == spec.dims()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let elements = self.dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim as u64));
        // fits: a width is 1, 2, 4 or 8
        elements.and_then(|all| all.checked_mul(bytes_of(self.dtype) as u64)).unwrap_or(u64::MAX)
    }

    /// True if the places are all of it. What is one number may be in several files.
    fn is_whole(&self) -> bool {
        let next = self.places.iter().try_fold(0u64, |next, place| {
            (place.start <= next).then(|| next.max(place.start.saturating_add(place.bytes)))
        });
        next == Some(self.bytes())
    }
}

fn header(path: &Path) -> io::Result<(File, Metadata, u64)> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    // no memory is taken for what is not there
    let behind = file.metadata()?.len().saturating_sub(8);
    if length > HEADER_BYTES_MAX.min(behind) {
        return Err(wrong(format!("a header of {length} bytes, where {behind} are left")));
    }
    // fits: checked above
    let mut image = vec![0; length as usize];
    file.read_exact_at(&mut image, 8)?;
    let header: Metadata =
        serde_json::from_slice(&image).map_err(|error| wrong(error.to_string()))?;
    let data = behind - length;
    for (name, info) in header.tensors() {
        let (start, end) = info.data_offsets;
        // fits: usize is 64 bits wide
        if start > end || end as u64 > data {
            return Err(wrong(format!("'{name}' is not in the file")));
        }
    }
    Ok((file, header, 8 + length))
}

fn bytes_of(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// A file of any bytes: [`crate::fuzz`].
pub(crate) fn fuzz_shards(path: &Path) {
    let Ok(index) = ShardIndex::open(Path::new("/"), [path]) else { return };
    for (name, value) in index.values() {
        // fits: it lies in the file, which lies in memory
        let mut into = vec![0; value.bytes() as usize];
        index.read(name, 0, &mut into).expect("it is whole");
        assert!(index.read(name, 1, &mut into).is_err() || into.is_empty(), "there is no more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece<'a>(name: &'a str, dims: &'a [usize], bytes: &'a [u8]) -> ShardPiece<'a> {
        ShardPiece { name, dtype: DType::U8, dims, whole: dims, first_element: 0, bytes }
    }

    fn rows<'a>(first: usize, dims: &'a [usize], bytes: &'a [u8]) -> ShardPiece<'a> {
        ShardPiece { whole: &[4, 2], first_element: first * 2, ..piece("w", dims, bytes) }
    }

    #[test]
    fn pieces_of_several_files_are_read_as_one_and_cut_again() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write_shard(&at("a"), &[rows(0, &[3, 2], &[0, 1, 2, 3, 4, 5]), piece("t", &[], &[9])])
            .unwrap();
        let state =
            write_shard(&at("b"), &[rows(3, &[1, 2], &[6, 7]), piece("t", &[], &[9])]).unwrap();
        assert_eq!(file_state(&at("b")).unwrap(), state);
        let index = ShardIndex::open(folder.path(), ["b", "a"]).unwrap();
        let read = |first, bytes: usize| {
            let mut into = vec![255; bytes];
            index.read("w", first, &mut into).map(|()| into)
        };
        assert_eq!(read(0, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(read(4, 3).unwrap(), [4, 5, 6]);
        assert!(read(4, 5).is_err(), "there are no more");
        let mut count = [0];
        index.read("t", 0, &mut count).unwrap();
        assert_eq!((count, index.value("w").unwrap().dims.as_slice()), ([9], [4, 2].as_slice()));
    }

    #[test]
    fn pieces_that_one_process_has_of_a_variable_are_one_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (last, first) = (rows(3, &[1, 2], &[6, 7]), rows(0, &[3, 2], &[0, 1, 2, 3, 4, 5]));
        let count = piece("t", &[], &[9]);
        let state = write_shard(&at("a"), &[last, count, first, count]).unwrap();
        let whole = piece("w", &[4, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(write_shard(&at("b"), &[count, whole]).unwrap(), state, "the same file");
        let apart = write_shard(&at("c"), &[rows(0, &[1, 2], &[0, 1]), last]).unwrap_err();
        assert!(apart.to_string().contains("pieces of 'w'"), "{apart}");
    }

    #[test]
    fn what_lacks_a_piece_or_is_no_file_of_tensors_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write_shard(&at("a"), &[rows(0, &[2, 2], &[0; 4])]).unwrap();
        let error = ShardIndex::open(folder.path(), ["a"]).unwrap_err().to_string();
        assert!(error.contains("some of 'w' is missing"), "{error}");
        std::fs::write(at("b"), b"GIF89a something else").unwrap();
        for names in [["b"], ["none"]] {
            let error = ShardIndex::open(folder.path(), names).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
        }
    }
}
