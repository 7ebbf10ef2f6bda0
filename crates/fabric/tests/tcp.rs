//! The suite over TCP.

use tensorwire_fabric::Backend;

tensorwire_testkit::fabric_suite!(|| Backend::Tcp);
