//! Starts a member: as a child here, or by `--rsh` on another host. Its assignment goes through standard
//! input either way, so that no argument list shows the job's secret.

use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};

use crate::hosts::Hosts;
use crate::job::JobSpec;

/// Set for a process that a launcher started as a member: the launcher's process id, or `remote` on another host.
pub const MEMBER: &str = "TENSORWIRE_MEMBER";
/// Set for a process that is to become the command in its arguments, and to end when its parent does.
pub const RUN_WITH_PARENT: &str = "TENSORWIRE_RUN_WITH_PARENT";

/// How long those that were killed may take to end.
pub(crate) const REAP_PATIENCE: Duration = Duration::from_secs(2);

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
            command.args(&spec.run_with_parent).arg(rsh);
            command.envs(marks.then_some((RUN_WITH_PARENT, "1")));
        }
        command.args(words).arg(spec.hosts.name(rank));
        command.arg(remote_line(&spec.program, &spec.arguments, marks));
    }
    if outlives {
        // what kills the launcher's group does not kill it
        command.process_group(0);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let told = child.stdin.take().map(|mut stdin| stdin.write_all(assignment.as_bytes()));
    match told {
        // a child that died before it read its assignment is found by its exit status
        Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = child.kill();
            let _ = reap(&mut child, Deadline::after(REAP_PATIENCE));
            Err(error)
        }
        _ => Ok(child),
    }
}

/// Returns true if a command that does nothing runs on another host of these within `patience`.
pub fn host_answers(hosts: &Hosts, name: &str, patience: Duration) -> bool {
    let [program, arguments @ ..] = hosts.rsh() else { return false };
    let mut command = Command::new(program);
    command.args(arguments).arg(name).arg("true").stdin(Stdio::null());
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return false;
    };
    if !reap(&mut child, Deadline::after(patience)) {
        let _ = child.kill();
        reap(&mut child, Deadline::after(REAP_PATIENCE));
        return false;
    }
    matches!(child.try_wait(), Ok(Some(status)) if status.success())
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
}
