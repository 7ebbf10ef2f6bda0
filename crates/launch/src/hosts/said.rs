//! Hosts in words.

use std::fmt;

use tensorwire_base::Rank;

use super::{Host, Hosts};

/// As `--hosts` has them: `node0,node1:2`.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Host { name, slots, .. }) in self.list.iter().enumerate() {
            let between = if number == 0 { "" } else { "," };
            match name.contains(':') {
                true => write!(f, "{between}[{name}]")?,
                false => write!(f, "{between}{name}")?,
            }
            if *slots > 1 {
                write!(f, ":{slots}")?;
            }
        }
        Ok(())
    }
}

/// Says who runs where: `node0: worker 0, server 0; node1: worker 1, server 1`.
#[derive(Debug)]
pub struct RanksByHost<'a> {
    pub hosts: &'a Hosts,
    /// By rank.
    pub roles: &'a [String],
}

impl fmt::Display for RanksByHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen: Vec<&Host> = Vec::new();
        // fits: a job has far fewer than 2^32 members
        let placed =
            (0u32..).map(Rank).zip(self.roles).map(|(rank, role)| (self.hosts.host(rank), role));
        let placed: Vec<(&Host, &String)> = placed.collect();
        for (host, _) in &placed {
            if seen.iter().any(|earlier| earlier.is(host)) {
                continue;
            }
            let roles =
                placed.iter().filter(|(other, _)| other.is(host)).map(|(_, role)| role.as_str());
            let here = if host.here { " (this machine)" } else { "" };
            let between = if seen.is_empty() { "" } else { "; " };
            write!(f, "{between}{}{here}: {}", host.name, roles.collect::<Vec<_>>().join(", "))?;
            seen.push(host);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_said_as_they_are_given() {
        for given in ["localhost", "node0,me@node1:2", "[2001:db8::1]:3,[2001:db8::2],192.0.2.7"] {
            assert_eq!(given.parse::<Hosts>().unwrap().to_string(), given);
        }
    }

    #[test]
    fn who_runs_where_is_said_in_one_line() {
        let hosts: Hosts = "localhost,192.0.2.7:2".parse().unwrap();
        let roles = ["worker 0", "worker 1", "server 0", "server 1"].map(str::to_string);
        let said = RanksByHost { hosts: &hosts, roles: &roles }.to_string();
        let expected =
            "localhost (this machine): worker 0, server 1; 192.0.2.7: worker 1, server 0";
        assert_eq!(said, expected);
    }
}
