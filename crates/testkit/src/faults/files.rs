//! The files that a job leaves: what nobody wants of them, and what is wrong with those that it keeps.

use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use super::job::{CHECKPOINTS, FILLER, FROM_DISK, METRICS, OUTPUT, RUNTIME, SHELL, SNAPSHOT};
use super::{Fault, FaultCell, Heal, Victim};

/// What nobody wanted of the files that are left.
pub(super) fn litter(folder: &Path, cell: &FaultCell) -> Vec<String> {
    let is_known = |name: &String| {
        let known = [METRICS, CHECKPOINTS, FROM_DISK, SHELL, RUNTIME];
        known.contains(&name.as_str()) || OUTPUT.contains(&name.as_str())
    };
    let mut litter: Vec<String> =
        names(folder).into_iter().filter(|name| !is_known(name)).collect();
    for kept in kept(folder) {
        let is_whole = |name: &String| is_checkpoint(name) || is_snapshot(name) || name == FILLER;
        litter.extend(names(&kept).into_iter().filter(|name| !is_whole(name)));
    }
    // a socket of a launcher that was killed is taken away by whoever asks for jobs
    let is_of_job = |name: &String| !name.ends_with(".sock");
    let hosts = std::fs::read_dir(folder.join(RUNTIME).join("tensorwire/jobs"));
    let hosts = hosts.into_iter().flatten().flatten();
    litter.extend(hosts.flat_map(|host| names(&host.path())).filter(is_of_job));
    // the next job, or server, takes away what one that was killed could not
    let is_left_to_it = match cell.heals {
        Heal::Takeover => false,
        heals => cell.role == Victim::Launcher || heals == Heal::Snapshot,
    };
    litter.retain(|_| !is_left_to_it || !matches!(cell.fault, Fault::Kill | Fault::Stop));
    litter
}

/// What is wrong with the checkpoints and snapshots that are left: each is whole, and what its hash says.
pub(super) fn damage(program: &Path, folder: &Path) -> Option<String> {
    kept(folder).iter().find_map(|kept| {
        if names(kept).iter().any(|name| is_checkpoint(name)) {
            let shown = Command::new(program).args(["checkpoint", "show"]).arg(kept).output();
            let Ok(shown) = shown else { return Some("nobody can look".to_string()) };
            if !shown.status.success() {
                return Some(String::from_utf8_lossy(&shown.stderr).trim().to_string());
            }
        }
        let snapshots = names(kept).into_iter().filter(|name| is_snapshot(name));
        let damages = snapshots.filter_map(|name| {
            let image = std::fs::read(kept.join(&name)).unwrap_or_default();
            damage_of_snapshot(&image).map(|what| format!("{name}: {what}"))
        });
        damages.into_iter().next()
    })
}

/// Where checkpoints and snapshots are.
fn kept(folder: &Path) -> [std::path::PathBuf; 2] {
    [folder.join(CHECKPOINTS), folder.join(FROM_DISK)]
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What processes hold that may outlive their launcher, from before the first step on.
const PROCESSES: &str = ".processes";

/// True once the first checkpoint or snapshot is being written.
pub(super) fn has_begun(folder: &Path) -> bool {
    names(folder).iter().any(|name| name != PROCESSES)
}

/// True for the name of a checkpoint that is there; others are being written.
fn is_checkpoint(name: &str) -> bool {
    let step = name.strip_prefix("step-").unwrap_or_default();
    step.len() == 8 && step.bytes().all(|byte| byte.is_ascii_digit())
}

/// True for the name of a server's snapshot.
fn is_snapshot(name: &str) -> bool {
    name.starts_with(&format!("{SNAPSHOT}.server")) && name.ends_with(".safetensors")
}

/// What is wrong with a snapshot, by the hash that stands in it.
fn damage_of_snapshot(image: &[u8]) -> Option<String> {
    let read = SafeTensors::read_metadata(image).and_then(|(_, header)| {
        SafeTensors::deserialize(image).map(|file| (header.metadata().clone(), file))
    });
    let (metadata, file) = match read {
        Ok(read) => read,
        Err(error) => return Some(error.to_string()),
    };
    let said = |name| metadata.as_ref().and_then(|metadata| metadata.get(name));
    let protocol = said("protocol").and_then(|text| hex::decode(text).ok());
    let Some(protocol) = protocol else { return Some("it lacks the protocol's state".to_string()) };
    let mut hash = Sha256::new_with_prefix((protocol.len() as u64).to_le_bytes());
    hash.update(protocol);
    let mut tensors = file.tensors();
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, view) in tensors {
        hash.update(format!("{name:?} {:?} {:?}\n", view.dtype(), view.shape()));
        hash.update(view.data());
    }
    let is_said = said("sha256") == Some(&hex::encode(hash.finalize()));
    (!is_said).then(|| "its contents are not those of its hash".to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn what_processes_hold_is_no_checkpoint_that_is_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let reached = |name: &str| {
            std::fs::write(folder.path().join(name), "").unwrap();
            has_begun(folder.path())
        };
        assert!(!has_begun(&folder.path().join("missing")) && !has_begun(folder.path()));
        assert!(!reached(PROCESSES));
        assert!(reached("step-00000004.partial"));
    }

    /// Of one tensor, and of what the protocol has.
    fn snapshot(sha256: &str) -> Vec<u8> {
        let view = TensorView::new(Dtype::F32, vec![2, 1], &[0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
        let metadata = [("protocol", "0102ff"), ("sha256", sha256)];
        let metadata = metadata.map(|(name, text)| (name.to_string(), text.to_string()));
        safetensors::serialize([("part/3/weights", view)], Some(HashMap::from(metadata))).unwrap()
    }

    #[test]
    fn one_byte_of_a_snapshot_that_is_another_is_damage() {
        let mut text = 3u64.to_le_bytes().to_vec();
        text.extend([1, 2, 255]);
        text.extend(b"\"part/3/weights\" F32 [2, 1]\n");
        text.extend([0, 0, 128, 63, 0, 0, 0, 64]);
        let whole = snapshot(&hex::encode(Sha256::digest(&text)));
        assert_eq!(damage_of_snapshot(&whole), None);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        for image in [&damaged, &whole[..whole.len() - 1], &snapshot("")[..], b""] {
            assert!(damage_of_snapshot(image).is_some(), "{image:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        for place in [CHECKPOINTS, FROM_DISK] {
            let path = folder.path().join(place);
            std::fs::create_dir(&path).unwrap();
            let file = path.join(format!("{SNAPSHOT}.server0.safetensors"));
            std::fs::write(&file, &damaged).unwrap();
            let found = damage(Path::new("true"), folder.path());
            assert!(found.unwrap().contains("its hash"), "{place}");
            std::fs::write(&file, &whole).unwrap();
            assert_eq!(damage(Path::new("true"), folder.path()), None);
        }
    }
}
