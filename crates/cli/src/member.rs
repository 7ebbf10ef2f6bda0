//! One process of a job: the hidden subcommand `member`, told what to do through standard input, or a process
//! that has joined.

use tensorwire::program::{ProgramError, read_assignment, take_part};
use tensorwire_bench::ByName;
use tensorwire_doctor::{DOCTOR, doctor_member};
use tensorwire_launch::Member;
use tensorwire_train::train_member;

use super::Failure;

pub(crate) fn run() -> Result<(), Failure> {
    let assignment = read_assignment().map_err(|error| match error {
        ProgramError::Assignment(error) if !error.is_io() => {
            Failure::user(format!("members are started by a launcher: {error}"))
        }
        error => Failure::other(error),
    })?;
    take_part(assignment, None, part).map_err(Failure::other)
}

/// Does a member's part of a job of any kind.
pub(crate) fn part(member: &Member) -> Result<(), String> {
    match member.kind() {
        "train" => train_member(member, &ByName).map_err(|error| error.to_string()),
        tensorwire_bench::TRANSFER => {
            tensorwire_bench::transfer_member(member).map_err(|error| error.to_string())
        }
        DOCTOR => doctor_member(member).map_err(|error| error.to_string()),
        tensorwire_bench::KVSTORE => {
            tensorwire_bench::kvstore_member(member).map_err(|error| error.to_string())
        }
        tensorwire_bench::ALLREDUCE => {
            tensorwire_bench::allreduce_member(member).map_err(|error| error.to_string())
        }
        tensorwire_bench::GPU_ALLREDUCE => {
            tensorwire_bench::gpu_allreduce_member(member).map_err(|error| error.to_string())
        }
        tensorwire_bench::WRITE => {
            tensorwire_bench::write_member(member).map_err(|error| error.to_string())
        }
        kind => Err(format!("there is no job of kind '{kind}'")),
    }
}
