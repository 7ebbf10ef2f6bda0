//! The arguments of a benchmark whose processes may run on several hosts.

use std::net::SocketAddr;

use clap::Args;
use tensorwire_launch::{Hosts, HostsError, RSH};

use super::TransportArg;
use super::headings::PROCESSES;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = PROCESSES)]
pub(crate) struct HostArgs {
    /// Where the processes run: node0,node1:2
    ///
    /// Round-robin; :2 = two in a turn. [default: this machine]
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// What starts a process on another host: it is given the host and a command
    #[arg(long, value_name = "COMMAND", hide_short_help = true, requires = "hosts", default_value = RSH)]
    rsh: String,
    /// Where the other hosts call this one
    ///
    /// [default: this machine's address towards the first of them]
    #[arg(long, value_name = "ADDRESS:PORT", hide_short_help = true, requires = "hosts")]
    pub(crate) listen: Option<SocketAddr>,
}

impl HostArgs {
    /// The hosts that were named.
    pub(crate) fn hosts(&self) -> Result<Hosts, HostsError> {
        match &self.hosts {
            Some(given) => given.parse::<Hosts>()?.started_by(&self.rsh),
            None => Ok(Hosts::default()),
        }
    }

    /// As [`HostArgs::transports`], of two processes, which are on one host or each on its own.
    pub(crate) fn transports_of_two(&self, given: &[TransportArg]) -> Vec<TransportArg> {
        match (given, &self.hosts) {
            ([], Some(_)) => vec![TransportArg::Tcp],
            _ => self.transports(given),
        }
    }

    /// The transports that were given; else those that there are on one host, or between hosts.
    pub(crate) fn transports(&self, given: &[TransportArg]) -> Vec<TransportArg> {
        match (given, &self.hosts) {
            ([], None) => vec![TransportArg::Shm, TransportArg::Tcp],
            ([], Some(_)) => vec![TransportArg::Auto, TransportArg::Tcp],
            (given, _) => given.to_vec(),
        }
    }
}
