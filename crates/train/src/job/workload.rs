//! What is trained on what, and where a process gets it.

use std::fmt;
use std::sync::Arc;

use tensorwire_nn::{Data, Model};

use crate::config::{ConfigError, TrainConfig};
use crate::rates::RateFunction;

/// A model, and the data that it learns from. A clone shares both.
#[derive(Clone)]
pub struct Workload {
    pub model: Arc<dyn Model>,
    pub data: Data,
    /// The program's own rate of each step, in the place of the configuration's schedule.
    pub rates: Option<RateFunction>,
}

impl Workload {
    /// This model on these data.
    pub fn new(model: impl Model + 'static, data: impl Into<Data>) -> Workload {
        Workload { model: Arc::new(model), data: data.into(), rates: None }
    }
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload")
            .field("model", &self.model.name())
            .field("data", &self.data)
            .finish()
    }
}

/// Where a process gets what it trains: from its own program, or by the names in the configuration. A server asks for no data.
pub trait Supply {
    /// Returns the model.
    ///
    /// # Errors
    /// When there is none of that name.
    fn model(&self, config: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError>;

    /// Returns the data.
    ///
    /// # Errors
    /// When they cannot be read.
    fn data(&self, config: &TrainConfig) -> Result<Data, ConfigError>;

    /// Returns the program's own rate of each step, if it has one.
    fn rates(&self) -> Option<RateFunction> {
        None
    }
}

impl Supply for Workload {
    fn model(&self, _: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError> {
        Ok(self.model.clone())
    }

    fn data(&self, _: &TrainConfig) -> Result<Data, ConfigError> {
        Ok(self.data.clone())
    }

    fn rates(&self) -> Option<RateFunction> {
        self.rates.clone()
    }
}
