//! Starts a member: as a child here, or by `--rsh` on another host. Its assignment goes through standard
//! input either way, so that no argument list shows the job's secret.

use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorwire_base::{Deadline, Rank};

use crate::hosts::Hosts;
use crate::job::JobSpec;

/// Set for a process that a launcher started as a member: the launcher's process id, or `remote` on another host.
pub const MEMBER: &str = "TENSORWIRE_MEMBER";
/// Set for a process that is to become the command in its arguments, and to end when its parent does.
pub const RUN_WITH_PARENT: &str = "TENSORWIRE_RUN_WITH_PARENT";

/// How long those that were killed may take to end.
pub(crate) const REAP_PATIENCE: Duration = Duration::from_secs(2);

/// How long a process may take to run its program and to read its assignment.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the command behind it, which ignores SIGINT from its beginning: ssh goes on doing so. A terminal sends it to all
/// that the launcher has started here; the members on other hosts, whose connection it would end, are told by the launcher.
const HEARS_NO_CTRL_C: [&str; 3] = [
    "sh",
    "-c",
    "trap '' INT; command -v \"$0\" >/dev/null || \
     { echo \"error: $0: No such file, or no program\" >&2; exit 255; }; exec \"$0\" \"$@\"",
];

/// Starts the member `rank` and hands it `assignment`.
pub(crate) fn start(spec: &JobSpec, rank: Rank, assignment: &str) -> std::io::Result<Child> {
    let mut command = Command::new(&spec.program);
    let is_here = spec.hosts.is_here(rank) || spec.gathering.is_some();
    let marks = spec.marks_members;
    let outlives = spec.takeover.is_some();
    if is_here {
        command.args(&spec.arguments);
        command.envs(marks.then(|| (MEMBER, std::process::id().to_string())));
    } else {
        // what starts it there is a child of this program first, that ends when the launcher does
        let [rsh, words @ ..] = spec.hosts.rsh() else {
            return Err(ErrorKind::InvalidInput.into());
        };
        if outlives {
            command = Command::new(rsh);
        } else {
            command.args(&spec.run_with_parent).args(HEARS_NO_CTRL_C).arg(rsh);
            command.envs(marks.then_some((RUN_WITH_PARENT, "1")));
        }
        command.args(words).arg(spec.hosts.name(rank));
        let line = remote_line(&spec.program, &spec.arguments, marks);
        command.arg(in_folder(spec.folder.as_deref(), &line));
    }
    if outlives {
        // what kills the launcher's group does not kill it
        command.process_group(0);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = spawn(command, START_PATIENCE)?;
    match hand_over(&mut child, assignment, START_PATIENCE) {
        // a child that died before it read its assignment is found by its exit status
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = child.kill();
            let _ = reap(&mut child, Deadline::after(REAP_PATIENCE));
            Err(error)
        }
        _ => Ok(child),
    }
}

/// A process to be started, and whom to tell.
struct Order {
    command: Command,
    slot: Arc<Slot>,
}

/// What became of an order.
#[derive(Default)]
struct Slot {
    state: Mutex<Started>,
    news: Condvar,
}

#[derive(Default)]
enum Started {
    #[default]
    Awaited,
    Made(std::io::Result<Child>),
    /// Nobody waits for it any more.
    GivenUp,
}

/// Starts a process within `patience`: one that is stopped before it runs its program holds up whoever starts it.
fn spawn(command: Command, patience: Duration) -> std::io::Result<Child> {
    // A child that is to end with its parent ends with the thread that started it: these threads live as long as this
    // process. The last one starts what comes; the others are held up, and will wait for orders for ever.
    static STARTERS: Mutex<Vec<Sender<Order>>> = Mutex::new(Vec::new());
    let slot = Arc::new(Slot::default());
    let mut starters = STARTERS.lock();
    let starter = match starters.last() {
        Some(starter) => starter.clone(),
        None => new_starter(&mut starters)?,
    };
    drop(starters);
    let gone = |_| std::io::Error::other("the thread that starts processes has ended");
    starter.send(Order { command, slot: slot.clone() }).map_err(gone)?;
    let until = Instant::now() + patience;
    let mut state = slot.state.lock();
    while matches!(*state, Started::Awaited) && !slot.news.wait_until(&mut state, until).timed_out()
    {
    }
    if let Started::Made(made) = std::mem::replace(&mut *state, Started::GivenUp) {
        return made;
    }
    drop(state);
    new_starter(&mut STARTERS.lock())?;
    Err(late("run", "is its file on a disk that does not answer", patience))
}

fn new_starter(starters: &mut Vec<Sender<Order>>) -> std::io::Result<Sender<Order>> {
    let (starter, orders) = channel::<Order>();
    std::thread::Builder::new().name("starts-members".into()).spawn(move || {
        for Order { mut command, slot } in orders {
            let made = command.spawn();
            let mut state = slot.state.lock();
            match (&*state, made) {
                (Started::GivenUp, Ok(mut child)) => {
                    let _ = child.kill();
                    let _ = reap(&mut child, Deadline::after(REAP_PATIENCE));
                }
                (_, made) => {
                    *state = Started::Made(made);
                    slot.news.notify_one();
                }
            }
        }
    })?;
    starters.push(starter.clone());
    Ok(starter)
}

/// Writes the assignment to a child's standard input, within `patience`.
fn hand_over(child: &mut Child, assignment: &str, patience: Duration) -> std::io::Result<()> {
    let Some(mut stdin) = child.stdin.take() else { return Ok(()) };
    let (told, answer) = channel();
    let assignment = assignment.to_string();
    // what does not fit the pipe waits for the child to read; its end ends the wait
    let write = move || drop(told.send(stdin.write_all(assignment.as_bytes())));
    std::thread::Builder::new().name("tells-member".into()).spawn(write)?;
    let late = |_| Err(late("read its assignment", "is it stopped", patience));
    answer.recv_timeout(patience).unwrap_or_else(late)
}

fn late(what: &str, guess: &str, patience: Duration) -> std::io::Error {
    let why = format!("it did not {what} within {:.0} s; {guess}?", patience.as_secs_f64());
    std::io::Error::new(ErrorKind::TimedOut, why)
}

/// Returns true if a command that does nothing runs on another host of these within `patience`. `is_over`, which is called all the time,
/// ends the wait.
pub fn host_answers(
    hosts: &Hosts,
    name: &str,
    patience: Duration,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    let [program, arguments @ ..] = hosts.rsh() else { return false };
    let mut command = Command::new(program);
    command.args(arguments).arg(name).arg("true").stdin(Stdio::null());
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return false;
    };
    let deadline = Deadline::after(patience);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if !deadline.passed() && !is_over() => {
                std::thread::sleep(Duration::from_millis(2));
            }
            // an error: there is nothing to wait for
            _ => {
                let _ = child.kill();
                reap(&mut child, Deadline::after(REAP_PATIENCE));
                return false;
            }
        }
    }
}

/// Waits for a process that was killed, so that it leaves no zombie. False if it had not ended at the deadline: the system holds
/// it, as it does one that waits for a disk or is looked at by a debugger.
pub(crate) fn reap(child: &mut Child, deadline: Deadline) -> bool {
    loop {
        // an error: there is nothing to wait for
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        if deadline.passed() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One line for the shell of another host. The member takes the shell's place there, so that it ends
/// with the connection even if it is stopped.
fn remote_line(program: &Path, arguments: &[String], marks: bool) -> String {
    let program = program.to_string_lossy();
    let words = std::iter::once(program.as_ref()).chain(arguments.iter().map(String::as_str));
    let mark = if marks { format!("env {MEMBER}=remote ") } else { String::new() };
    format!("exec {mark}{}", words.map(quoted).collect::<Vec<_>>().join(" "))
}

/// The line for a shell that goes to a folder first, if it is there.
fn in_folder(folder: Option<&Path>, line: &str) -> String {
    let Some(folder) = folder else { return line.to_string() };
    let folder = quoted(&folder.to_string_lossy());
    format!("test -d {folder} && cd {folder}; {line}")
}

/// A word as a shell reads it back, whatever is in it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_no_assignment_holds_up_nobody_for_ever() {
        let mut sleeper = Command::new("sleep");
        sleeper.arg("600").stdin(Stdio::piped());
        let mut sleeper = spawn(sleeper, Duration::from_secs(60)).unwrap();
        // more than a pipe takes
        let assignment = "x".repeat(4 << 20);
        let error = hand_over(&mut sleeper, &assignment, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("is it stopped?"), "{error}");
        sleeper.kill().unwrap();
        assert!(reap(&mut sleeper, Deadline::after(REAP_PATIENCE)));
    }

    #[test]
    fn what_starts_late_is_ended_and_holds_up_nobody_after_it() {
        // starting one takes longer than no time
        let mut first = Command::new("sleep");
        first.arg("600");
        match spawn(first, Duration::ZERO) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
            // it was quick
            Ok(mut first) => first.kill().unwrap(),
        }
        let mut next = spawn(Command::new("true"), Duration::from_secs(60)).unwrap();
        assert!(reap(&mut next, Deadline::after(Duration::from_secs(60))));
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let words = ["plain", "two words", "it's", "$HOME `id` \\ \"", "", "a\nb", "*;&|<>"];
        for word in words {
            let line = format!("printf %s {}", quoted(word));
            let shell = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), word);
        }
        let line = remote_line(Path::new("/opt/ten sor/wire"), &["member".to_string()], false);
        assert_eq!(line, "exec '/opt/ten sor/wire' member");
        let line = remote_line(Path::new("/opt/own"), &["--deep".to_string()], true);
        assert_eq!(line, "exec env TENSORWIRE_MEMBER=remote /opt/own --deep");
    }

    #[test]
    fn a_program_of_ones_own_begins_in_its_folder_where_that_is_there() {
        let made = tempfile::tempdir().unwrap();
        let folder = made.path().join("a b");
        let line = remote_line(Path::new("pwd"), &[], true);
        let said = |folder: Option<&Path>| {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(in_folder(folder, &line)).current_dir("/");
            String::from_utf8(shell.output().unwrap().stdout).unwrap()
        };
        assert_eq!((said(None), said(Some(&folder))), ("/\n".to_string(), "/\n".to_string()));
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(said(Some(&folder)), format!("{}\n", folder.display()));
    }
}
