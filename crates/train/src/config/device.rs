//! What computes in workers: the processor, or a GPU.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tensorwire_cuda::Gpus;
use tensorwire_graph::{DeviceCrossing, DeviceTasks, PlanOptions, SendFrom, SharedMemory};

use super::{ConfigError, Exchange};
use crate::topology::{Topology, Weights};

/// What computes in workers (`--device`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU of CUDA's: this one, or of those that there are each worker of a host the next.
    Cuda { ordinal: Option<usize> },
    /// A GPU where there is one, else the processor.
    Auto,
}

impl DeviceChoice {
    /// Which tasks of a plan compute on a GPU, and how tensors cross between them. Where processes run parts of one graph, on
    /// one host or by NICs that reach the memory of GPUs, servers have GPUs, too, and tensors stay in their memory.
    pub(crate) fn plan_options(
        self,
        options: PlanOptions,
        topology: &Topology,
        exchange: Exchange,
        by_nic: bool,
    ) -> PlanOptions {
        if self == DeviceChoice::Cpu {
            return options;
        }
        let is_one_graph = topology.weights == Weights::Servers && !topology.is_asynchronous();
        let all_share = matches!(options.shared_memory, SharedMemory::Unused | SharedMemory::Used);
        // a message is made of bytes that the host reads
        let reaches = (all_share || by_nic) && !exchange.is_by_message();
        let is_staged = options.send_from == SendFrom::Staging;
        let (devices, device_crossing) = match is_one_graph && reaches && !is_staged {
            true => (DeviceTasks::All, DeviceCrossing::Direct),
            false => (DeviceTasks::Workers, DeviceCrossing::ByHost),
        };
        PlanOptions { devices, device_crossing, ..options }
    }

    /// Decides what `auto` is on this machine, and looks for the GPU that is named.
    ///
    /// # Errors
    /// When a GPU is asked for, and there is none that can be used.
    pub(crate) fn resolved(self, driver: Option<&Path>) -> Result<DeviceChoice, ConfigError> {
        let ordinal = match self {
            DeviceChoice::Cpu => return Ok(self),
            DeviceChoice::Cuda { ordinal } => ordinal,
            DeviceChoice::Auto => {
                return Ok(match Gpus::find(driver) {
                    Ok(gpus) if gpus.count() > 0 => DeviceChoice::Cuda { ordinal: None },
                    Ok(_) => DeviceChoice::Cpu,
                    Err(why) => {
                        tracing::info!("no GPU computes: {why}");
                        DeviceChoice::Cpu
                    }
                });
            }
        };
        Gpus::find(driver)?.check(ordinal.unwrap_or(0))?;
        Ok(self)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda { ordinal: None } => f.write_str("cuda"),
            DeviceChoice::Cuda { ordinal: Some(ordinal) } => write!(f, "cuda:{ordinal}"),
            DeviceChoice::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.strip_prefix("cuda:")) {
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda" | "gpu", _) => Ok(DeviceChoice::Cuda { ordinal: None }),
            ("auto", _) => Ok(DeviceChoice::Auto),
            (_, Some(number)) => match number.parse() {
                Ok(ordinal) => Ok(DeviceChoice::Cuda { ordinal: Some(ordinal) }),
                Err(_) => Err(format!("'{number}' is no number of a GPU, as in cuda:0")),
            },
            _ => Err(format!("there is no device '{text}'; there are cpu, cuda, cuda:N and auto")),
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> String {
        choice.to_string()
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<DeviceChoice, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_what_it_prints() {
        for text in ["cpu", "cuda", "cuda:3", "auto"] {
            let choice: DeviceChoice = text.parse().unwrap();
            assert_eq!(choice.to_string(), text);
        }
        for wrong in ["", "cuda:", "cuda:-1", "cuda:x", "tpu"] {
            wrong.parse::<DeviceChoice>().unwrap_err();
        }
    }
}
