//! Which transport the members of several hosts take where `--transport auto` leaves it open. The
//! launcher decides once, for all, from what each of them can. Pure; the NIC is asked elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};
use tensorwire_fabric::VerbsUnusable;

use crate::transport::Transport;

/// What one member says before anything is opened: the NIC that it would take, or what is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) verbs: Result<String, Obstacle>,
}

/// Why a host cannot use RDMA, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    pub reason: String,
    pub mend: String,
}

/// What was chosen, and why, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    pub transport: Transport,
    pub why: String,
    /// It is slower than what was hoped for, and somebody should know.
    pub fallback: bool,
}

impl From<VerbsUnusable> for Obstacle {
    fn from(VerbsUnusable { reason, mend }: VerbsUnusable) -> Obstacle {
        Obstacle { reason, mend }
    }
}

/// RDMA if all can, else TCP. `offers`: each member's host and what it says.
pub(crate) fn choose(offers: &[(&str, &Offer)]) -> TransportChoice {
    // members of one host say the same, and hosts that say the same are named together
    let each_host = |wanted: &dyn Fn(&Offer) -> Option<String>| {
        let mut said: Vec<(String, Vec<&str>)> = Vec::new();
        for (host, offer) in offers {
            let new = !said.iter().any(|(_, hosts)| hosts.contains(host));
            let Some(what) = wanted(offer).filter(|_| new) else { continue };
            match said.iter_mut().find(|(earlier, _)| *earlier == what) {
                Some((_, hosts)) => hosts.push(host),
                None => said.push((what, vec![host])),
            }
        }
        let said = said.iter().map(|(what, hosts)| format!("{}: {what}", hosts.join(", ")));
        said.collect::<Vec<_>>()
    };
    let cannot = each_host(&|offer| {
        let obstacle = offer.verbs.as_ref().err()?;
        Some(format!("{}; {}", obstacle.reason, obstacle.mend))
    });
    if cannot.is_empty() {
        let can = each_host(&|offer| offer.verbs.clone().ok());
        let why = format!("every host can; {}", can.join("; "));
        return TransportChoice { transport: Transport::Verbs, why, fallback: false };
    }
    let why = format!("RDMA cannot be used on {}", cannot.join("; nor on "));
    TransportChoice { transport: Transport::Tcp, why, fallback: true }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransportChoice { transport, why, fallback } = self;
        if *fallback {
            let name = transport.name();
            write!(
                f,
                "warning: {name} instead of verbs: {why}. A job that is told to take {name} says nothing of it"
            )
        } else {
            write!(f, "transport {}: {why}", transport.name())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can(nic: &str) -> Offer {
        Offer { verbs: Ok(nic.to_string()) }
    }

    fn cannot(reason: &str) -> Offer {
        let (reason, mend) = (reason.to_string(), "modprobe it".to_string());
        Offer { verbs: Err(Obstacle { reason, mend }) }
    }

    #[test]
    fn verbs_if_every_member_can() {
        let (zero, one) = (can("mlx5_0"), can("rxe0"));
        let choice = choose(&[("a", &zero), ("b", &one), ("a", &zero)]);
        assert_eq!((choice.transport, choice.fallback), (Transport::Verbs, false));
        assert_eq!(choice.to_string(), "transport verbs: every host can; a: mlx5_0; b: rxe0");
    }

    #[test]
    fn tcp_if_any_cannot_and_each_host_is_named_once_with_its_reason_and_mend() {
        let (can, cannot, locked) = (can("mlx5_0"), cannot("no NIC"), cannot("memlock"));
        let [a, b, c, d] = [("a", &can), ("b", &cannot), ("c", &locked), ("d", &cannot)];
        let choice = choose(&[a, b, b, c, a, d]);
        assert_eq!((choice.transport, choice.fallback), (Transport::Tcp, true));
        let said = choice.to_string();
        assert!(said.starts_with("warning: tcp instead of verbs: "), "{said}");
        assert!(
            said.contains("on b, d: no NIC; modprobe it; nor on c: memlock; modprobe it"),
            "{said}"
        );
        assert_eq!((said.matches("no NIC").count(), said.lines().count()), (1, 1), "{said}");
    }

    /// One member of a host that cannot is enough, wherever it stands.
    #[test]
    fn members_of_one_host_that_disagree_count_as_one_that_cannot() {
        let (can, cannot) = (can("mlx5_0"), cannot("no memory"));
        for offers in [[("a", &can), ("a", &cannot)], [("a", &cannot), ("a", &can)]] {
            assert_eq!(choose(&offers).transport, Transport::Tcp);
        }
    }
}
