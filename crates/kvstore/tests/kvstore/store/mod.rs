//! The store from end to end, over real rings in shared memory and over TCP: workers and servers as threads,
//! closed forms.

mod by_hand;
mod by_nic;
mod controls;
mod copies;
mod counts;
mod deaths;
mod encoded;
mod late;
mod modes;
mod places;
mod replaced;
mod rows;
mod rule;
mod support;
mod values;
