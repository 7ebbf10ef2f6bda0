//! The models, each a short function that builds a graph: from what it is fed to the logits that its loss is
//! made of.

mod alexnet;
mod cifar;
mod inception;
mod perceptrons;
mod recurrent;
mod resnet;
mod sentences;
mod seq2seq;
mod vgg;

use tensorwire_graph::{Cell, GraphError, Output};
use tensorwire_tensor::{DType, Dim};

use crate::data::Shape;
use tensorwire_nn::{Outcome, Scope};

/// The models there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    Mlp,
    Fcn5,
    AlexNet,
    Vgg16,
    InceptionV3,
    ResNet50,
    Cifar,
    Lstm,
    Gru,
    Seq2Seq,
    SentenceEmbedding,
}

/// Why a model cannot be trained on some data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MismatchError {
    #[error(
        "{model} learns from {wanted}, and the data are {found}; choose other data, or {fitting}"
    )]
    Kind { model: &'static str, wanted: &'static str, found: &'static str, fitting: String },
    #[error(
        "{model} takes images of {}×{}×{}, and the data's are {}×{}×{}; choose other data, such as \
         synthetic, or a model for any image: cifar, mlp, fcn5", .wanted[0], .wanted[1], .wanted[2],
        .found[0], .found[1], .found[2]
    )]
    Image { model: &'static str, wanted: [usize; 3], found: [usize; 3] },
    #[error("{model} needs images of at least {least}×{least}, and the data's are {}×{}", .found[0], .found[1])]
    SmallImage { model: &'static str, least: usize, found: [usize; 3] },
}

impl Model {
    pub const ALL: [Model; 11] = [
        Model::Mlp,
        Model::Fcn5,
        Model::AlexNet,
        Model::Vgg16,
        Model::InceptionV3,
        Model::ResNet50,
        Model::Cifar,
        Model::Lstm,
        Model::Gru,
        Model::Seq2Seq,
        Model::SentenceEmbedding,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Model::Mlp => "mlp",
            Model::Fcn5 => "fcn5",
            Model::AlexNet => "alexnet",
            Model::Vgg16 => "vgg16",
            Model::InceptionV3 => "inception-v3",
            Model::ResNet50 => "resnet50",
            Model::Cifar => "cifar",
            Model::Lstm => "lstm",
            Model::Gru => "gru",
            Model::Seq2Seq => "seq2seq",
            Model::SentenceEmbedding => "sentence-embedding",
        }
    }

    /// The model of this name.
    pub fn from_name(name: &str) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Does it have convolutions?
    pub fn convolves(self) -> bool {
        match self {
            Model::AlexNet | Model::Vgg16 | Model::InceptionV3 => true,
            Model::ResNet50 | Model::Cifar => true,
            Model::Mlp | Model::Fcn5 | Model::Lstm | Model::Gru => false,
            Model::Seq2Seq | Model::SentenceEmbedding => false,
        }
    }

    /// What the literature trains it on, which is what synthetic data are made like.
    pub fn sample_shape(self) -> Shape {
        let image =
            |size, channels, classes| Shape::Images { dims: [size, size, channels], classes };
        match self {
            Model::Mlp | Model::Fcn5 => image(28, 1, 10),
            Model::AlexNet | Model::Vgg16 => image(224, 3, 10),
            Model::InceptionV3 => image(299, 3, 10),
            Model::ResNet50 => image(224, 3, 1000),
            Model::Cifar => image(32, 3, 10),
            Model::Lstm | Model::Gru => {
                Shape::Sequences { steps: 80, features: 1024, classes: 1000 }
            }
            Model::Seq2Seq => Shape::Pairs { source_words: 8000, target_words: 8000 },
            Model::SentenceEmbedding => Shape::Sentences { words: 1000, classes: 64 },
        }
    }

    /// Can the model be trained on samples of `shape`?
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn check(self, shape: &Shape) -> Result<(), MismatchError> {
        let own = self.sample_shape();
        let model = self.name();
        if own.kind() != shape.kind() {
            let fits = |model: &Model| model.sample_shape().kind() == shape.kind();
            let names = Model::ALL.into_iter().filter(fits).map(Model::name);
            let fitting = format!("--model {}", names.collect::<Vec<_>>().join("|"));
            let (wanted, found) = (own.kind(), shape.kind());
            return Err(MismatchError::Kind { model, wanted, found, fitting });
        }
        match (self, own, *shape) {
            (
                Model::AlexNet | Model::Vgg16 | Model::InceptionV3 | Model::ResNet50,
                Shape::Images { dims: wanted, .. },
                Shape::Images { dims: found, .. },
            ) if wanted != found => Err(MismatchError::Image { model, wanted, found }),
            (Model::Cifar, _, Shape::Images { dims: found, .. })
                if found[0].min(found[1]) < cifar::SIZE_MIN =>
            {
                Err(MismatchError::SmallImage { model, least: cifar::SIZE_MIN, found })
            }
            _ => Ok(()),
        }
    }

    /// The model for samples of `shape`.
    pub fn on(self, shape: Shape) -> OnSamples {
        OnSamples { model: self, shape }
    }

    fn build(self, scope: &mut Scope<'_>, shape: &Shape) -> Result<Outcome, GraphError> {
        let outcome = match (self, *shape) {
            (Model::Seq2Seq, Shape::Pairs { source_words, target_words }) => {
                return seq2seq::build(scope, source_words, target_words);
            }
            (Model::SentenceEmbedding, Shape::Sentences { words, .. }) => {
                return sentences::build(scope, words);
            }
            (_, Shape::Images { dims, classes }) => {
                let dims = [scope.batch, dims[0], dims[1], dims[2]].map(Dim::Known);
                let x = scope.numbers("input", &dims)?;
                self.classify_images(scope, x, classes)?
            }
            (_, Shape::Sequences { steps, features, classes }) => {
                let dims = [steps * scope.batch, features].map(Dim::Known);
                let x = scope.numbers("input", &dims)?;
                let cell = if self == Model::Gru { Cell::Gru } else { Cell::Lstm };
                Logits::of(recurrent::logits(scope, x, cell, steps, classes)?)
            }
            // data of another kind were refused
            (_, shape) => {
                return Err(GraphError::Invalid {
                    node: self.name().to_string(),
                    what: format!("does not learn from {}", shape.kind()),
                });
            }
        };
        let labels = scope.input("labels", DType::I32, &[Dim::Known(scope.batch)])?;
        let Logits { logits, auxiliary } = outcome;
        Ok(Outcome { logits, labels, auxiliary })
    }

    fn classify_images(
        self,
        scope: &mut Scope<'_>,
        x: Output,
        classes: usize,
    ) -> Result<Logits, GraphError> {
        Ok(match self {
            Model::AlexNet => Logits::of(alexnet::logits(scope, x, classes)?),
            Model::Vgg16 => Logits::of(vgg::logits(scope, x, classes)?),
            Model::InceptionV3 => inception::logits(scope, x, classes)?,
            Model::ResNet50 => Logits::of(resnet::logits(scope, x, classes)?),
            Model::Cifar => Logits::of(cifar::logits(scope, x, classes)?),
            Model::Fcn5 => Logits::of(perceptrons::fcn5(scope, x, classes)?),
            _ => Logits::of(perceptrons::mlp(scope, x, classes)?),
        })
    }
}

/// A model that knows its samples.
#[derive(Clone, Copy, Debug)]
pub struct OnSamples {
    model: Model,
    shape: Shape,
}

impl tensorwire_nn::Model for OnSamples {
    fn forward(&self, scope: &mut Scope<'_>) -> Result<Outcome, GraphError> {
        self.model.build(scope, &self.shape)
    }
}

/// A classifier's output.
struct Logits {
    logits: Output,
    auxiliary: Option<(Output, f64)>,
}

impl Logits {
    fn of(logits: Output) -> Logits {
        Logits { logits, auxiliary: None }
    }
}
