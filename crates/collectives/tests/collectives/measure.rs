//! The way between members, measured.

use std::sync::{Arc, Mutex};

use crate::support::{Mean, SHM, TCP, any_order, fill, vectors, with_group};
use tensorwire_collectives::{CollectiveCall, Collectives, GroupOptions, LinkCost};
use tensorwire_testkit::mesh::soon;

/// All know the same, and go on with it.
#[test]
fn all_members_choose_by_what_two_of_them_measured() {
    for (name, fabrics) in [("tcp", TCP.mesh(3)), ("sim", any_order(7, 3))] {
        let found: Mutex<Vec<LinkCost>> = Mutex::default();
        with_group(fabrics, &GroupOptions::default(), |group| {
            let link = group.measure_link(soon()).unwrap().unwrap();
            found.lock().unwrap().push(link);
            let buffers = vectors(group, &[100_000]);
            let vector = group.bind(&buffers, soon()).unwrap()[0];
            fill(&buffers[0], group.me(), 0);
            let handle = group.start(vector, CollectiveCall::AllReduce(Arc::new(Mean))).unwrap();
            group.wait(handle, soon()).unwrap();
        });
        let found = found.into_inner().unwrap();
        assert!(
            found.len() == 3 && found.iter().all(|link| *link == found[0]),
            "{name}: {found:?}"
        );
        // of the rest nobody measures anything
        let LinkCost { latency_ns, wire_ps_per_byte, pair_exchange_below, .. } = found[0];
        let assumed =
            LinkCost { latency_ns, wire_ps_per_byte, pair_exchange_below, ..LinkCost::TCP };
        assert_eq!(found[0], assumed, "{name}");
        assert_ne!(found[0], LinkCost::TCP, "{name}");
    }
}

#[test]
fn members_that_share_memory_have_no_link_to_measure() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        assert_eq!(group.measure_link(soon()).unwrap(), None);
    });
}
