//! A Slurm of one node, in a folder of its own: its three daemons, on ports of their own, ended by their ids.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::machine::{on_path, processes_of, send};

/// Ends them when it is dropped.
#[derive(Debug)]
pub struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    /// None where Slurm is not installed, or may not be run.
    pub fn start() -> Option<Slurm> {
        let programs = ["srun", "sinfo", "slurmctld", "slurmd", "munged"].map(on_path);
        // its daemon starts tasks as other users, and so must be root
        if programs.iter().any(Option::is_none) || !rustix::process::getuid().is_root() {
            return None;
        }
        let [_, _, slurmctld, slurmd, munged] = programs;
        let mut slurm = Slurm { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        slurm.configure();
        let at = |name: &str| slurm.folder.path().join(name).display().to_string();
        let munge = ["socket", "key-file", "pid-file", "log-file", "seed-file"];
        let munge = munge.map(|option| format!("--{option}={}", at(option)));
        slurm.daemon(&munged?, munge.iter().map(String::as_str).chain(["--foreground", "--force"]));
        slurm.await_until("munged", |slurm| slurm.folder.path().join("socket").exists());
        slurm.daemon(&slurmctld?, ["-D"]);
        slurm.daemon(&slurmd?, ["-D"]);
        slurm.await_until("a node", |slurm| {
            let nodes = slurm.command("sinfo").args(["-h", "-o", "%t"]).output().unwrap();
            String::from_utf8_lossy(&nodes.stdout).contains("idle")
        });
        Some(slurm)
    }

    /// A command that knows this Slurm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.configuration());
        command
    }

    /// The file that its commands are told of by `SLURM_CONF`.
    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn configure(&self) {
        use std::os::unix::fs::PermissionsExt;
        let folder = self.folder.path();
        // munged refuses a folder that others may write to, and its clients must reach the socket
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let key = folder.join("key-file");
        std::fs::write(&key, std::array::from_fn::<u8, 64, _>(|at| at as u8 * 3 + 1)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host = host.split('.').next().unwrap().to_string();
        let (controller, daemon) = (free_port(), free_port());
        let at = |name: &str| folder.join(name).display().to_string();
        for name in ["state", "spool"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let text = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             SlurmctldPort={controller}\nSlurmdPort={daemon}\n\
             AuthType=auth/munge\nAuthInfo=socket={},cred_expire=5\nCredType=cred/munge\n\
             StateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             ReturnToService=2\nMailProg=/bin/true\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
             PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n",
            at("socket"),
            at("state"),
            at("spool"),
            at("slurmctld.pid"),
            at("slurmd.pid"),
        );
        std::fs::write(self.configuration(), text).unwrap();
    }

    fn daemon<'a>(&mut self, program: &Path, arguments: impl IntoIterator<Item = &'a str>) {
        let log = self.folder.path().join("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let child = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.configuration())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemons.push(child);
    }

    fn await_until(&self, what: &str, is: impl Fn(&Slurm) -> bool) {
        let start = Instant::now();
        while !is(self) {
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(start.elapsed() < Duration::from_secs(60), "no {what}:\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            send(rustix::process::Pid::from_child(daemon), Signal::TERM);
            let start = Instant::now();
            while daemon.try_wait().unwrap().is_none() && start.elapsed().as_secs() < 5 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // what the daemons started for a step outlives them where a test has failed in it
        let ours = format!("SLURM_CONF={}", self.configuration().display());
        processes_of(&ours).into_iter().for_each(|pid| send(pid, Signal::KILL));
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
