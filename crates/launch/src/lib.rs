//! Starts the processes of a job and keeps them together: on one host or several, or as processes that somebody else
//! started. Introduces them to each other, watches them, and ends all with one first cause. Names no tensor; reads no
//! environment and no arguments.
#![forbid(unsafe_code)]

mod assignment;
mod clock;
mod control;
mod cpus;
mod exit;
#[doc(hidden)]
pub mod fuzz;
mod hosts;
mod job;
mod launcher;
mod member;
mod negotiate;
pub mod rendezvous;
mod standing;
mod start;
mod status;
mod store_job;
mod takeover;
mod transport;
mod verdict;

pub use assignment::{Assignment, JobIdentity};
pub use clock::{ClockReading, MemberClock};
pub use control::Blame;
pub use hosts::{Hosts, HostsError, RSH, RanksByHost};
pub use job::{
    EndCause, JobControl, JobError, JobOutcome, JobSpec, JobUpdate, Messages, Reports, Resize,
    Scaled, awaiting, ending_behind, launch, restarting, was_resized,
};
pub use member::{
    Ending, Farewell, JoinError, Member, MemberError, Peers, QUEUE_PAIRS, Recorder, Scheduling,
    StepWord, WireOptions,
};
pub use negotiate::{Obstacle, TransportChoice};
pub use standing::{
    Movement, Reminder, Stand, StandWatch, Still, StillMember, WORTH_A_LINE, Whereabouts,
    nothing_moves,
};
pub use start::{MEMBER, RUN_WITH_PARENT, host_answers};
pub use status::{
    JobStatus, MemberPhase, MemberStatus, StatusError, StatusServer, job_status, jobs, scale_job,
    stop_job,
};
pub use store_job::{BarrierError, StoreEvent, StoreJob, StorePlace};
pub use takeover::{Abandoned, Takeover, TakeoverError};
pub use tensorwire_fabric::{
    ArrivalMode, GidChoice, PathChoice, VerbsOptions, VerbsUnusable, verbs_usable,
};
pub use tensorwire_kvstore::proto::Role;
pub use transport::Transport;
pub use verdict::{FirstFailure, Remark};
