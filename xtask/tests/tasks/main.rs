//! The project's own tasks: that they would complain, and what they say to machines and programs.

mod soft_roce;
mod tidy;
