//! What tensors of f32 cross as, and where that cannot be.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tensorwire_graph::{AllReduceBy, Placement};
use tensorwire_nn::Compression;
use tensorwire_tensor::DType;

use super::{CollectivesChoice, ConfigError, FloatType, TrainConfig};
use crate::strategy::Strategy;

/// What tensors of f32 cross as (`--wire`). Those of fewer than 256 elements, gradients of rows, and the variables that these change
/// cross as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum WireType {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16 where they are made, and widened where they are used: half of the bytes. Gradients and weights alike.
    Bf16,
    /// Gradients as one byte for each element and a scale for every 256 of them: a quarter of the bytes. What that leaves of a gradient
    /// is added to the worker's next one. Weights, and means of gradients, as bf16: nobody makes up for what they lose.
    Int8,
    /// Of each gradient this share of its elements, in millionths, the largest ones with their indices; what is left is added to the
    /// worker's next one. Weights, and means of gradients, as bf16.
    TopK { millionths: u32 },
}

/// What `--wire top-k` sends where no share is given: 1 % of the elements.
const TOP_K_MILLIONTHS: u32 = 10_000;
/// All of them.
const MILLION: u32 = 1_000_000;

impl WireType {
    /// One of each kind, with what it is where nothing more is said.
    pub const ALL: [WireType; 4] = [
        WireType::F32,
        WireType::Bf16,
        WireType::Int8,
        WireType::TopK { millionths: TOP_K_MILLIONTHS },
    ];

    /// As `--wire` spells it, but for the share of top-k.
    pub fn name(self) -> &'static str {
        match self {
            WireType::F32 => "f32",
            WireType::Bf16 => "bf16",
            WireType::Int8 => "int8",
            WireType::TopK { .. } => "top-k",
        }
    }

    /// Of each gradient the elements of the largest magnitude, so many of all (above 0 to 1).
    ///
    /// # Errors
    /// When it is another number.
    pub fn top_k(share: f64) -> Result<WireType, WireTypeError> {
        let millionths = (share * f64::from(MILLION)).round();
        match (1.0..=f64::from(MILLION)).contains(&millionths) {
            // fits: at most a million
            true => Ok(WireType::TopK { millionths: millionths as u32 }),
            false => Err(WireTypeError::Share(share.to_string())),
        }
    }

    /// The type of tensors that are rounded, where there are some.
    pub(crate) fn narrow(self) -> Option<DType> {
        match self {
            WireType::F32 => None,
            WireType::Bf16 | WireType::Int8 | WireType::TopK { .. } => Some(DType::BF16),
        }
    }

    /// What crosses of gradients, where that is less than a rounded number for each element.
    pub(crate) fn compression(self) -> Option<Compression> {
        match self {
            WireType::F32 | WireType::Bf16 => None,
            WireType::Int8 => Some(Compression::Int8),
            WireType::TopK { millionths } => {
                Some(Compression::TopK { share: f64::from(millionths) / f64::from(MILLION) })
            }
        }
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireType::TopK { millionths } => {
                write!(f, "{}:{}", self.name(), f64::from(*millionths) / f64::from(MILLION))
            }
            plain => f.write_str(plain.name()),
        }
    }
}

/// Why a text says no type that crosses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireTypeError {
    #[error("'{0}' is no type that crosses: take f32, bf16, int8 or top-k:SHARE (top-k:0.01)")]
    Unknown(String),
    #[error(
        "of the elements of a gradient a share above 0 and up to 1 can cross, not '{0}' (top-k:0.01)"
    )]
    Share(String),
    #[error(
        "f16 ends at 65504, and gradients and weights of some models are larger; bf16 has as many bytes and the range of f32: take \
         --wire bf16"
    )]
    F16,
}

impl From<WireType> for String {
    fn from(wire: WireType) -> String {
        wire.to_string()
    }
}

impl TryFrom<String> for WireType {
    type Error = WireTypeError;

    fn try_from(text: String) -> Result<WireType, WireTypeError> {
        text.parse()
    }
}

impl FromStr for WireType {
    type Err = WireTypeError;

    fn from_str(text: &str) -> Result<WireType, WireTypeError> {
        let text = &*text.to_ascii_lowercase();
        match text {
            "f32" | "fp32" | "float32" => Ok(WireType::F32),
            "bf16" | "bfloat16" => Ok(WireType::Bf16),
            "int8" | "i8" => Ok(WireType::Int8),
            "top-k" => Ok(WireType::TopK { millionths: TOP_K_MILLIONTHS }),
            "f16" | "fp16" | "float16" | "half" => Err(WireTypeError::F16),
            _ => match text.strip_prefix("top-k:") {
                Some(share) => match share.parse() {
                    Ok(share) => WireType::top_k(share),
                    Err(_) => Err(WireTypeError::Share(share.to_string())),
                },
                None => Err(WireTypeError::Unknown(text.to_string())),
            },
        }
    }
}

impl TrainConfig {
    /// Refuses what crosses as another type where nothing would, or where nobody could make use of it.
    pub(super) fn check_wire(&self) -> Result<(), ConfigError> {
        let topology = self.topology();
        let crosses = self.strategy != Strategy::Local && topology.averaging.is_none();
        if self.wire != WireType::default() && !(crosses && self.dtype == FloatType::F32) {
            let used_by = "a --strategy whose workers send gradients, with --dtype f32";
            return Err(ConfigError::Unused { option: "--wire", used_by });
        }
        if self.wire.compression().is_none() {
            return Ok(());
        }
        let wire = self.wire.name();
        // a group's mean is made before its master pushes
        if topology.has_store() && topology.is_grouped() {
            return Err(ConfigError::WireOfStrategy { wire, strategy: self.strategy.name() });
        }
        let own = [
            ("--algorithm", self.clients.algorithm.is_some()),
            ("--collectives nccl", self.clients.collectives == CollectivesChoice::Nccl),
            ("--table", !self.clients.table.is_empty() || !self.clients.links.is_empty()),
        ];
        match own.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(ConfigError::Unused {
                option,
                used_by: "--wire f32 and bf16: what less was made of goes to who reduces it",
            }),
            None => Ok(()),
        }
    }

    /// Who does a plan's all-reduces where less is made of gradients: what crosses goes to who makes the mean of it, who alone can add
    /// it up, in f32.
    pub(crate) fn all_reduce_of_wire(&self) -> Option<AllReduceBy> {
        let topology = self.topology();
        let split_above = Placement::SPLIT_ABOVE;
        let by_edges = AllReduceBy::Edges { groups: topology.groups, split_above };
        (self.wire.compression().is_some() && topology.reduces_apart_from_store())
            .then_some(by_edges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn a_type_is_what_it_says() {
        for wire in WireType::ALL {
            assert_eq!(wire.to_string().parse(), Ok(wire));
            let written = serde_json::to_string(&wire).unwrap();
            assert_eq!(serde_json::from_str::<WireType>(&written).unwrap(), wire, "{written}");
        }
        assert_eq!("top-k:0.25".parse(), WireType::top_k(0.25));
        for text in ["top-k:0", "top-k:1.5", "top-k:x", "top-k:NaN", "top-k:-1"] {
            let error = text.parse::<WireType>().unwrap_err();
            assert!(matches!(error, WireTypeError::Share(_)), "{text}");
        }
        assert_eq!("int4".parse::<WireType>(), Err(WireTypeError::Unknown("int4".to_string())));
        assert!("f16".parse::<WireType>().unwrap_err().to_string().contains("--wire bf16"));
    }

    #[test]
    fn less_than_a_gradient_crosses_where_it_goes_from_worker_to_its_reader() {
        for strategy in Strategy::ALL {
            let checked = TrainConfig { strategy, wire: WireType::Int8, ..config() }.check();
            match strategy {
                Strategy::Ps | Strategy::AllReduce | Strategy::DistSgd | Strategy::DistAsgd => {
                    checked.unwrap()
                }
                _ => {
                    let said = checked.unwrap_err().to_string();
                    assert!(said.contains("--wire"), "{strategy:?}: {said}");
                }
            }
        }
    }
}
