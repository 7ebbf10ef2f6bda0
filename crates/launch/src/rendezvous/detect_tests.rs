//! The variables of each launcher as it sets them, taken from real ones: Open MPI 4.1.4, MPICH 4.0.2, Slurm
//! 22.05, torchrun of PyTorch 2.

use super::*;

fn found(variables: &str) -> Result<Option<Detected>, DetectError> {
    let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
    let environment = pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    detect(&environment, 77)
}

fn one(variables: &str) -> Detected {
    found(variables).unwrap().unwrap()
}

fn says(variables: &str) -> String {
    found(variables).unwrap_err().to_string()
}

/// The same with variables left out.
fn without(variables: &str, names: &[&str]) -> String {
    let kept = variables.split_whitespace().filter(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        !names.contains(&name)
    });
    kept.collect::<Vec<_>>().join(" ")
}

const MPIRUN: &str =
    "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_RANK=1
    OMPI_COMM_WORLD_SIZE=4 OMPI_MCA_ess_base_jobid=1126957057 OMPI_UNIVERSE_SIZE=2
    PMIX_NAMESPACE=1126957057 PMIX_RANK=1";

const SRUN: &str =
    "SLURMD_NODENAME=node2 SLURM_CLUSTER_NAME=t SLURM_JOB_ID=12 SLURM_JOB_NODELIST=node[1-2]
    SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=3
    SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4";

const TORCHRUN: &str =
    "GROUP_RANK=0 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=41967
    RANK=3 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=dce0d33e WORLD_SIZE=4";

const MPIEXEC: &str =
    "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=8 PMI_RANK=1 PMI_SIZE=2";

const TRACKER: &str =
    "DMLC_ROLE=worker DMLC_PS_ROOT_URI=10.0.0.5 DMLC_PS_ROOT_PORT=9091 DMLC_NUM_WORKER=3
    DMLC_NUM_SERVER=1";

const INDEXED: &str =
    "JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=digits-0.digits MASTER_PORT=23456
    KUBERNETES_SERVICE_PORT=443";

#[test]
fn mpirun_on_one_host() {
    let got = one(MPIRUN);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::OpenMpi, LaunchedAs::Rank(1), 4));
    assert_eq!((got.local_rank, got.rendezvous.host), (Some(1), None));
    assert_eq!(got.rendezvous.ports.len(), 8);
    let other = one(&MPIRUN.replace("PMIX_NAMESPACE=1126957057", "PMIX_NAMESPACE=2"));
    assert_ne!(other.key, got.key, "two jobs of one user do not meet");
}

#[test]
fn mpirun_on_several_hosts_is_told_where_rank_0_is() {
    let several = MPIRUN.replace("LOCAL_SIZE=4", "LOCAL_SIZE=2");
    assert!(says(&several).contains("add -x MASTER_ADDR=HOST to mpirun"), "{}", says(&several));
    let told = one(&format!("{several} MASTER_ADDR=node1"));
    assert_eq!(told.rendezvous.host.as_deref(), Some("node1"));
}

#[test]
fn srun_meets_on_the_first_node_of_the_step() {
    let got = one(SRUN);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::Slurm, LaunchedAs::Rank(2), 4));
    assert_eq!(got.rendezvous.host.as_deref(), Some("node1"));
    assert_eq!(got.key, "srun t 12.3 ");
    let alone = one(&SRUN.replace("NUM_NODES=2", "NUM_NODES=1"));
    assert_eq!(alone.rendezvous.host, None);
    let told = one(&format!("{SRUN} MASTER_ADDR=10.0.0.9 MASTER_PORT=65530"));
    assert_eq!(told.rendezvous.host.as_deref(), Some("10.0.0.9"));
    let ports = told.rendezvous.ports;
    assert_eq!((ports[0], ports.last()), (65530, Some(&65535)), "there are no ports beyond");
}

#[test]
fn a_batch_script_and_a_shell_of_salloc_start_their_own() {
    let batch =
        "SLURM_JOB_ID=2 SLURM_TASKS_PER_NODE=2 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NPROCS=2";
    assert_eq!(found(batch), Ok(None));
    assert_eq!(found("SLURM_JOB_ID=2 SLURM_NTASKS=2 SLURM_JOB_NODELIST=vm"), Ok(None));
    assert_eq!(found("HOME=/root PATH=/bin WORLD_SIZE= MASTER_PORT=1"), Ok(None));
    assert_eq!(found("JOB_COMPLETION_INDEX=0"), Ok(None), "a pod that is a job by itself");
    assert_eq!(found("PMIX_RANK=0 OMPI_MCA_btl=self"), Ok(None));
}

#[test]
fn how_long_all_wait_for_each_other_is_said_under_every_launcher() {
    for variables in [MPIRUN, SRUN, TORCHRUN, MPIEXEC, TRACKER, INDEXED] {
        assert_eq!(one(variables).patience, Duration::from_secs(60));
        let told = one(&format!("{variables} TENSORWIRE_GATHER_TIMEOUT=600"));
        assert_eq!(told.patience, Duration::from_secs(600));
        for wrong in ["0", "-1", "soon", "1.5"] {
            let said = says(&format!("{variables} TENSORWIRE_GATHER_TIMEOUT={wrong}"));
            let mends = format!(
                "TENSORWIRE_GATHER_TIMEOUT is '{wrong}' in the environment, and should be a number"
            );
            assert!(said.starts_with(&mends), "{said}");
        }
    }
}

#[test]
fn torchrun_keeps_its_port_for_its_store() {
    let got = one(TORCHRUN);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::Torchrun, LaunchedAs::Rank(3), 4));
    assert_eq!((got.local_rank, got.rendezvous.ports[0]), (Some(3), 41968));
    assert_eq!(got.rendezvous.host.as_deref(), Some("localhost"));
    let other = one(&TORCHRUN.replace("RESTART_COUNT=0", "RESTART_COUNT=1"));
    assert_eq!(other.key, got.key, "each agent counts its own restarts, and they meet");
    // Kubeflow and the like set the same, and listen nowhere
    let bare = one(&without(TORCHRUN, &["TORCHELASTIC_RUN_ID"]));
    assert_eq!(bare.rendezvous.ports[0], 41967);
}

#[test]
fn mpiexec_of_mpich() {
    let got = one(MPIEXEC);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::Hydra, LaunchedAs::Rank(1), 2));
    assert_eq!((got.local_rank, got.rendezvous.host), (Some(1), None));
    let several = MPIEXEC.replace("PMI_SIZE=2", "PMI_SIZE=4");
    assert!(says(&several).contains("-genv MASTER_ADDR HOST"), "{}", says(&several));
    let told = one(&format!("{several} MASTER_ADDR=node1 MASTER_PORT=3000"));
    assert_eq!(told.rendezvous.to_string(), "node1, port 3000 to 3007");
}

#[test]
fn a_tracker_of_ps_lite_counts_and_names_the_roles() {
    let got = one(TRACKER);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::PsLite, LaunchedAs::Worker, 4));
    assert_eq!(
        (got.counts, got.rendezvous.to_string()),
        (Some((3, 1)), "10.0.0.5, port 9091".into())
    );
    let scheduler = one(&TRACKER.replace("worker", "scheduler"));
    assert!(scheduler.launched_as.is_launcher());
    assert_eq!(scheduler.key, got.key);
    let joint = says(&TRACKER.replace("=worker", "=joint"));
    assert!(joint.contains("DMLC_ROLE is 'joint'"), "{joint}");
}

#[test]
fn a_pod_of_an_indexed_job() {
    let got = one(INDEXED);
    assert_eq!((got.by, got.launched_as, got.world), (Outer::Kubernetes, LaunchedAs::Rank(2), 4));
    assert_eq!(got.rendezvous.host.as_deref(), Some("digits-0.digits"));
    assert_eq!(got.rendezvous.ports[0], 23456);
}

#[test]
fn the_innermost_launcher_counts() {
    assert_eq!(one(&format!("{SRUN} {MPIRUN}")).by, Outer::OpenMpi);
    assert_eq!(one(&format!("{SRUN} {TORCHRUN}")).by, Outer::Torchrun);
    assert_eq!(one(&format!("{MPIRUN} {TORCHRUN}")).by, Outer::Torchrun);
    assert_eq!(one(&format!("{MPIRUN} {TRACKER}")).by, Outer::PsLite);
    // srun --mpi=pmi2 sets these, too, and knows the hosts
    assert_eq!(one(&format!("{SRUN} PMI_RANK=2 PMI_SIZE=4")).by, Outer::Slurm);
    // a script of sbatch that says where its first node is
    assert_eq!(one(&format!("{SRUN} WORLD_SIZE=4 MASTER_ADDR=node1")).by, Outer::Slurm);
}

#[test]
fn half_of_it_names_what_is_missing() {
    let names = [
        (MPIRUN, "OMPI_COMM_WORLD_SIZE"),
        (MPIRUN, "OMPI_COMM_WORLD_RANK"),
        (SRUN, "SLURM_PROCID"),
        (SRUN, "SLURM_JOB_ID"),
        (SRUN, "SLURM_STEP_ID"),
        (SRUN, "SLURM_STEP_NODELIST"),
        (TORCHRUN, "RANK"),
        (TORCHRUN, "WORLD_SIZE"),
        (TORCHRUN, "MASTER_ADDR"),
        (TORCHRUN, "MASTER_PORT"),
        (MPIEXEC, "PMI_SIZE"),
        (MPIEXEC, "PMI_RANK"),
        (TRACKER, "DMLC_PS_ROOT_URI"),
        (TRACKER, "DMLC_PS_ROOT_PORT"),
        (TRACKER, "DMLC_NUM_WORKER"),
        (TRACKER, "DMLC_NUM_SERVER"),
        (INDEXED, "WORLD_SIZE"),
    ];
    for (variables, name) in names {
        let error = says(&without(variables, &[name]));
        assert!(error.contains(&format!("but {name} is not")), "{name}: {error}");
        assert!(error.contains("--no-detect"), "{error}");
    }
    let nameless = says(&without(MPIRUN, &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]));
    assert!(nameless.contains("PMIX_NAMESPACE is not"), "{nameless}");
}

#[test]
fn nonsense_is_shown() {
    let rank = says(&TORCHRUN.replace(" RANK=3", " RANK=-1"));
    assert!(rank.contains("RANK is '-1'"), "{rank}");
    let outside = says(&TORCHRUN.replace(" RANK=3", " RANK=4"));
    assert!(outside.contains("RANK is 4 of 4 processes"), "{outside}");
    let port = says(&TORCHRUN.replace("41967", "0"));
    assert!(port.contains("MASTER_PORT is '0'"), "{port}");
    let nodes = says(&SRUN.replace("STEP_NODELIST=node[1-2]", "STEP_NODELIST=node["));
    assert!(nodes.contains("SLURM_STEP_NODELIST is 'node['"), "{nodes}");
}
