//! What makes the processes of one job meet, and no others: made from what their launcher calls the job, and
//! from `TENSORWIRE_SECRET` where that is set. Without it whoever knows the job's name may join: that
//! keeps jobs apart, not intruders out.

use sha2::{Digest, Sha256};
use tensorwire_base::JobId;
use tensorwire_fabric::{JobCredentials, Secret};

/// Below the ports that systems give to whoever asks for any, above those of well-known services.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// With what processes prove to each other that they belong to one job, before it has a secret of its own.
pub(super) fn credentials(key: &str, secret: Option<&str>) -> JobCredentials {
    let id = digest(&[b"tensorwire job", key.as_bytes()]);
    let secret =
        digest(&[b"tensorwire enlist", key.as_bytes(), secret.unwrap_or_default().as_bytes()]);
    let job_id = JobId(u64::from_le_bytes(std::array::from_fn(|i| id[i])));
    JobCredentials { job_id, secret: Secret(secret) }
}

/// The job's own secret. It never travels: both sides make it.
pub(super) fn job_secret(joining: &Secret, salt: &[u8; 32]) -> Secret {
    Secret(digest(&[b"tensorwire members", &joining.0, salt]))
}

/// Where the processes of a job meet, if nothing else says.
pub(super) fn port(key: &str) -> u16 {
    let bytes = digest(&[b"tensorwire port", key.as_bytes()]);
    PORTS.start + u16::from_le_bytes([bytes[0], bytes[1]]) % (PORTS.end - PORTS.start)
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // lengths keep two lists of parts from being one text
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_jobs_and_two_secrets_differ() {
        let one = credentials("srun 7.0", None);
        assert_eq!(one, credentials("srun 7.0", None));
        assert_ne!(one.job_id, credentials("srun 7.1", None).job_id);
        let secret = credentials("srun 7.0", Some("s"));
        assert_eq!(one.job_id, secret.job_id, "a wrong secret is told from another job");
        assert_ne!(one.secret, secret.secret);
        let made = job_secret(&one.secret, &[1; 32]);
        assert_ne!(made, one.secret);
        assert_ne!(made, job_secret(&one.secret, &[2; 32]));
        assert!(PORTS.contains(&port("srun 7.0")));
    }
}
