//! What a program that trains a model of its own uses.

pub use tensorwire_graph::Placement;
pub use tensorwire_launch::Transport;
pub use tensorwire_nn::{
    self as nn, Batch, DType, Data, Dataset, Description, Model, Optimizer, Outputs, Padding,
    Sample, Schedule, Scope, Stream,
};
pub use tensorwire_train::{FinishedStep, FloatType, Kernels, StoreConfig, Summary, WireType};

pub use crate::Training;
pub use crate::strategies::{
    AllReduce, AsyncGroups, AsyncParameterServers, AsyncStore, ElasticAveraging, ElasticGroups,
    Groups, Local, ParameterServers, Store,
};
