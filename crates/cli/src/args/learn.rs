//! How a model learns, as commands that prepare a job are told: the optimizer, its rate over the steps, and what becomes of
//! gradients before it takes them.

use clap::{Args, ValueEnum};
use tensorwire_bench::QUIET_RATE;
use tensorwire_nn::{Method, Optimizer, Schedule};
use tensorwire_train::{ConfigError, FloatType, TrainConfig, WireType};

use super::headings::{OPTIMIZER, WIRE};
use super::{DEFAULTS, with_default};

/// What `--momentum` is where it is not given.
pub(super) const MOMENTUM: f64 = 0.9;
/// What `--lr` is of an optimizer that scales its steps by the gradients that it saw, where it is not given.
const ADAPTIVE_RATE: f64 = 1e-3;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = OPTIMIZER)]
pub(crate) struct LearnArgs {
    /// One of sgd, momentum, adam, … [default: momentum]
    ///
    /// How a variable changes, given the mean gradient of a step. Where neither this nor --lr is given: what suits the
    /// model, adamw for transformers.
    #[arg(long, value_name = "NAME", value_enum)]
    optimizer: Option<OptimizerArg>,
    #[arg(long, allow_negative_numbers = true, alias = "learning-rate", value_name = "RATE",
        help = with_default("Learning rate", format_args!("{}; adam and such: {ADAPTIVE_RATE}", DEFAULTS.optimizer.rate)),
        long_help = with_default(
            "Learning rate",
            format_args!(
                "{}; adagrad, rmsprop, adam, adamw, lamb: {ADAPTIVE_RATE}; alexnet and vgg16 by momentum: 0.01; bench step: \
                 {QUIET_RATE}, at which no model diverges",
                DEFAULTS.optimizer.rate,
            ),
        ))]
    lr: Option<f64>,
    #[arg(long, value_name = "M", hide_short_help = true, help = with_default(
        "--optimizer momentum, nesterov: from 0 to below 1", MOMENTUM,
    ))]
    momentum: Option<f64>,
    /// How much what multiplies is drawn to 0
    ///
    /// Biases and scales are not. Of adamw and lamb decoupled from the gradient, else as the gradient of an L2 norm.
    /// [default: adamw, lamb: 0.01, else 0]
    #[arg(long, value_name = "LAMBDA", hide_short_help = true)]
    weight_decay: Option<f64>,
    /// Rate: linear, cosine, …
    ///
    /// Rate of each step as a factor of --lr: `constant`, `step:EVERY,FACTOR`, `exponential:FACTOR`, `linear[:LEAST]` or
    /// `cosine[:LEAST]`, the last two over all steps, down to LEAST (0) of it.
    #[arg(long, aliases = ["lr-scheduler", "lr-schedule", "scheduler"], value_name = "CURVE", default_value_t = Schedule::constant())]
    schedule: Schedule,
    /// Steps in which the rate first grows from 0 to --lr
    #[arg(
        long,
        alias = "warmup-steps",
        value_name = "STEPS",
        hide_short_help = true,
        default_value_t = 0
    )]
    warmup: u64,
    /// Parameters that do not decay besides, by name
    ///
    /// `*` stands for any characters (`wte,*norm*`).
    #[arg(long, value_name = "NAMES", hide_short_help = true, value_delimiter = ',')]
    no_decay: Vec<String>,
    /// Average the parameters over the steps
    ///
    /// Each step counts DECAY times the one behind it; the averages are evaluated and saved in their place.
    /// [default: the parameters themselves]
    #[arg(long, value_name = "DECAY", hide_short_help = true)]
    ema: Option<f64>,
    /// Largest norm of the mean gradient [default: any]
    ///
    /// The mean gradient of all variables is scaled down to this norm where its own is larger.
    #[arg(long, aliases = ["clip-grad-norm", "max-grad-norm"], value_name = "NORM", hide_short_help = true)]
    clip_norm: Option<f64>,
    /// Batches of which each worker's gradient is the mean
    ///
    /// So many times the samples of a step in the memory of one.
    #[arg(
        long,
        alias = "gradient-accumulation-steps",
        value_name = "N",
        hide_short_help = true,
        default_value_t = 1
    )]
    accumulate: usize,
    /// Type of variables and activations
    ///
    /// Sums of bf16 are made in f32.
    #[arg(long, value_name = "TYPE", hide_short_help = true, value_enum, default_value = DEFAULTS.dtype.name())]
    dtype: FloatArg,
    /// Type of activations [default: --dtype]
    ///
    /// `bf16` keeps variables and optimizer in --dtype.
    #[arg(long, value_name = "TYPE", hide_short_help = true, value_enum)]
    precision: Option<FloatArg>,
    /// Type that crosses: f32, bf16, int8, …
    ///
    /// What gradients and weights of f32 cross as between processes: `bf16` rounds them, and sends half of the bytes. `int8` sends
    /// a byte for each element of a gradient, `top-k:SHARE` the largest elements (0.01), and both add what that leaves to the worker's
    /// next gradient, and round the weights to bf16 (ps, allreduce, dist-sgd, dist-asgd).
    #[arg(long, value_name = "TYPE", help_heading = WIRE, default_value_t = DEFAULTS.wire)]
    wire: WireType,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OptimizerArg {
    Sgd,
    Momentum,
    Nesterov,
    #[value(name = "adagrad")]
    AdaGrad,
    #[value(name = "rmsprop")]
    RmsProp,
    Adam,
    #[value(name = "adamw")]
    AdamW,
    Lamb,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FloatArg {
    #[value(alias = "fp32", alias = "float32")]
    F32,
    #[value(alias = "fp64", alias = "float64")]
    F64,
    #[value(alias = "bfloat16")]
    Bf16,
}

impl LearnArgs {
    /// Refuses what was given and would change nothing. `usual` is what suits the model.
    pub(super) fn check_used(&self, usual: Optimizer) -> Result<(), ConfigError> {
        let has_momentum = matches!(
            self.optimizer(usual, None).method,
            Method::Momentum { .. } | Method::Nesterov { .. }
        );
        match self.momentum.is_some() && !has_momentum {
            true => Err(ConfigError::Unused {
                option: "--momentum",
                used_by: "--optimizer momentum and nesterov",
            }),
            false => Ok(()),
        }
    }

    /// What it says of a job. `usual` is what suits the model; with `quiet` something else suits the command, at this rate.
    pub(super) fn configure(&self, config: &mut TrainConfig, usual: Optimizer, quiet: Option<f64>) {
        let optimizer = self.optimizer(usual, quiet);
        config.optimizer = optimizer.decaying(self.weight_decay.unwrap_or(optimizer.decay));
        config.schedule = self.schedule.warm_up(self.warmup);
        config.clip_norm = self.clip_norm;
        config.no_decay.clone_from(&self.no_decay);
        config.ema = self.ema;
        config.accumulate = self.accumulate;
        config.dtype = self.dtype.into();
        config.activations = self.precision.map(FloatType::from);
        config.wire = self.wire;
    }

    /// An optimizer with its usual parameters but for those that are given.
    fn optimizer(&self, usual: Optimizer, quiet: Option<f64>) -> Optimizer {
        let momentum = self.momentum.unwrap_or(MOMENTUM);
        let given = match (self.optimizer, self.lr, quiet) {
            (None, None, None) => match usual.method {
                Method::Momentum { .. } => return Method::Momentum { momentum }.at(usual.rate),
                _ => return usual,
            },
            (given, ..) => given.unwrap_or(OptimizerArg::Momentum),
        };
        let at = |rate| given.at(rate, momentum);
        let is_usual = at(usual.rate).kind() == usual.kind();
        let rate = self.lr.or(quiet).unwrap_or(match given {
            _ if is_usual => usual.rate,
            OptimizerArg::Sgd | OptimizerArg::Momentum | OptimizerArg::Nesterov => {
                DEFAULTS.optimizer.rate
            }
            _ => ADAPTIVE_RATE,
        });
        at(rate)
    }
}

impl OptimizerArg {
    /// The optimizer at a rate, with its usual parameters but for the momentum.
    fn at(self, rate: f64, momentum: f64) -> Optimizer {
        match self {
            OptimizerArg::Sgd => Optimizer::sgd(rate),
            OptimizerArg::Momentum => Method::Momentum { momentum }.at(rate),
            OptimizerArg::Nesterov => Method::Nesterov { momentum }.at(rate),
            OptimizerArg::AdaGrad => Optimizer::adagrad(rate),
            OptimizerArg::RmsProp => Optimizer::rmsprop(rate),
            OptimizerArg::Adam => Optimizer::adam(rate),
            OptimizerArg::AdamW => Optimizer::adamw(rate),
            OptimizerArg::Lamb => Optimizer::lamb(rate),
        }
    }
}

impl From<FloatArg> for FloatType {
    fn from(given: FloatArg) -> FloatType {
        match given {
            FloatArg::F32 => FloatType::F32,
            FloatArg::F64 => FloatType::F64,
            FloatArg::Bf16 => FloatType::Bf16,
        }
    }
}
