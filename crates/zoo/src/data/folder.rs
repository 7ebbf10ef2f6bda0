//! Images in folders, a folder a class, as ImageNet is unpacked: what there is, and which of it is for the test. Reads the
//! names of files, not what is in them.

use std::collections::BTreeMap;
use std::fs::read_dir;
use std::io;
use std::path::{Path, PathBuf};

use tensorwire_nn::order::{random, shuffle};

use super::error::DataError;

/// Names that files of images end in, in any case.
const SUFFIXES: [&str; 3] = ["jpg", "jpeg", "png"];
/// Of so many images of a class one is for the test, where the test has no folder.
const TEST_EVERY: usize = 10;
/// Folders in a class's folder that are looked into, one in the other.
const DEPTH_MAX: usize = 8;
/// The random streams that put images aside for the test are numbered from here on, class by class.
const ASIDE_STREAMS: u64 = 3 << 60;

/// The images of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// The names of their folders, in the order of bytes: class `i` is folder `i`.
    pub(super) classes: Vec<String>,
    pub(super) train: Vec<ImageFile>,
    pub(super) test: Vec<ImageFile>,
}

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageFile {
    /// Relative to the folder of the whole set.
    pub(super) path: Box<Path>,
    pub(super) class: u32,
}

/// The files of each class, by its name.
type Classes = BTreeMap<String, Vec<PathBuf>>;

impl Listing {
    /// What lies in `root/train` and `root/val` (or `test`), or where they are not, in `root`; of the latter every tenth image
    /// of each class, chosen by `seed`, is for the test. The same on every machine that has the same files.
    ///
    /// # Errors
    /// A folder that cannot be read or has no folders with images.
    pub(super) fn read(root: &Path, seed: u64) -> Result<Listing, DataError> {
        let train = root.join("train");
        let tests = ["val", "valid", "test"].map(|name| root.join(name));
        match tests.into_iter().find(|test| test.is_dir()) {
            Some(test) if train.is_dir() => {
                let train = classes(&train)?;
                Listing::of(root, train, Some((&test, classes(&test)?)), seed)
            }
            _ if train.is_dir() => Listing::of(root, classes(&train)?, None, seed),
            _ => Listing::of(root, classes(root)?, None, seed),
        }
    }

    fn of(
        root: &Path,
        train: Classes,
        test: Option<(&Path, Classes)>,
        seed: u64,
    ) -> Result<Listing, DataError> {
        let names: Vec<String> = train.keys().cloned().collect();
        let mut listing = Listing { classes: names, train: vec![], test: vec![] };
        let image = |path: &Path, class: usize| ImageFile {
            path: path.strip_prefix(root).unwrap_or(path).into(),
            // fits: folders are fewer
            class: class as u32,
        };
        let has_test = test.is_some();
        for (class, (_, files)) in train.into_iter().enumerate() {
            let aside = if has_test { vec![] } else { aside(files.len(), class, seed) };
            for (place, file) in files.iter().enumerate() {
                match aside.binary_search(&place) {
                    Ok(_) => listing.test.push(image(file, class)),
                    Err(_) => listing.train.push(image(file, class)),
                }
            }
        }
        if let Some((folder, of_test)) = test {
            for (name, files) in of_test {
                let Ok(class) = listing.classes.binary_search(&name) else {
                    let folder = folder.display().to_string();
                    return Err(DataError::NoClassOfTrain { folder, class: name.clone() });
                };
                listing.test.extend(files.iter().map(|file| image(file, class)));
            }
        }
        Ok(listing)
    }
}

/// The places of a class's files that are put aside for the test, in order.
fn aside(files: usize, class: usize, seed: u64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..files).collect();
    shuffle(&mut places, &mut random(seed, ASIDE_STREAMS + class as u64));
    places.truncate(files / TEST_EVERY);
    places.sort_unstable();
    places
}

fn classes(folder: &Path) -> Result<Classes, DataError> {
    const MEND: &str = "put the images of each class in a folder of its own: DIR/CLASS/IMAGE.jpg";
    let refused = |reason: &str| no_classes(folder, reason, MEND);
    let unreadable = |path: &Path, source| {
        let file = path.display().to_string();
        DataError::Unreadable { file, source }
    };
    let entries = sorted(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotADirectory => refused("it is a file"),
        _ => unreadable(folder, source),
    })?;
    let mut classes = Classes::new();
    let mut has_images = false;
    for path in entries {
        has_images |= is_image(&path);
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(refused(&format!("the name of {} is no UTF-8", path.display())));
        };
        if !path.is_dir() || name.starts_with('.') {
            continue;
        }
        let mut files = vec![];
        images(&path, DEPTH_MAX, &mut files).map_err(|source| unreadable(&path, source))?;
        if files.is_empty() {
            return Err(refused(&format!("class '{name}' has no .jpg, .jpeg or .png")));
        }
        classes.insert(name.to_owned(), files);
    }
    match (classes.is_empty(), has_images) {
        (true, true) => Err(refused("the images lie in it directly")),
        (true, false) => Err(refused("there is none in it")),
        _ => Ok(classes),
    }
}

/// Adds the images in a folder and in those in it.
fn images(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for path in sorted(folder)? {
        if is_image(&path) {
            files.push(path);
        } else if depth > 0 && path.is_dir() {
            images(&path, depth - 1, files)?;
        }
    }
    Ok(())
}

/// What is in a folder, in the order of bytes.
fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let suffix = path.extension().and_then(|suffix| suffix.to_str());
    suffix.is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix.eq_ignore_ascii_case(known)))
}

fn no_classes(folder: &Path, reason: &str, mend: &'static str) -> DataError {
    let (folder, reason) = (folder.display().to_string(), reason.to_owned());
    DataError::NoClasses { folder, reason, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, all empty.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        root
    }

    fn shown(files: &[ImageFile]) -> Vec<(String, u32)> {
        files.iter().map(|file| (file.path.display().to_string(), file.class)).collect()
    }

    #[test]
    fn train_and_val_are_classes_by_their_names() {
        let root = folder(&[
            "train/dog/b.JPEG",
            "train/dog/a.png",
            "train/cat/more/c.jpg",
            "train/cat/readme.txt",
            "train/notes.txt",
            "val/dog/d.jpeg",
        ]);
        let listing = Listing::read(root.path(), 1).unwrap();
        assert_eq!(listing.classes, ["cat", "dog"]);
        let wanted = [("train/cat/more/c.jpg", 0), ("train/dog/a.png", 1), ("train/dog/b.JPEG", 1)];
        assert_eq!(shown(&listing.train), wanted.map(|(path, class)| (path.to_owned(), class)));
        assert_eq!(shown(&listing.test), [("val/dog/d.jpeg".to_owned(), 1)]);
    }

    #[test]
    fn a_tenth_of_each_class_is_put_aside_by_seed() {
        let names: Vec<String> =
            (0..40).map(|i| format!("{}/{i:02}.jpg", ["a", "b"][i % 2])).collect();
        let root = folder(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let listing = Listing::read(root.path(), 1).unwrap();
        assert_eq!((listing.train.len(), listing.test.len()), (36, 4));
        assert_eq!(listing.test.iter().filter(|file| file.class == 0).count(), 2);
        assert!(listing.test.iter().all(|file| !listing.train.contains(file)));
        assert_eq!(listing, Listing::read(root.path(), 1).unwrap());
        assert_ne!(listing.test, Listing::read(root.path(), 2).unwrap().test);
    }

    #[test]
    fn a_folder_of_another_form_is_told_which_form_to_have() {
        let said = |files: &[&str]| {
            let root = folder(files);
            let error = Listing::read(root.path(), 1).unwrap_err();
            let is_of_form =
                matches!(error, DataError::NoClasses { .. } | DataError::NoClassOfTrain { .. });
            assert!(is_of_form, "{error}");
            error.to_string()
        };
        assert!(said(&["a.jpg"]).contains("the images lie in it directly; put the images"));
        assert!(said(&["a.txt"]).contains("there is none in it"));
        assert!(said(&["cat/a.jpg", "dog/a.txt"]).contains("class 'dog' has no .jpg"));
        let other = said(&["train/cat/a.jpg", "val/dog/a.jpg"]);
        assert!(other.contains("val' has a class 'dog', which is not one of"), "{other}");
        let missing = Listing::read(Path::new("/no/such/folder"), 1).unwrap_err();
        assert!(missing.to_string().contains("'/no/such/folder'"), "{missing}");
        let root = folder(&["file"]);
        let file = Listing::read(&root.path().join("file"), 1).unwrap_err();
        assert!(file.to_string().contains("it is a file"), "{file}");
    }
}
