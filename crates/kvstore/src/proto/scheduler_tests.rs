//! The scheduler told what happens, step by step.

use super::SchedulerAction as Action;
use super::SchedulerEvent as Event;
use super::*;

/// A scheduler at a time.
#[derive(Clone)]
struct Job {
    scheduler: Scheduler,
    now_ms: u64,
}

/// The first life of a rank.
fn node(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(1000 + u64::from(rank)) }
}

fn ranks(ranks: &[u32]) -> Vec<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

impl Job {
    /// All have joined.
    fn stands(options: SchedulerOptions) -> Job {
        let mut job = Job { scheduler: Scheduler::new(options), now_ms: 0 };
        for rank in 0..options.workers + options.servers {
            assert_eq!(job.on(Event::Joined { node: node(rank) }), []);
        }
        job
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ms, event, &mut actions);
        actions
    }

    fn enter(&mut self, rank: u32, barrier: u64) -> Vec<Action> {
        self.on(Event::Entered { node: node(rank), barrier })
    }

    fn die(&mut self, rank: u32) -> Vec<Action> {
        self.on(Event::Died { rank: Rank(rank), why: "killed".into() })
    }
}

fn elastic(workers: u32) -> SchedulerOptions {
    SchedulerOptions { elastic: true, ..SchedulerOptions::new(workers, 1) }
}

fn replacing(workers: u32) -> SchedulerOptions {
    SchedulerOptions { replace_servers: true, ..SchedulerOptions::new(workers, 2) }
}

fn release(barrier: u64, to: &[u32]) -> Vec<Action> {
    vec![Action::Release { barrier, to: ranks(to) }]
}

/// The launcher that is gone may have released a barrier to some of the workers alone.
#[test]
fn a_barrier_that_one_has_passed_is_released_to_all_by_the_next_launcher() {
    let taken_over = SchedulerOptions { taken_over: true, ..SchedulerOptions::new(2, 1) };
    let mut job = Job::stands(taken_over);
    assert_eq!(job.enter(1, 7), []);
    assert_eq!(job.enter(0, 8), release(7, &[1]));
    assert_eq!(job.enter(1, 8), release(8, &[0, 1]));
    // in the other order it is told when it asks
    let mut job = Job::stands(taken_over);
    assert_eq!(job.enter(0, 8), []);
    assert_eq!(job.enter(1, 7), release(7, &[1]));
}

fn end(rank: u32) -> Vec<Action> {
    vec![Action::End { rank: Rank(rank), why: "killed".into() }]
}

#[test]
fn a_barrier_opens_once_when_the_last_worker_comes() {
    let mut job = Job::stands(SchedulerOptions::new(3, 2));
    assert_eq!(job.enter(1, 1), []);
    assert_eq!(job.enter(1, 1), [], "a repeated message counts once");
    assert_eq!(job.enter(0, 1), []);
    assert_eq!(job.enter(3, 1), [], "servers are no part of it");
    assert_eq!(job.enter(2, 1), release(1, &[0, 1, 2]));
    assert_eq!(job.enter(0, 1), release(1, &[0]), "to who asks again, alone");
    assert_eq!(job.enter(0, 3), [], "nobody can be past a barrier that is closed");
    for (rank, opened) in [(0, vec![]), (1, vec![]), (2, release(2, &[0, 1, 2]))] {
        assert_eq!(job.enter(rank, 2), opened);
    }
}

#[test]
fn one_worker_alone_passes_at_once() {
    let mut job = Job::stands(SchedulerOptions::new(1, 0));
    assert_eq!(job.enter(0, 1), release(1, &[0]));
    assert_eq!(job.enter(0, 2), release(2, &[0]));
}

#[test]
fn nobody_waits_for_a_worker_that_has_left() {
    let mut job = Job::stands(SchedulerOptions::new(2, 1));
    assert_eq!(job.enter(0, 1), []);
    let world = Action::World { epoch: 1, alive: vec![0], to: ranks(&[2]) };
    let released = release(1, &[0]).remove(0);
    assert_eq!(job.on(Event::Left { node: node(1) }), [world, released], "servers are told, too");
    assert_eq!(job.enter(0, 2), release(2, &[0]));
    assert_eq!(job.on(Event::Left { node: node(0) }), [], "nobody is left to be released");
}

#[test]
fn the_first_death_ends_a_job_that_is_not_elastic_and_nothing_comes_after_it() {
    let mut job = Job::stands(SchedulerOptions::new(2, 1));
    assert_eq!(job.enter(0, 1), []);
    assert_eq!(job.die(1), end(1));
    assert_eq!(job.die(2), []);
    assert_eq!(job.enter(0, 1), []);
}

#[test]
fn an_elastic_job_shrinks_and_releases_those_who_waited() {
    let mut job = Job::stands(elastic(3));
    assert_eq!(job.enter(0, 1), []);
    assert_eq!(job.enter(2, 1), []);
    let world = |epoch, alive: &[u32], to: &[u32]| Action::World {
        epoch,
        alive: alive.to_vec(),
        to: ranks(to),
    };
    let mut both = vec![world(1, &[0, 2], &[0, 2, 3])];
    both.extend(release(1, &[0, 2]));
    assert_eq!(job.die(1), both);
    assert_eq!(job.die(1), [], "it dies once");
    assert_eq!(job.enter(1, 2), [], "the dead are not heard");
    assert_eq!(job.die(0), [world(2, &[2], &[2, 3])]);
    assert_eq!(job.die(2), end(2), "at least one must live");
}

#[test]
fn a_death_after_others_have_done_their_part_is_survived() {
    let mut job = Job::stands(elastic(2));
    job.on(Event::Left { node: node(0) });
    let world = Action::World { epoch: 2, alive: vec![], to: ranks(&[2]) };
    assert_eq!(job.die(1), [world]);
}

#[test]
fn a_job_that_never_stood_does_not_shrink() {
    for options in [elastic(2), replacing(2)] {
        let mut job = Job { scheduler: Scheduler::new(options), now_ms: 0 };
        job.on(Event::Joined { node: node(0) });
        job.on(Event::Joined { node: node(2) });
        assert_eq!(job.die(2), end(2));
    }
    let mut job = Job { scheduler: Scheduler::new(elastic(2)), now_ms: 0 };
    assert_eq!(job.die(1), end(1));
}

#[test]
fn a_server_is_replaced_under_a_rank_that_was_never_used() {
    let mut job = Job::stands(SchedulerOptions { elastic: true, ..replacing(3) });
    let replace = Action::Replace { server: 1, was: Rank(4), rank: Rank(5) };
    assert_eq!(job.die(4), [replace]);
    assert_eq!(job.scheduler.role(Rank(5)), Some(Role::Server(1)));
    // a worker dies before the new one is there: it is told when it comes
    job.die(0);
    let world = Action::World { epoch: 1, alive: vec![1, 2], to: ranks(&[5]) };
    let replaced = Action::Replaced { server: 1, was: Rank(4), node: node(5), to: ranks(&[1, 2]) };
    assert_eq!(job.on(Event::Joined { node: node(5) }), [world, replaced]);
    assert_eq!(job.on(Event::Joined { node: node(5) }), [], "once");
    // its former life says nothing more
    job.now_ms = 1;
    assert_eq!(job.on(Event::Joined { node: node(4) }), []);
}

#[test]
fn a_replacement_that_dies_before_it_is_there_is_replaced_up_to_a_limit() {
    let mut job = Job::stands(replacing(1));
    for (dead, rank, was) in [(1, 3, 1), (3, 4, 3), (4, 5, 4)] {
        let replace = Action::Replace { server: 0, was: Rank(was), rank: Rank(rank) };
        assert_eq!(job.die(dead), [replace]);
    }
    assert_eq!(job.die(5), end(5));
}

#[test]
fn a_server_that_dies_after_all_workers_have_left_is_missed_by_nobody() {
    let mut job = Job::stands(replacing(1));
    job.on(Event::Left { node: node(0) });
    let spare = |rank| vec![Action::Spare { rank: Rank(rank) }];
    assert_eq!(job.die(1), spare(1));
    assert_eq!(job.die(2), spare(2));

    let mut job = Job::stands(SchedulerOptions { replace_servers: false, ..replacing(1) });
    job.on(Event::Left { node: node(0) });
    assert_eq!(job.die(1), end(1), "in a job that may lose none");
}

#[test]
fn one_that_was_to_take_a_servers_place_is_not_needed_once_all_workers_have_left() {
    let mut job = Job::stands(replacing(1));
    let replace = Action::Replace { server: 0, was: Rank(1), rank: Rank(3) };
    assert_eq!(job.die(1), [replace]);
    job.on(Event::Left { node: node(0) });
    let mut comes = job.clone();
    let world = Action::World { epoch: 1, alive: vec![], to: ranks(&[3]) };
    let replaced = Action::Replaced { server: 0, was: Rank(1), node: node(3), to: ranks(&[]) };
    assert_eq!(comes.on(Event::Joined { node: node(3) }), [world, replaced], "it ends by itself");
    assert_eq!(job.die(3), [Action::Spare { rank: Rank(3) }]);
}

#[test]
fn silence_counts_as_death_and_anything_said_as_life() {
    let mut job = Job::stands(elastic(2));
    job.now_ms = 5_999;
    assert_eq!(job.on(Event::Tick), []);
    for rank in [0, 2] {
        job.on(Event::Heard { node: node(rank) });
    }
    // a former life, and one that is no part of the job, do not count
    let former = Identity { rank: Rank(1), incarnation: Incarnation(7) };
    job.on(Event::Heard { node: former });
    job.on(Event::Heard { node: node(9) });
    job.now_ms = 6_000;
    let world = Action::World { epoch: 1, alive: vec![0], to: ranks(&[0, 2]) };
    assert_eq!(job.on(Event::Tick), [Action::GiveUp { rank: Rank(1), silent_ms: 6_000 }, world]);
    assert_eq!(job.on(Event::Tick), []);
    job.now_ms = 20_000;
    let actions = job.on(Event::Tick);
    assert_eq!(actions[0], Action::GiveUp { rank: Rank(0), silent_ms: 14_001 });
    assert!(
        matches!(&actions[1..], [Action::End { rank: Rank(0), why }] if why.contains("14.0 s"))
    );
}

#[test]
fn without_liveness_silence_means_nothing() {
    let mut job = Job::stands(SchedulerOptions { liveness_ms: None, ..elastic(2) });
    job.now_ms = u64::MAX;
    assert_eq!(job.on(Event::Tick), []);
}

#[test]
fn a_stranger_moves_nothing() {
    let mut job = Job::stands(elastic(2));
    let stranger = Identity { rank: Rank(1), incarnation: Incarnation(7) };
    assert_eq!(job.enter(0, 1), []);
    assert_eq!(job.on(Event::Entered { node: stranger, barrier: 1 }), []);
    assert_eq!(job.on(Event::Left { node: stranger }), []);
    assert_eq!(job.on(Event::Joined { node: stranger }), []);
    assert_eq!(job.die(77), []);
    assert_eq!(job.enter(1, 1), release(1, &[0, 1]));
}
