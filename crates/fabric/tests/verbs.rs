//! The suite over verbs.

use tensorwire_fabric::{Backend, VerbsOptions};

tensorwire_testkit::fabric_suite!(|| Backend::Verbs(VerbsOptions::default()));
