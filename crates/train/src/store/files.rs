//! Snapshots of servers as safetensors files, one a server: `PATH.server0.safetensors`. Written whole or
//! not at all, so that a death in the middle leaves the snapshot before; and hashed, so that a damaged one is never taken.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sha2::{Digest, Sha256};
use tensorwire_kvstore::{Keep, ShardKey, ShardSnapshot, Snapshot, StateTensor, ValueSpec};
use tensorwire_tensor::DType;

use crate::weights;
use crate::whole_file;

/// Where the protocol's state is in the file's metadata.
const PROTOCOL: &str = "protocol";
/// Where the hash of all that is in the file stands beside it.
const SHA256: &str = "sha256";
const WEIGHTS: &str = "weights";

/// Snapshots in files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotFiles;

impl SnapshotFiles {
    /// The file of one server.
    pub fn path(server: usize, to: &str) -> PathBuf {
        PathBuf::from(format!("{to}.server{server}.safetensors"))
    }
}

impl Keep for SnapshotFiles {
    fn save(&mut self, server: usize, to: &str, snapshot: Snapshot) -> Result<(), String> {
        let path = SnapshotFiles::path(server, to);
        let failed = |what: &dyn std::fmt::Display| {
            format!(
                "cannot write {}: {what}; give a path in a folder that exists, with room",
                path.display()
            )
        };
        let image = encode(&snapshot).map_err(|error| failed(&error))?;
        whole_file::write(&path, |file| file.write_all(&image)).map_err(|error| failed(&error))
    }

    fn load(&mut self, server: usize, from: &str) -> Result<Option<Snapshot>, String> {
        let path = SnapshotFiles::path(server, from);
        // whoever takes a dead server's place may write no snapshot of its own
        whole_file::remove_abandoned(whole_file::folder(&path));
        let image = match std::fs::read(&path) {
            Ok(image) => image,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        match decode(&image, true) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(Unusable::Foreign(what)) => {
                Err(format!("{} is no snapshot of a server: {what}", path.display()))
            }
            Err(Unusable::Damaged) => Err(format!(
                "{} is damaged: its contents are not those of its hash; remove it to begin anew, or bring back a copy",
                path.display()
            )),
        }
    }
}

/// Why a file is no snapshot.
#[derive(Debug)]
enum Unusable {
    Foreign(String),
    Damaged,
}

/// A snapshot as the bytes of a file.
fn encode(snapshot: &Snapshot) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let mut views = Vec::new();
    for shard in &snapshot.shards {
        let ValueSpec { dtype, rows, columns } = shard.spec;
        views.push((name(shard.key, WEIGHTS), dtype, vec![rows, columns], &shard.weights));
        for slot in &shard.state {
            views.push((name(shard.key, &slot.name), slot.dtype, slot.dims.clone(), &slot.bytes));
        }
    }
    let views: Vec<(String, TensorView<'_>)> = views
        .into_iter()
        .map(|(name, dtype, dims, bytes)| {
            TensorView::new(weights::dtype(dtype), dims, bytes).map(|view| (name, view))
        })
        .collect::<Result<_, _>>()?;
    let metadata = HashMap::from([
        (PROTOCOL.to_string(), hex::encode(&snapshot.protocol)),
        (SHA256.to_string(), sha256(&snapshot.protocol, &views)),
    ]);
    safetensors::serialize(views, Some(metadata))
}

/// The snapshot in the bytes of a file, `hashed` or not.
fn decode(image: &[u8], hashed: bool) -> Result<Snapshot, Unusable> {
    let foreign = |what: &str| Unusable::Foreign(what.to_string());
    let (_, header) =
        SafeTensors::read_metadata(image).map_err(|error| foreign(&error.to_string()))?;
    let protocol = header.metadata().as_ref().and_then(|metadata| metadata.get(PROTOCOL));
    let protocol = protocol.and_then(|text| hex::decode(text).ok());
    let protocol = protocol.ok_or_else(|| foreign("it lacks the protocol's state"))?;
    let file = SafeTensors::deserialize(image).map_err(|error| foreign(&error.to_string()))?;
    let hash = header.metadata().as_ref().and_then(|metadata| metadata.get(SHA256));
    if hashed && hash != Some(&sha256(&protocol, &file.tensors())) {
        return Err(Unusable::Damaged);
    }
    let mut shards: Vec<ShardSnapshot> = Vec::new();
    let mut states: HashMap<ShardKey, Vec<StateTensor>> = HashMap::new();
    for (tensor, view) in file.tensors() {
        let Some((key, what)) = parse(&tensor) else {
            return Err(foreign(&format!("'{tensor}' is none of its tensors")));
        };
        let dtype = dtype(view.dtype()).ok_or_else(|| foreign("an element type"))?;
        let (dims, bytes) = (view.shape().to_vec(), view.data().to_vec());
        match (what, dims.as_slice()) {
            (WEIGHTS, &[rows, columns]) => {
                let spec = ValueSpec { dtype, rows, columns };
                shards.push(ShardSnapshot { key, spec, weights: bytes, state: Vec::new() });
            }
            _ => {
                let name = what.to_string();
                states.entry(key).or_default().push(StateTensor { name, dtype, dims, bytes });
            }
        }
    }
    for shard in &mut shards {
        shard.state = states.remove(&shard.key).unwrap_or_default();
    }
    shards.sort_by_key(|shard| shard.key);
    Ok(Snapshot { protocol, shards })
}

/// Any bytes as a snapshot, as if they had the right hash: [`crate::fuzz`].
pub(crate) fn fuzz_snapshots(bytes: &[u8]) {
    let _ = decode(bytes, true);
    let Ok(snapshot) = decode(bytes, false) else { return };
    let image = encode(&snapshot).expect("what was read is written");
    let mut again = decode(&image, true).expect("what was written is read");
    let mut snapshot = snapshot;
    for shard in snapshot.shards.iter_mut().chain(&mut again.shards) {
        shard.state.sort_by(|one, other| one.name.cmp(&other.name));
    }
    assert_eq!(again, snapshot);
}

/// The hash of all that a snapshot holds, in whatever order.
fn sha256(protocol: &[u8], tensors: &[(String, TensorView<'_>)]) -> String {
    let mut tensors: Vec<&(String, TensorView<'_>)> = tensors.iter().collect();
    tensors.sort_by_key(|(name, _)| name);
    let mut hash = Sha256::new_with_prefix((protocol.len() as u64).to_le_bytes());
    hash.update(protocol);
    for (name, view) in tensors {
        // no two snapshots have the same text here
        hash.update(format!("{name:?} {:?} {:?}\n", view.dtype(), view.shape()));
        hash.update(view.data());
    }
    hex::encode(hash.finalize())
}

fn name(key: ShardKey, what: &str) -> String {
    format!("part/{}/{what}", key.0)
}

/// What [`name`] named; no shard has two names.
fn parse(tensor: &str) -> Option<(ShardKey, &str)> {
    let (key, what) = tensor.strip_prefix("part/")?.split_once('/')?;
    let key = ShardKey(key.parse().ok()?);
    (name(key, what) == tensor).then_some((key, what))
}

fn dtype(dtype: safetensors::Dtype) -> Option<DType> {
    let all = [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::BF16];
    all.into_iter().find(|ours| weights::dtype(*ours) == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted::Mounted;

    fn snapshot() -> Snapshot {
        let spec = ValueSpec { dtype: DType::F32, rows: 2, columns: 1 };
        let slot = StateTensor {
            name: "velocity".to_string(),
            dtype: DType::F32,
            dims: vec![2, 1],
            bytes: vec![9; 8],
        };
        let shard = |key, state| ShardSnapshot {
            key: ShardKey(key),
            spec,
            weights: vec![key as u8; 8],
            state,
        };
        Snapshot {
            protocol: vec![1, 2, 255],
            shards: vec![shard(3, vec![slot]), shard(70, Vec::new())],
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_replaces_what_was() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("job").to_string_lossy().to_string();
        let mut files = SnapshotFiles;
        assert_eq!(files.load(0, &to).unwrap(), None);
        for _ in 0..2 {
            files.save(0, &to, snapshot()).unwrap();
            files.save(1, &to, Snapshot::default()).unwrap();
        }
        // what a server that was killed left of its own
        std::fs::write(whole_file::staging_path(&folder.path().join("job")), b"half").unwrap();
        assert_eq!(files.load(0, &to).unwrap(), Some(snapshot()));
        assert_eq!(files.load(1, &to).unwrap(), Some(Snapshot::default()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn a_disk_that_is_full_keeps_the_snapshot_before() {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = Mounted::small(folder.path(), 256 << 10) else { return };
        let to = disk.path().join("job").to_string_lossy().to_string();
        let mut files = SnapshotFiles;
        files.save(0, &to, snapshot()).unwrap();
        let mut larger = snapshot();
        larger.shards[0].spec.rows = 100_000;
        larger.shards[0].weights = vec![1; 400_000];
        let error = files.save(0, &to, larger).unwrap_err();
        assert!(error.contains("No space left on device"), "{error}");
        assert_eq!(files.load(0, &to).unwrap(), Some(snapshot()));
        assert_eq!(
            std::fs::read_dir(disk.path()).unwrap().count(),
            1,
            "nothing half written stays"
        );
    }

    #[test]
    fn torn_and_foreign_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("job").to_string_lossy().to_string();
        let mut files = SnapshotFiles;
        files.save(0, &to, snapshot()).unwrap();
        let path = SnapshotFiles::path(0, &to);
        let whole = std::fs::read(&path).unwrap();
        for torn in [&whole[..whole.len() - 1], b"", b"GIF89a something else"] {
            std::fs::write(&path, torn).unwrap();
            let error = files.load(0, &to).unwrap_err();
            assert!(error.contains("job.server0.safetensors"), "{error}");
        }
        // any one byte of the values, of the protocol's state, of the names
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8_lossy(&whole[..header]).into_owned();
        let at = |what: &str| text.find(what).unwrap();
        for place in (header..whole.len()).chain([at("0102ff"), at("velocity"), at("part/70") + 5])
        {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let error = files.load(0, &to).unwrap_err();
            assert!(error.contains("job.server0.safetensors is damaged"), "byte {place}: {error}");
        }
        let error = files.save(0, "/nowhere/at/all", snapshot()).unwrap_err();
        assert!(error.contains("/nowhere/at/all.server0.safetensors"), "{error}");
    }
}
