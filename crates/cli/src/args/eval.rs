//! The command line of `tensorwire eval`.

use std::path::PathBuf;

use clap::Args;
use tensorwire_train::{
    CheckpointFolder, ConfigError, DeviceChoice, FloatType, TrainConfig, WeightsOrigin,
};

use super::headings::{CHECKPOINTS, COMPUTE, MODEL, OUTPUT};
use super::job::{KernelsArg, MathArg, cuda_libraries, default_data};
use super::learn::FloatArg;
use super::{DEFAULTS, with_default};

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire eval --load weights.safetensors   its model, and its data
  tensorwire eval --load runs/digits           the newest checkpoint
  tensorwire eval --load runs/digits/best      the best one (--keep-best)
  tensorwire eval --load runs/digits --data csv:train.csv,new.csv
      other samples: all rows of new.csv";

#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    /// Weights: a file, a checkpoint, or a folder of them
    ///
    /// A safetensors file, as --save writes it; a checkpoint, such as DIR/best or DIR/step-00000200; or what train
    /// --checkpoint was given, of which the newest is taken.
    #[arg(long, value_name = "PATH", help_heading = CHECKPOINTS)]
    load: PathBuf,
    #[arg(long, value_name = "NAME", help_heading = MODEL, value_parser = super::models::model_name,
          help = with_default("Model", format_args!("that of the weights, or {}", DEFAULTS.model)))]
    model: Option<String>,
    /// Data, as `train` takes them: its test's samples
    ///
    /// [default: those of the weights, or as of `train`]
    #[arg(long, alias = "dataset", help_heading = MODEL)]
    data: Option<String>,
    /// Tokens of a window of text [default: as many as the model takes]
    #[arg(long, value_name = "N", help_heading = MODEL, hide_short_help = true)]
    sequence: Option<usize>,
    /// Samples at a time
    #[arg(long, alias = "batch-size", value_name = "B", help_heading = MODEL, default_value_t = DEFAULTS.batch)]
    batch: usize,
    /// Seed of made-up data, and of which rows are the test's
    ///
    /// Where the test has no file of its own. [default: that of the weights, or as of `train`]
    #[arg(long, value_name = "S", help_heading = MODEL, hide_short_help = true)]
    seed: Option<u64>,
    /// Type of the weights
    #[arg(long, value_name = "TYPE", help_heading = COMPUTE, hide_short_help = true, value_enum,
          default_value = DEFAULTS.dtype.name())]
    dtype: FloatArg,
    /// Type of activations [default: --dtype]
    #[arg(long, value_name = "TYPE", help_heading = COMPUTE, hide_short_help = true, value_enum)]
    precision: Option<FloatArg>,
    /// What computes: cpu, cuda, cuda:N, auto
    #[arg(long, value_name = "DEVICE", help_heading = COMPUTE, default_value_t = DEFAULTS.device)]
    device: DeviceChoice,
    /// What a GPU multiplies: f32, tf32, bf16
    #[arg(long, value_name = "FORMAT", help_heading = COMPUTE, value_enum, hide_short_help = true,
          default_value = DEFAULTS.math.name())]
    math: MathArg,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "N", help_heading = COMPUTE, hide_short_help = true)]
    threads: Option<usize>,
    /// Which kernels compute
    #[arg(long, value_name = "NAME", help_heading = COMPUTE, hide_short_help = true, value_enum,
          default_value = DEFAULTS.kernels.name())]
    kernels: KernelsArg,
    /// The library of CUDA's driver [default: libcuda.so.1]
    #[arg(long, value_name = "FILE", help_heading = COMPUTE, hide_short_help = true)]
    cuda_driver: Option<PathBuf>,
    /// Folders with CUDA's libraries, or none
    #[arg(long, value_name = "FOLDER", help_heading = COMPUTE, hide_short_help = true, value_delimiter = ',')]
    cuda_libs: Vec<PathBuf>,
    /// One line of JSON instead
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

impl EvalArgs {
    /// What is evaluated on what, and whether that is the weights' own word on their data. What is not said is as the checkpoint, or
    /// the file, has it.
    ///
    /// # Errors
    /// When no checkpoint in the folder is whole.
    pub(crate) fn config(self) -> Result<(TrainConfig, bool), ConfigError> {
        let newest = self.load.is_dir().then(|| CheckpointFolder::new(&self.load).newest_whole());
        let load = newest.transpose()?.map_or(self.load, |(found, _)| found.path);
        let said = WeightsOrigin::read(&load);
        let of_said = said.as_ref().map(|said| said.model.clone());
        let model = self.model.or(of_said).unwrap_or(DEFAULTS.model.clone());
        // of another model they may be of no use
        let said = said.filter(|said| said.model == model);
        let seed = said.as_ref().and_then(|said| said.seed);
        let own = said.map(|said| said.data);
        let data = self.data.or_else(|| own.clone());
        let data = data.unwrap_or_else(|| default_data(&model).to_string());
        let is_own = own.as_ref() == Some(&data);
        let config = TrainConfig {
            data,
            model,
            sequence: self.sequence,
            batch: self.batch,
            seed: self.seed.or(seed).unwrap_or(DEFAULTS.seed),
            dtype: self.dtype.into(),
            activations: self.precision.map(FloatType::from),
            device: self.device,
            math: self.math.into(),
            threads: self.threads,
            kernels: self.kernels.into(),
            cuda_driver: self.cuda_driver,
            cuda_libraries: cuda_libraries(self.cuda_libs),
            load: Some(load),
            ..TrainConfig::default()
        };
        Ok((config, is_own))
    }
}
