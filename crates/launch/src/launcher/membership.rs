//! The launcher as the scheduler of a store: what it hears and sees goes into the state machine of
//! `kvstore::proto`, and what that says is done here. A job without a store ends with its first failure.

use std::net::Shutdown;
use std::time::Instant;

use tensorwire_base::Rank;
use tensorwire_fabric::Identity;
use tensorwire_kvstore::proto::{
    Role, Scheduler, SchedulerAction, SchedulerEvent, SchedulerOptions,
};

use super::Launcher;
use super::acceptor::Acceptor;
use crate::control::{Blame, ToMember};
use crate::job::{JobError, JobSpec, JobUpdate, OnUpdate, RawUpdate};
use crate::store_job::StoreJob;
use crate::verdict::End;

/// The scheduler, and what it asked for that takes more than a word to the members.
pub(super) struct Membership {
    job: StoreJob,
    scheduler: Scheduler,
    since: Instant,
    replacements: Vec<Replacement>,
    updates: Vec<RawUpdate>,
}

/// A server that is to be started anew.
struct Replacement {
    server: u32,
    was: Rank,
    rank: Rank,
}

impl Membership {
    pub(super) fn new(job: StoreJob, spec: &JobSpec) -> Membership {
        let StoreJob { workers, servers, elastic, replace_servers } = job;
        let roles = spec.roles.len();
        let nodes = workers as usize + servers as usize;
        assert!(roles >= nodes, "a role per node of the store");
        assert!(
            roles == nodes || !replace_servers,
            "who comes later comes behind the store's nodes"
        );
        let scheduler = Scheduler::new(SchedulerOptions {
            elastic,
            replace_servers,
            taken_over: spec.abandoned.is_some(),
            // fits: a deadline is at most an hour
            liveness_ms: Some(spec.liveness.as_millis() as u64),
            ..SchedulerOptions::new(workers, servers)
        });
        let (replacements, updates) = (Vec::new(), Vec::new());
        Membership { job, scheduler, since: Instant::now(), replacements, updates }
    }
}

impl Launcher<'_> {
    /// Is there a store that this member has no part in?
    pub(super) fn is_beside(&self, rank: Rank) -> bool {
        let roles = self.spec.roles.len();
        let is_beside = |job: StoreJob| job.place(rank).is_none() && rank.index() < roles;
        self.spec.store.is_some_and(is_beside)
    }

    /// Lets time pass for the store's scheduler and does what it asked for.
    pub(super) fn manage_store(
        &mut self,
        looked: Instant,
        acceptor: &mut Acceptor,
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        self.schedule_at(looked, SchedulerEvent::Tick);
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        let job = store.job;
        let replacements = std::mem::take(&mut store.replacements);
        store.updates.drain(..).try_for_each(&mut *on_update)?;
        if self.fatal {
            return Ok(());
        }
        for Replacement { server, was, rank } in replacements {
            let named = self.identity.extend();
            assert_eq!(named, rank, "the scheduler and the launcher count alike");
            acceptor.expected.push(self.identity.member(rank));
            let home = Rank(job.workers + server);
            self.start(rank, home, Some(job.replacement(server, was)), on_update)?;
        }
        Ok(())
    }

    /// A member's fabric is open. One that replaces another is introduced by itself.
    pub(super) fn is_ready(&mut self, rank: Rank) {
        if !self.introduced || self.store.is_none() || self.is_beside(rank) {
            return;
        }
        let digest =
            |rank: Rank| self.members[rank.index()].ready.as_ref().map(|(_, digest)| digest);
        if digest(rank) == digest(Rank(0)) {
            self.is_connected(rank);
        } else {
            let first = &self.members[0].role;
            let error = format!("it made another plan than {first}; do all run the same version?");
            self.end(rank, End::Failed { step: 0, error, blame: Blame::User });
        }
    }

    /// A member can be reached: it is a node of the store from now on.
    pub(super) fn is_connected(&mut self, rank: Rank) {
        let is_node = self.store.is_some() && !self.is_beside(rank);
        self.members[rank.index()].joined = is_node;
        self.schedule(SchedulerEvent::Joined { node: self.node(rank) });
    }

    pub(super) fn heard(&mut self, rank: Rank) {
        self.schedule(SchedulerEvent::Heard { node: self.node(rank) });
    }

    pub(super) fn enter_barrier(&mut self, rank: Rank, barrier: u64) {
        self.schedule(SchedulerEvent::Entered { node: self.node(rank), barrier });
    }

    pub(super) fn has_left(&mut self, rank: Rank) {
        self.schedule(SchedulerEvent::Left { node: self.node(rank) });
    }

    /// What a member's end, which has been noted, means for the job.
    pub(super) fn judge_end(&mut self, rank: Rank) {
        let end = &self.members[rank.index()].end;
        // what the user has to mend would end the others, too
        if self.store.is_none() || self.is_beside(rank) || end.is_user_error() {
            self.fatal = true;
        } else {
            let why = end.cause().unwrap_or_default();
            self.schedule(SchedulerEvent::Died { rank, why });
        }
    }

    fn node(&self, rank: Rank) -> Identity {
        let identity = self.identity.member(rank);
        Identity { rank, incarnation: identity.incarnation }
    }

    fn schedule(&mut self, event: SchedulerEvent) {
        self.schedule_at(Instant::now(), event);
    }

    fn schedule_at(&mut self, at: Instant, event: SchedulerEvent) {
        let of = match &event {
            SchedulerEvent::Joined { node }
            | SchedulerEvent::Heard { node }
            | SchedulerEvent::Entered { node, .. }
            | SchedulerEvent::Left { node } => Some(node.rank),
            SchedulerEvent::Died { rank, .. } => Some(*rank),
            SchedulerEvent::Tick => None,
        };
        if of.is_some_and(|rank| self.is_beside(rank)) {
            return;
        }
        // a job that ends survives nothing any more
        let Some(store) = self.store.as_mut().filter(|_| !self.fatal) else {
            return;
        };
        let mut actions = Vec::new();
        // fits: 2^64 ms are more than any job takes
        let now_ms = at.saturating_duration_since(store.since).as_millis() as u64;
        store.scheduler.handle(now_ms, event, &mut actions);
        actions.into_iter().for_each(|action| self.act(action));
    }

    fn act(&mut self, action: SchedulerAction) {
        match action {
            SchedulerAction::Release { barrier, to } => {
                self.tell(&to, &ToMember::Released { number: barrier });
            }
            SchedulerAction::World { epoch, alive, to } => {
                self.survive_workers(alive.len());
                self.tell(&to, &ToMember::World { epoch, alive });
            }
            SchedulerAction::GiveUp { rank, silent_ms } => {
                // fits: shown to a person
                let for_s = silent_ms as f64 / 1e3;
                self.note_end(rank, End::Silent { for_s });
            }
            SchedulerAction::Replace { server, was, rank } => {
                let why = self.survive(was);
                if let Some(store) = &mut self.store {
                    store.updates.push(JobUpdate::Replacing { server, rank: was, why, by: rank });
                    store.replacements.push(Replacement { server, was, rank });
                }
            }
            SchedulerAction::Spare { rank } => {
                let why = self.survive(rank);
                let role = &self.members[rank.index()].role;
                tracing::warn!(
                    "{role} was lost once all workers were done, and is not needed: {why}"
                );
            }
            SchedulerAction::Replaced { server, was, node, to } => {
                self.introduce_replacement(server, was, node, &to);
            }
            SchedulerAction::End { .. } => self.fatal = true,
        }
    }

    /// The workers that have ended are those that the world shrank by.
    fn survive_workers(&mut self, left: usize) {
        for rank in (0..self.members.len() as u32).map(Rank) {
            let member = &self.members[rank.index()];
            let Some(store) = &self.store else { return };
            let worker = matches!(store.scheduler.role(rank), Some(Role::Worker(_)));
            if worker && member.end != End::None && !member.survived {
                let why = self.survive(rank);
                let shrunk = JobUpdate::Shrunk { rank, why, left };
                self.store.iter_mut().for_each(|store| store.updates.push(shrunk.clone()));
            }
        }
    }

    /// The job goes on without `rank`, which must not come back: it may only be stopped, and would go on
    /// writing where it always wrote. Returns why it ended.
    fn survive(&mut self, rank: Rank) -> String {
        let member = &mut self.members[rank.index()];
        member.survived = true;
        // one of another host ends with its connection
        if let Some(control) = member.control.take() {
            let _ = control.stream().shutdown(Shutdown::Both);
        }
        if member.exit.is_none() {
            member.process.kill();
        }
        member.end.cause().unwrap_or_default()
    }

    /// Workers hear of a new server first: it calls them, and they turn away whom they do not expect.
    fn introduce_replacement(&mut self, server: u32, was: Rank, node: Identity, workers: &[Rank]) {
        let endpoints = |rank: Rank| {
            let ready = self.members[rank.index()].ready.as_ref();
            ready.map(|(endpoints, _)| endpoints.clone())
        };
        let known = |rank| if workers.contains(&rank) { endpoints(rank) } else { None };
        let callers = (0..self.members.len() as u32).map(|rank| known(Rank(rank))).collect();
        let (rank, incarnation) = (node.rank.0, node.incarnation.0);
        // whoever can be replaced has one fabric
        let endpoint = endpoints(node.rank).unwrap_or_default().into_iter().next();
        let endpoint = endpoint.unwrap_or_default();
        let was = was.0;
        let told = ToMember::ServerReplaced { server, was, rank, incarnation, endpoint };
        self.tell(workers, &told);
        self.tell(&[node.rank], &ToMember::Peers { endpoints: callers });
        let replaced = JobUpdate::Replaced { server, by: node.rank };
        self.store.iter_mut().for_each(|store| store.updates.push(replaced.clone()));
    }
}
