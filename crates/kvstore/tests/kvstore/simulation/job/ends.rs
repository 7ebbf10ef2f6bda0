//! How a simulated job may end: finished by all who live, by a death that it cannot survive, or, where a
//! first value died with everybody who had it, never.

use tensorwire_base::Rank;

use super::{Does, Job, Process, REPLACEMENTS_MAX};
use crate::simulation::plan::Step;
use crate::simulation::server::ServerSim;
use crate::simulation::worker::WorkerSim;

impl Job {
    /// All workers that live have done their part.
    pub(super) fn is_finished(&self) -> bool {
        self.left > 0 && self.live_workers().all(|worker| worker.left)
    }

    /// A job ends early by a death alone, and names the dead.
    pub(super) fn check_end(&mut self, rank: Rank) -> Result<(), String> {
        self.seen.ended += 1;
        let process = self.processes[rank.index()].as_ref();
        let dead = process.filter(|process| process.is_dead);
        let dead = dead.ok_or_else(|| format!("the job ends with rank {rank}, which lives"))?;
        let stood = self.joined.len() >= self.plan.workers + self.plan.servers;
        let may_go_on = match &dead.does {
            Does::Work(_) => self.plan.elastic && self.live_workers().next().is_some(),
            Does::Serve(_) => {
                let replaced = self.processes.len() - self.plan.workers - self.plan.servers;
                let working = self.live_workers().any(|worker| !worker.left);
                self.plan.checkpoint && replaced < REPLACEMENTS_MAX as usize && working
            }
        };
        match stood && may_go_on {
            true => Err(format!("the job ends with rank {rank} and could have gone on")),
            false => Ok(()),
        }
    }

    /// Everything that who lives pushed is in, and every call was done.
    pub(super) fn check_finished(&mut self) -> Result<(), String> {
        self.seen.finished += 1;
        let barriers = self.plan.program.iter().filter(|step| matches!(step, Step::Barrier));
        let barriers = barriers.count() as u64;
        if self.released != barriers {
            return Err(format!("{} barriers opened", self.released));
        }
        // who was at the last barrier had done its shard
        let died_early = |process: &Process| {
            let Does::Work(worker) = &process.does else {
                return false;
            };
            process.is_dead && worker.entered < barriers
        };
        if !self.plan.elastic && self.processes.iter().flatten().any(died_early) {
            return Err("a worker died and the job does not say so".to_owned());
        }
        for worker in self.live_workers() {
            for server in self.live_servers().filter(|server| !self.died_late[server.index]) {
                self.check_pushes(worker, server)?;
                self.check_calls(worker, server)?;
            }
        }
        Ok(())
    }

    fn check_pushes(&self, worker: &WorkerSim, server: &ServerSim) -> Result<(), String> {
        let shards = self.plan.shards.iter().zip(worker.shards());
        for (plan, shard) in shards.filter(|(plan, _)| plan.server == server.index) {
            let weights = server.weights(plan.key).ok_or("a shard is gone")?;
            let (found, pushed) = (weights.rounds(worker.index), shard.pushed);
            if found != pushed {
                let who = format!("worker {} pushed shard {}", worker.index, plan.key.0);
                return Err(format!("{who} {pushed} times, and {found} are in"));
            }
        }
        Ok(())
    }

    fn check_calls(&self, worker: &WorkerSim, server: &ServerSim) -> Result<(), String> {
        let is_its_first_life = server.member.rank.index() == self.plan.workers + server.index;
        let here = worker.called.iter().filter(|tag| {
            let step = usize::try_from(**tag).ok().and_then(|at| self.plan.program.get(at));
            matches!(step, Some(Step::Call { server: of, .. }) if *of == server.index)
        });
        let lost = here.filter(|tag| !server.calls.contains(&(worker.index, **tag))).count();
        match is_its_first_life && lost > 0 {
            true => Err(format!("{lost} calls of worker {} were not done", worker.index)),
            false => Ok(()),
        }
    }

    /// A job never ends only if a first value is lost: its giver died, and so did the server before a
    /// snapshot, or before it came.
    pub(super) fn check_stuck(&mut self) -> Result<(), String> {
        self.seen.stuck += 1;
        let giver = self.processes[self.plan.first].as_ref();
        let giver_died = giver.is_some_and(|process| process.is_dead);
        let has_first = |server: &ServerSim, key| {
            server.weights(key).is_some_and(|weights| weights.first.is_some())
        };
        let lost = self.plan.shards.iter().any(|shard| {
            let mut servers = self.live_servers().filter(|server| server.index == shard.server);
            servers.any(|server| !has_first(server, shard.key))
        });
        match giver_died && lost {
            true => Ok(()),
            false => Err("the job does not end".to_owned()),
        }
    }

    fn live_workers(&self) -> impl Iterator<Item = &WorkerSim> {
        let live = self.processes.iter().flatten().filter(|process| !process.is_dead);
        live.filter_map(|process| match &process.does {
            Does::Work(worker) => Some(&**worker),
            Does::Serve(_) => None,
        })
    }

    fn live_servers(&self) -> impl Iterator<Item = &ServerSim> {
        let live = self.processes.iter().flatten();
        live.filter(|process| !process.is_dead && !process.hangs).filter_map(|process| {
            match &process.does {
                Does::Serve(server) => Some(&**server),
                Does::Work(_) => None,
            }
        })
    }
}
