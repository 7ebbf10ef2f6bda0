//! Models and data by the names in a configuration: what is shipped.

use std::sync::Arc;

use tensorwire_nn::{Data, Error, Model};
use tensorwire_train::{ConfigError, Supply, TrainConfig};
use tensorwire_zoo::data::Source;

/// What is shipped, by name.
#[derive(Clone, Copy, Debug)]
pub struct ByName;

impl Supply for ByName {
    fn model(&self, config: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError> {
        Ok(Arc::new(tensorwire_zoo::model(&config.model).map_err(Error::other)?))
    }

    fn data(&self, config: &TrainConfig) -> Result<Data, ConfigError> {
        let source: Source = config.data.parse().map_err(Error::other)?;
        let model = tensorwire_zoo::model(&config.model).map_err(Error::other)?;
        let mut samples = model.samples();
        if let Some(tokens) = config.sequence {
            let name = samples.name();
            samples = samples.of_length(tokens).ok_or_else(|| {
                Error::Mismatch(format!(
                    "--sequence is of windows of text, and {} learns from {name}; leave it out",
                    config.model
                ))
            })?;
        }
        Ok(source.open(samples, config.seed).map_err(Error::other)?)
    }
}
