//! What is between devices in the jobs of `devices`.

use tensorwire_base::Rank;
use tensorwire_fabric::{ArrivalMode, Backend, NicReach, SimKnobs, SimNetwork};
use tensorwire_fakecuda::FakeNic;

/// What is between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// A network that does as a seed likes, and the host's memory in pieces.
    Pieces,
    /// They map each other's memory.
    Maps,
    /// The same, and no size changes: devices are told whole steps.
    MapsKnown,
    /// The same network, whose NICs reach memory of devices. No size changes.
    Nics,
    /// The same, and sizes change.
    OpenNics,
    /// The same, but that of every other member reaches no device.
    SomeNics,
    /// Sockets, and the host's memory in pieces.
    Tcp,
    /// Every other part is on the other of two hosts: they map each other's memory within a host, and go by the host's memory in
    /// pieces between hosts.
    HostsByPieces,
    /// The same, but that NICs reach memory of devices between hosts.
    HostsByNics,
    /// NICs that reach memory of devices, and arrivals that a host polls memory for: pieces of the host's memory.
    FlagsOfNics,
}

/// The hosts of parts.
pub(crate) const TWO_HOSTS: [u32; 8] = [0, 1, 0, 1, 0, 1, 0, 1];

impl Between {
    pub(crate) fn of(seed: u64) -> Between {
        match seed / 4 % 8 {
            0 => Between::Pieces,
            1 => Between::Maps,
            2 | 6 => Between::MapsKnown,
            3 | 7 => Between::Nics,
            4 => Between::SomeNics,
            _ => Between::OpenNics,
        }
    }

    pub(crate) fn is_of_hosts(self) -> bool {
        matches!(self, Between::HostsByPieces | Between::HostsByNics)
    }

    /// True if what these parts send each other goes by the host's memory, whatever it is.
    pub(crate) fn stages(self, (from, to): (usize, usize)) -> bool {
        let is_far = TWO_HOSTS[from] != TWO_HOSTS[to];
        let all = matches!(self, Between::Pieces | Between::FlagsOfNics);
        all || self == Between::HostsByPieces && is_far
    }

    pub(crate) fn arrival(self) -> Option<ArrivalMode> {
        (self == Between::FlagsOfNics).then_some(ArrivalMode::FlagSeparate)
    }

    pub(crate) fn backend(self, network: &SimNetwork) -> Backend {
        match self {
            Between::Maps | Between::MapsKnown => Backend::Shm,
            Between::Tcp => Backend::Tcp,
            _ => Backend::Sim(network.clone()),
        }
    }

    pub(crate) fn network(self, seed: u64, knobs: SimKnobs) -> SimNetwork {
        let of_nics = |of_all| Reach { nic: FakeNic::open().unwrap(), of_all };
        match self {
            Between::Pieces
            | Between::Maps
            | Between::MapsKnown
            | Between::Tcp
            | Between::HostsByPieces => SimNetwork::new(seed, knobs),
            Between::Nics | Between::OpenNics | Between::HostsByNics | Between::FlagsOfNics => {
                SimNetwork::with_devices(seed, knobs, of_nics(true))
            }
            Between::SomeNics => SimNetwork::with_devices(seed, knobs, of_nics(false)),
        }
    }
}

/// How the network's NICs reach devices: those of all members, or of every other.
#[derive(Debug)]
struct Reach {
    nic: FakeNic,
    of_all: bool,
}

impl NicReach for Reach {
    fn reaches(&self, member: Rank) -> bool {
        self.of_all || member.0.is_multiple_of(2)
    }

    fn read(&self, address: usize, into: &mut [u8]) {
        // fits: usize is 64 bits wide
        assert!(self.nic.read(address as u64, into), "{address:x} is no memory of a device");
    }

    fn write(&self, address: usize, bytes: &[u8]) {
        // fits: as above
        assert!(self.nic.write(address as u64, bytes), "{address:x} is no memory of a device");
    }
}
