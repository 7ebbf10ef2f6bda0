//! The suite over shared memory.

use tensorwire_fabric::Backend;

tensorwire_testkit::fabric_suite!(|| Backend::Shm);
