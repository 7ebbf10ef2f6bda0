//! The project's own tasks: that they would complain, and what they say to machines and programs.

mod clusters;
mod licences;
mod release;
mod soft_roce;
mod tidy;
