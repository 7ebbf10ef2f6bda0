//! Known models, and the data they learn from. Uses [`tensorwire_nn`] as anybody does; knows no sessions, no fabric
//! and no threads. Reads only the files it is given.
#![forbid(unsafe_code)]

pub mod data;
mod models;

pub use models::{
    AlexNet, Cifar, Fcn5, Gru, InceptionV3, Lstm, MODELS, Mlp, ResNet50, SentenceEmbedding,
    Seq2Seq, Shipped, UnknownModel, Vgg16, model,
};
