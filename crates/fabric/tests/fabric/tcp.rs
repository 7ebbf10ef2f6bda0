//! The suite over TCP.

use tensorwire_fabric::Backend;
use tensorwire_testkit::mesh::{mesh, route};

tensorwire_testkit::fabric_suite!(|| Backend::Tcp);

#[test]
fn a_peers_memory_is_not_mapped_here() {
    let fabrics = mesh(|| Backend::Tcp, 2);
    assert!(route(&fabrics[0], &fabrics[1], 1, 0, 64).remote.slab().is_none());
}
