//! The shipped models: a file each, and a line in [`MODELS`].

mod alexnet;
mod bert;
mod cifar;
mod gpt;
mod inception;
mod perceptrons;
mod recurrent;
mod resnet;
mod sentences;
mod seq2seq;
mod transformer;
mod vgg;
mod vit;

use tensorwire_base::nearest;
use tensorwire_nn::{Description, Error, Method, Model, Optimizer, Result};

use crate::data::SampleKind;

pub use alexnet::AlexNet;
pub use bert::Bert;
pub use cifar::Cifar;
pub use gpt::Gpt;
pub use inception::InceptionV3;
pub use perceptrons::{Fcn5, Mlp};
pub use recurrent::{Gru, Lstm};
pub use resnet::ResNet50;
pub use sentences::SentenceEmbedding;
pub use seq2seq::Seq2Seq;
pub use vgg::Vgg16;
pub use vit::Vit;

/// A shipped model. The command line knows it by its name.
pub trait Shipped: Model {
    /// The samples that the literature trains it on. Synthetic data look like them.
    fn samples(&self) -> SampleKind;

    /// What it learns by where nobody says: at this rate its loss falls. Transformers need AdamW.
    fn optimizer(&self) -> Optimizer {
        Method::Momentum { momentum: 0.9 }.at(0.05)
    }
}

impl std::fmt::Debug for dyn Shipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl PartialEq for dyn Shipped {
    /// True if both are of one name.
    fn eq(&self, other: &dyn Shipped) -> bool {
        self.name() == other.name()
    }
}

/// All shipped models.
pub static MODELS: [&dyn Shipped; 15] = [
    &Mlp,
    &Fcn5,
    &AlexNet,
    &Vgg16,
    &InceptionV3,
    &ResNet50,
    &Cifar,
    &Lstm,
    &Gru,
    &Seq2Seq,
    &SentenceEmbedding,
    &Gpt::SMALL,
    &Gpt::MINI,
    &Bert::MINI,
    &Vit::SMALL,
];

/// No model has the name that was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no model '{found}'; {}known models: {known}", .nearest.as_ref().map(|name| format!("did you mean '{name}'? ")).unwrap_or_default())]
pub struct UnknownModel {
    pub found: String,
    /// The model with the most similar name, if one is similar.
    pub nearest: Option<String>,
    pub known: String,
}

impl From<UnknownModel> for Error {
    fn from(error: UnknownModel) -> Error {
        Error::other(error)
    }
}

/// The model of this name, in any case, and with other hyphens or none.
///
/// ```
/// use tensorwire_zoo::{Shipped, model};
/// assert_eq!(model("vgg16")?.samples().to_string(), "224×224×3 → 10");
/// assert_eq!(model("VGG-16")?.name(), "vgg16");
/// assert_eq!(model("resent50").err().and_then(|e| e.nearest).as_deref(), Some("resnet50"));
/// # Ok::<(), tensorwire_zoo::UnknownModel>(())
/// ```
///
/// # Errors
/// When there is none, with the names that there are.
pub fn model(name: &str) -> Result<&'static dyn Shipped, UnknownModel> {
    let found = MODELS.into_iter().find(|model| folded(&model.name()) == folded(name));
    found.ok_or_else(|| {
        let names = MODELS.map(|model| model.name());
        let nearest = nearest(name, names.iter().map(String::as_str)).map(str::to_string);
        UnknownModel { found: name.to_string(), nearest, known: names.join(", ") }
    })
}

/// A name without what people write in different ways.
fn folded(name: &str) -> String {
    name.chars().filter(|c| !['-', '_'].contains(c)).flat_map(char::to_lowercase).collect()
}

/// The kind of the data, if the model learns from it.
fn kind_of(model: &dyn Shipped, data: &Description) -> Result<SampleKind> {
    let (wanted, found) = (model.samples(), SampleKind::of(data));
    if let Some(found) = found.filter(|found| found.name() == wanted.name()) {
        return Ok(found);
    }
    let (name, wanted) = (model.name(), wanted.name());
    let Some(found) = found.map(|found| found.name()) else {
        return Err(Error::Mismatch(format!(
            "{name} learns from {wanted}, {}, and the data are {data}; choose other data{}",
            model.samples().describe(),
            numbers_to_predict(data)
        )));
    };
    let fits = |model: &&&dyn Shipped| model.samples().name() == found;
    let names = MODELS.iter().filter(fits).map(|model| model.name());
    let fitting = format!("--model {}", names.collect::<Vec<_>>().join("|"));
    Err(Error::Mismatch(format!(
        "{name} learns from {wanted}, and the data are {found}; choose other data, or {fitting}"
    )))
}

/// What helps who gave data with numbers to predict: labels that are no whole numbers from 0 on make them such.
fn numbers_to_predict(data: &Description) -> &'static str {
    match data.get("target").is_some_and(|feature| feature.dtype.is_floating()) {
        true => {
            ": its labels are numbers to predict, as not all are whole numbers from 0 on, and no shipped model predicts numbers; \
             one of your own does"
        }
        false => "",
    }
}

/// Checks data for a model that takes images of one size.
fn check_image(model: &dyn Shipped, data: &Description) -> Result<()> {
    match (model.samples(), kind_of(model, data)?) {
        (SampleKind::Images { dims: wanted, .. }, SampleKind::Images { dims: found, .. })
            if wanted != found =>
        {
            let size =
                |[height, width, channels]: [usize; 3]| format!("{height}×{width}×{channels}");
            Err(Error::Mismatch(format!(
                "{} takes images of {}, and the data's are {}; choose other data, such as \
                 synthetic or digits:1438,{}, or a model for any image: cifar, mlp, fcn5",
                model.name(),
                size(wanted),
                size(found),
                size(wanted).replace('×', "x")
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_both_ways() {
        for shipped in MODELS {
            assert_eq!(model(&shipped.name()).unwrap().name(), shipped.name());
        }
        assert!(model("perceptron").is_err());
        for (written, name) in [
            ("ResNet50", "resnet50"),
            ("resnet-50", "resnet50"),
            ("VGG-16", "vgg16"),
            ("InceptionV3", "inception-v3"),
            ("gpt2_small", "gpt2-small"),
        ] {
            assert_eq!(model(written).unwrap().name(), name);
        }
        let mut folded: Vec<String> = MODELS.map(|model| folded(&model.name())).into();
        folded.sort();
        folded.dedup();
        assert_eq!(folded.len(), MODELS.len(), "no two are alike");
    }

    #[test]
    fn a_near_miss_is_told_what_it_missed() {
        let said = |name: &str| model(name).err().map(|error| error.to_string()).unwrap();
        for (missed, meant) in [
            ("resent50", "resnet50"),
            ("ResNet-51", "resnet50"),
            ("vgg19", "vgg16"),
            ("inception-v4", "inception-v3"),
            ("mpl", "mlp"),
            ("sentence-embeding", "sentence-embedding"),
            ("bert", "bert-mini"),
        ] {
            let text = said(missed);
            assert!(
                text.contains(&format!("; did you mean '{meant}'? known models: mlp, ")),
                "{text}"
            );
        }
        for name in ["perceptron", "nothing", "", "transformer"] {
            let text = said(name);
            assert!(
                text.starts_with(&format!("there is no model '{name}'; known models: mlp")),
                "{text}"
            );
        }
    }
}
