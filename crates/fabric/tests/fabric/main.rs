//! The fabrics: one suite over each of them, and what each alone can do or go through. (What counts the
//! whole process's descriptors and threads is a program of its own, `leaks`.)
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod arrival;
mod death;
mod man_in_the_middle;
mod neighbours;
mod shm;
mod sim;
mod strangers;
mod tcp;
mod verbs;
