//! Which version of somebody else's library a measurement went through: a ratio to it is of that version.

use std::collections::BTreeMap;

use serde::Serialize;
use tensorwire_train::{Exchange, StoreWire};

/// Versions by the names of libraries. None where it is all our own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Versions(BTreeMap<&'static str, String>);

impl Versions {
    /// True if there are none to say.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of what a job exchanges with. Rings of messages are ours.
    pub(crate) fn of(exchange: Exchange) -> Versions {
        match exchange {
            Exchange::GrpcTcp | Exchange::GrpcTcpTuned => Versions::grpc(),
            Exchange::Zmq => Versions::zmq(),
            Exchange::ZeroCopy | Exchange::Write | Exchange::Copy | Exchange::GrpcRdma => {
                Versions::default()
            }
        }
    }

    /// Of what a store is reached by.
    pub(crate) fn of_store(wire: StoreWire) -> Versions {
        match wire {
            StoreWire::Zmq => Versions::zmq(),
            StoreWire::ZeroCopy => Versions::default(),
        }
    }

    #[cfg(feature = "baselines")]
    pub(crate) fn grpc() -> Versions {
        let version = tensorwire_baselines::grpc::VERSION;
        Versions(version.map(|version| ("tonic", version.to_string())).into_iter().collect())
    }

    #[cfg(feature = "baselines")]
    fn zmq() -> Versions {
        Versions(BTreeMap::from([("libzmq", tensorwire_baselines::zmq::version())]))
    }

    /// They are left out of this build.
    #[cfg(not(feature = "baselines"))]
    pub(crate) fn grpc() -> Versions {
        Versions::default()
    }

    #[cfg(not(feature = "baselines"))]
    fn zmq() -> Versions {
        Versions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_has_none_and_what_is_others_has_theirs() {
        for exchange in Exchange::ALL {
            let said = serde_json::to_value(Versions::of(exchange)).unwrap();
            let names: Vec<&str> = said.as_object().unwrap().keys().map(String::as_str).collect();
            let expected: &[&str] = match exchange {
                _ if !cfg!(feature = "baselines") => &[],
                Exchange::GrpcTcp | Exchange::GrpcTcpTuned => &["tonic"],
                Exchange::Zmq => &["libzmq"],
                _ => &[],
            };
            assert_eq!(names, expected, "{exchange:?}");
            for version in said.as_object().unwrap().values() {
                let parts = version.as_str().unwrap().split('.').map(str::parse::<u32>);
                assert_eq!(parts.filter(Result::is_ok).count(), 3, "{version}");
            }
        }
        assert!(Versions::of_store(StoreWire::ZeroCopy).is_empty());
    }
}
