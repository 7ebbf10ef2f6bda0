//! What the machine that a test runs on has: programs, and processes.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// The program of this name, also among those of administrators, which are not on the PATH of everybody.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join(name)).find(|file| file.exists())
}

/// Sends a signal to a process.
pub fn send(pid: Pid, signal: Signal) {
    // a process that is gone already is what the signal wants
    let _ = kill_process(pid, signal);
}

/// A process, as the kernel lists it.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub state: char,
}

/// All processes of this machine, from `/proc/*/stat`.
pub fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // the name, in parentheses, may hold anything
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Process { pid, parent, group, state })
    })
    .collect()
}

/// Processes that have this variable in their environment.
pub fn processes_of(variable: &str) -> Vec<Pid> {
    let has = |process: &Process| {
        let environment = std::fs::read(format!("/proc/{}/environ", process.pid));
        environment
            .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == variable.as_bytes()))
    };
    let found = processes().into_iter().filter(has);
    found.filter_map(|process| Pid::from_raw(process.pid as i32)).collect()
}
