//! Which way bytes travel between the processes of a job.

use serde::{Deserialize, Serialize};

/// How bytes travel between processes (`--transport`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Shared memory between members of one host; between hosts RDMA if every host can, else TCP.
    Auto,
    Shm,
    Tcp,
    /// RDMA, by libibverbs.
    Verbs,
}

impl Transport {
    /// As `--transport` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Verbs => "verbs",
        }
    }

    /// What is taken, as far as that is known before the members have been asked. `spread`: they are
    /// on several hosts. `encrypt`: what leaves a host is encrypted, which RDMA cannot do.
    pub fn settled(self, spread: bool, encrypt: bool) -> Option<Transport> {
        match self {
            Transport::Auto if spread && encrypt => Some(Transport::Tcp),
            Transport::Auto if spread => None,
            Transport::Auto => Some(Transport::Shm),
            given => Some(given),
        }
    }
}
