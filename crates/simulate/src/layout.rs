//! Who is on which machine, and which machines are alike. Machines with the same processes do the same at the same
//! time, so one stands for all of them: that is what lets thousands of workers be simulated.

use crate::network::Network;

/// More machines with servers than this are not told apart.
const SERVER_MACHINES_MAX: usize = 16;

/// Machines that are alike. Where they have servers, there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) machines: u32,
    /// Workers of each: those that have to do with servers, and the others.
    pub(crate) masters: u32,
    pub(crate) others: u32,
    pub(crate) servers: Vec<u32>,
}

impl Class {
    pub(crate) fn workers(&self) -> u32 {
        self.masters + self.others
    }

    /// What its resources are called: "server 3", "a worker".
    pub(crate) fn name(&self) -> String {
        match self.servers[..] {
            [] => "a worker".to_string(),
            [server] => format!("server {server}"),
            [first, .., last] => format!("servers {first} to {last}"),
        }
    }
}

/// The machines of a job: workers in a row, so many a machine; servers round-robin over the same machines, as many in a
/// row as there are workers of one (as a launcher gives out slots), or on others. Where more than a few machines have servers,
/// servers count as apart: then all workers are alike, and what is left out is that a worker and a server share a NIC, one of many.
pub(crate) fn layout(network: &Network, workers: u32, masters: u32, servers: u32) -> Vec<Class> {
    let a_machine = match network.machine.workers {
        0 => workers,
        some => some,
    };
    let count = workers.div_ceil(a_machine.max(1));
    // fits: fewer than the bound, or no matter
    let is_apart =
        network.machine.servers_apart || servers.min(count) as usize > SERVER_MACHINES_MAX;
    let mut classes: Vec<Class> = Vec::new();
    for machine in 0..count {
        let (first, behind) = (machine * a_machine, ((machine + 1) * a_machine).min(workers));
        let here = masters.clamp(first, behind) - first;
        let machine_of = |server: &u32| server / a_machine.max(1) % count.max(1);
        let on_it = (0..servers).filter(|server| !is_apart && machine_of(server) == machine);
        let class = Class {
            machines: 1,
            masters: here,
            others: behind - first - here,
            servers: on_it.collect(),
        };
        let is_like = |other: &&mut Class| {
            (other.masters, other.others, &other.servers)
                == (class.masters, class.others, &class.servers)
        };
        match classes.iter_mut().filter(|_| class.servers.is_empty()).find(is_like) {
            Some(like) => like.machines += 1,
            None => classes.push(class),
        }
    }
    let apart = (0..servers).filter(|_| is_apart);
    classes.extend(apart.map(|server| Class {
        machines: 1,
        masters: 0,
        others: 0,
        servers: vec![server],
    }));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network::preset("rdma-100g").unwrap()
    }

    #[test]
    fn everybody_is_somewhere_once() {
        for workers in [1, 2, 3, 8, 17, 4096] {
            for servers in [0, 1, 2, 8, 40] {
                for a_machine in [0, 1, 4] {
                    let mut network = network();
                    network.machine.workers = a_machine;
                    let classes = layout(&network, workers, workers / 2, servers);
                    let sum = |of: fn(&Class) -> u32| -> u32 {
                        classes.iter().map(|class| class.machines * of(class)).sum()
                    };
                    assert_eq!(sum(Class::workers), workers);
                    assert_eq!(sum(|class| class.masters), workers / 2);
                    let mut found: Vec<u32> =
                        classes.iter().flat_map(|class| class.servers.clone()).collect();
                    found.sort_unstable();
                    assert_eq!(found, (0..servers).collect::<Vec<u32>>());
                    let single = |class: &Class| class.servers.is_empty() || class.machines == 1;
                    assert!(classes.iter().all(single));
                }
            }
        }
    }

    #[test]
    fn servers_go_where_as_many_workers_went() {
        let mut network = network();
        network.machine.workers = 2;
        let servers: Vec<Vec<u32>> =
            layout(&network, 4, 4, 6).into_iter().map(|class| class.servers).collect();
        assert_eq!(servers, [vec![0, 1, 4, 5], vec![2, 3]]);
    }

    #[test]
    fn machines_without_servers_are_one_class() {
        let classes = layout(&network(), 4096, 4096, 8);
        assert_eq!(classes.len(), 9);
        assert_eq!(classes[8].machines, 4088);
    }
}
