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

/// Processes in the order in which they were started: their numbers grow, and begin anew now and then, also within a tick.
pub fn in_order_of_start(pids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut processes: Vec<(u64, u32)> = pids.into_iter().map(|pid| (started(pid), pid)).collect();
    in_order(&mut processes);
    processes.into_iter().map(|(_, pid)| pid).collect()
}

/// The same of processes with the ticks in which they were started.
fn in_order(processes: &mut [(u64, u32)]) {
    /// Fewer are started meanwhile, and more numbers are there.
    const FAR: u32 = 1 << 14;
    let highest = processes.iter().map(|(_, pid)| *pid).max().unwrap_or_default();
    // those far below the highest came behind it
    processes.sort_unstable_by_key(|&(tick, pid)| (tick, highest - pid >= FAR, pid));
}

/// When a process was started, in ticks.
fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default();
    fields.split(' ').nth(19).and_then(|field| field.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes_that_begin_anew_are_in_the_order_of_their_start() {
        for (all, ordered) in [
            (vec![(7, 32766), (7, 310), (7, 32767), (8, 311)], vec![32766, 32767, 310, 311]),
            (vec![(9, 12), (8, 14), (9, 13)], vec![14, 12, 13]),
            (vec![], vec![]),
        ] {
            let mut processes: Vec<(u64, u32)> = all;
            in_order(&mut processes);
            let pids: Vec<u32> = processes.into_iter().map(|(_, pid)| pid).collect();
            assert_eq!(pids, ordered);
        }
    }
}
