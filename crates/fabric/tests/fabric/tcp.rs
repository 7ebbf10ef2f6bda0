//! The suite over TCP.

use tensorwire_fabric::Backend;
use tensorwire_testkit::mesh::{Setup, mesh, route};

const TCP: Setup = Setup::new(|| Backend::Tcp);

tensorwire_testkit::fabric_suite!(TCP);

mod encrypted {
    use tensorwire_testkit::mesh::Setup;

    tensorwire_testkit::fabric_suite!(Setup { encrypt: true, ..super::TCP });
}

#[test]
fn a_peers_memory_is_not_mapped_here() {
    let fabrics = mesh(|| Backend::Tcp, 2);
    assert!(route(&fabrics[0], &fabrics[1], 1, 0, 64).remote.slab().is_none());
}
