//! What a launcher hands down to one member: who it is, whom to call, and the job's secret. It goes
//! through the member's standard input, so that no argument list or environment shows the secret.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Incarnation, JobId, Rank};
use tensorwire_fabric::{JobCredentials, Secret};

use crate::job::JobSpec;
use crate::store_job::StorePlace;

/// One member's place in a job. Travels as one line of JSON; is never printed whole.
#[derive(Clone, Serialize, Deserialize)]
pub struct Assignment {
    job_id: u64,
    secret: String,
    rank: u32,
    /// Number of members at the job's beginning; a replacement's rank is beyond it.
    world: u32,
    /// By rank.
    incarnations: Vec<u64>,
    /// The launcher's own incarnation.
    launcher: u64,
    /// Where the launcher listens.
    pub coordinator: SocketAddr,
    /// Members of the job on this one's host, itself included.
    pub members_here: u32,
    /// How many of them have a lower rank.
    pub members_before: u32,
    /// Those of them that may run on the same processors, itself included.
    pub cores_shared_by: u32,
    /// The number of its host, the same for all of them.
    pub host: u32,
    /// What it is in a store, if the job is one.
    pub store: Option<StorePlace>,
    /// The job's processes were started by somebody who may tell all of them to end when one does.
    pub joined: bool,
    /// How long a silent launcher is believed to be alive, in milliseconds.
    pub liveness_ms: u64,
    /// How long a step of the set-up may wait for others that live, in milliseconds.
    setup_ms: u64,
    /// The job ends behind a step when it is told to end, since what it has is kept.
    pub winds_down: bool,
    /// How long another launcher is waited for if this one goes, in milliseconds; none: not at all.
    pub takeover_ms: Option<u64>,
    /// Which job it is, for whoever starts members of several kinds.
    pub kind: String,
    /// What to do; read by the job's own code.
    pub payload: serde_json::Value,
}

/// What all assignments of a job have in common.
#[derive(Clone, Debug)]
pub struct JobIdentity {
    pub credentials: JobCredentials,
    /// Number of members at the beginning.
    pub world: usize,
    /// By rank, replacements behind the others.
    pub incarnations: Vec<Incarnation>,
    pub launcher: Incarnation,
}

impl JobIdentity {
    /// A fresh job of `world` members, told apart from every other by random numbers.
    pub fn random(world: usize) -> JobIdentity {
        let number = || u64::from_le_bytes(tensorwire_fabric::handshake::random_bytes());
        let secret = Secret(tensorwire_fabric::handshake::random_bytes());
        JobIdentity {
            credentials: JobCredentials { job_id: JobId(number()), secret },
            world,
            incarnations: (0..world).map(|_| Incarnation(number())).collect(),
            launcher: Incarnation(number()),
        }
    }

    /// One more member, in the place of another; returns its rank.
    pub(crate) fn extend(&mut self) -> Rank {
        let number = u64::from_le_bytes(tensorwire_fabric::handshake::random_bytes());
        self.incarnations.push(Incarnation(number));
        // fits: a job has far fewer than 2^32 members
        Rank(self.incarnations.len() as u32 - 1)
    }

    /// What the member `rank` of the job `spec` is told, which runs where the member `home` is or was.
    pub(crate) fn assignment(
        &self,
        rank: Rank,
        home: Rank,
        coordinator: SocketAddr,
        spec: &JobSpec,
    ) -> Assignment {
        Assignment {
            job_id: self.credentials.job_id.0,
            secret: hex::encode(self.credentials.secret.0),
            rank: rank.0,
            // fits: a job has far fewer than 2^32 members
            world: self.world as u32,
            incarnations: self.incarnations.iter().map(|incarnation| incarnation.0).collect(),
            launcher: self.launcher.0,
            coordinator,
            // fits: a job has far fewer than 2^32 members
            members_here: spec.hosts.neighbours(home, self.world) as u32,
            members_before: spec.hosts.neighbours_before(home),
            // fits: as many as there are
            cores_shared_by: (0..self.world as u32)
                .filter(|other| spec.hosts.share_cores(home, Rank(*other)))
                .count() as u32,
            host: spec.hosts.number(home),
            store: None,
            joined: spec.gathering.is_some(),
            // fits: a deadline is at most an hour
            liveness_ms: spec.liveness.as_millis() as u64,
            setup_ms: setup_patience(spec).as_millis() as u64,
            winds_down: spec.wind_down.is_some(),
            // fits: a patience is at most a day
            takeover_ms: spec
                .takeover
                .as_ref()
                .map(|takeover| takeover.patience.as_millis() as u64),
            kind: spec.kind.clone(),
            payload: spec.payload.clone(),
        }
    }
}

/// How long a step of the set-up of a job may wait for others that live.
fn setup_patience(spec: &JobSpec) -> Duration {
    let least = spec.liveness * 4;
    spec.set_up.map_or(least, |given| given.max(least))
}

impl Assignment {
    pub fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(crate) fn setup_patience(&self) -> Duration {
        Duration::from_millis(self.setup_ms)
    }

    /// Number of members, where a replacement and whom it replaces are one.
    pub fn world(&self) -> usize {
        self.world as usize
    }

    /// The job's identity, none where the assignment is garbled.
    pub(crate) fn identity(&self) -> Option<JobIdentity> {
        let secret: [u8; 32] = hex::decode(&self.secret).ok()?.try_into().ok()?;
        if self.rank as usize >= self.incarnations.len() {
            return None;
        }
        let job_id = JobId(self.job_id);
        Some(JobIdentity {
            credentials: JobCredentials { job_id, secret: Secret(secret) },
            world: self.world as usize,
            incarnations: self.incarnations.iter().map(|&number| Incarnation(number)).collect(),
            launcher: Incarnation(self.launcher),
        })
    }
}

impl std::fmt::Debug for Assignment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assignment")
            .field("rank", &self.rank)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_survives_its_trip_through_json() {
        let identity = JobIdentity::random(3);
        let at = SocketAddr::from(([127, 0, 0, 1], 9));
        let hosts = "127.0.0.1,192.0.2.7".parse().unwrap();
        let sent = identity.assignment(
            Rank(2),
            Rank(2),
            at,
            &JobSpec { hosts, ..JobSpec::new("", "", Vec::new()) },
        );
        let line = serde_json::to_string(&sent).unwrap();
        let got: Assignment = serde_json::from_str(&line).unwrap();
        let back = got.identity().unwrap();
        assert_eq!(back.credentials, identity.credentials);
        assert_eq!(back.incarnations, identity.incarnations);
        assert_eq!((got.rank(), got.world(), got.members_here), (Rank(2), 3, 2));
        assert!(!format!("{got:?}").contains(&sent.secret), "the secret is never printed");
    }

    #[test]
    fn the_set_up_waits_for_who_reads_as_long_as_it_was_told_to() {
        let at = SocketAddr::from(([127, 0, 0, 1], 9));
        let told = |set_up: Option<u64>| {
            let spec = JobSpec::new("", "", Vec::new());
            let spec = JobSpec { set_up: set_up.map(Duration::from_secs), ..spec };
            JobIdentity::random(1).assignment(Rank(0), Rank(0), at, &spec).setup_patience()
        };
        assert_eq!([None, Some(1), Some(600)].map(|set_up| told(set_up).as_secs()), [24, 24, 600]);
    }

    #[test]
    fn a_garbled_assignment_has_no_identity() {
        let at = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut garbled = JobIdentity::random(1).assignment(
            Rank(0),
            Rank(0),
            at,
            &JobSpec::new("", "", Vec::new()),
        );
        garbled.secret.pop();
        assert!(garbled.identity().is_none());
        let outside = JobIdentity::random(1).assignment(
            Rank(1),
            Rank(1),
            at,
            &JobSpec::new("", "", Vec::new()),
        );
        assert!(outside.identity().is_none());
    }
}
