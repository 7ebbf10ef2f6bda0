//! A lobby and those who call it, in one process.
use super::*;
