//! Where the data of the papers lie, and what stands in their place where they do not. `scripts/data.sh` fetches what may be
//! fetched; ImageNet is the user's own.

use std::path::{Path, PathBuf};

/// A folder with some of the papers' data, each in a folder of its own.
#[derive(Clone, Debug)]
pub struct DataFolder {
    path: PathBuf,
}

/// A folder that has none of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is none of mnist, cifar10, wmt and imagenet in '{folder}'; `scripts/data.sh {folder}` fetches the first three, and \
     ImageNet belongs in '{folder}/imagenet' as train and val, a folder a class"
)]
pub struct NoData {
    folder: String,
}

/// Data that a paper learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaperData {
    Mnist,
    Cifar10,
    /// French and English of WMT: News Commentary.
    Wmt,
    ImageNet,
}

impl PaperData {
    const ALL: [PaperData; 4] =
        [PaperData::Mnist, PaperData::Cifar10, PaperData::Wmt, PaperData::ImageNet];

    /// As the page calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            PaperData::Mnist => "MNIST",
            PaperData::Cifar10 => "CIFAR-10",
            PaperData::Wmt => "WMT News Commentary",
            PaperData::ImageNet => "ImageNet",
        }
    }

    /// What is there where it is.
    fn needs(self) -> &'static str {
        match self {
            PaperData::Mnist => "mnist/train-images-idx3-ubyte",
            PaperData::Cifar10 => "cifar10/test_batch.bin",
            PaperData::Wmt => "wmt/news-commentary-v9.fr-en.fr",
            PaperData::ImageNet => "imagenet/train",
        }
    }

    /// What `--data` of a training job is, if it lies in this folder.
    fn source(self, folder: &Path) -> String {
        let at = |name: &str| folder.join(name).display().to_string();
        match self {
            PaperData::Mnist => format!("mnist:{}", at("mnist")),
            PaperData::Cifar10 => format!("cifar10:{}", at("cifar10")),
            PaperData::Wmt => {
                let [from, to] = ["fr", "en"]
                    .map(|language| at(&format!("wmt/news-commentary-v9.fr-en.{language}")));
                format!("text:{from},{to}")
            }
            PaperData::ImageNet => format!("images:{},skip-bad", at("imagenet")),
        }
    }

    /// What measures figure `run` on it.
    pub(super) fn command(self, run: &str) -> String {
        let measure = format!("tensorwire bench evaluation --only {run} --data DIR");
        let fetched = |name: &str| format!("scripts/data.sh DIR {name} && {measure}");
        match self {
            PaperData::Mnist => fetched("mnist"),
            PaperData::Cifar10 => fetched("cifar10"),
            PaperData::Wmt => fetched("wmt"),
            // nobody else may hand it out
            PaperData::ImageNet => {
                format!("{measure}   # DIR/imagenet/train, DIR/imagenet/val: a folder a class")
            }
        }
    }
}

impl DataFolder {
    /// A folder with at least one of them.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(path: &Path) -> Result<DataFolder, NoData> {
        // members run elsewhere
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = DataFolder { path };
        match PaperData::ALL.iter().any(|data| folder.source(*data).is_some()) {
            true => Ok(folder),
            false => Err(NoData { folder: folder.path.display().to_string() }),
        }
    }

    /// What `--data` of a training job is, if it is there.
    pub(super) fn source(&self, data: PaperData) -> Option<String> {
        self.path.join(data.needs()).exists().then(|| data.source(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_found_where_the_script_puts_them() {
        let folder = tempfile::tempdir().unwrap();
        let none = DataFolder::open(folder.path()).unwrap_err().to_string();
        assert!(none.contains("scripts/data.sh ") && none.contains("imagenet"), "{none}");
        std::fs::create_dir_all(folder.path().join("wmt")).unwrap();
        std::fs::write(folder.path().join("wmt/news-commentary-v9.fr-en.fr"), "oui").unwrap();
        std::fs::create_dir_all(folder.path().join("imagenet/train")).unwrap();
        let found = DataFolder::open(folder.path()).unwrap();
        assert_eq!(found.source(PaperData::Mnist), None);
        assert_eq!(found.source(PaperData::Cifar10), None);
        for data in PaperData::ALL {
            // every name is one that a job takes
            data.source(folder.path()).parse::<tensorwire_zoo::data::Source>().unwrap();
        }
        let wmt = found.source(PaperData::Wmt).unwrap();
        assert!(
            wmt.starts_with("text:/") && wmt.ends_with("wmt/news-commentary-v9.fr-en.en"),
            "{wmt}"
        );
    }
}
