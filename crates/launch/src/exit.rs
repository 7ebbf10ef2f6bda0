//! What an exit status says of a member. One of another host ends as the command that started it there
//! does, and that command speaks for both.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a member of another host was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote<'a> {
    pub(crate) host: &'a str,
    /// The command that starts others' processes.
    pub(crate) rsh: &'a str,
    /// The program to be started there.
    pub(crate) program: &'a str,
    /// The member has called the launcher: it was started.
    pub(crate) called: bool,
}

/// Says how a process of this host ended.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => killed(signal),
        (None, Some(0)) => "it ended before its part was done".to_string(),
        (None, Some(code)) => format!("it exited with status {code}"),
        (None, None) => "it ended".to_string(),
    }
}

/// Says how a member of another host ended, from the status of what started it.
pub(crate) fn describe_remote(status: ExitStatus, remote: Remote<'_>) -> String {
    let Remote { host, rsh, program, called } = remote;
    match status.code() {
        // what a shell makes of a signal
        Some(code @ 129..=192) => killed(code - 128),
        Some(126 | 127) if !called => format!(
            "{host} cannot start {program} (see above); put this program there, at the same path"
        ),
        Some(code) if !called => format!(
            "`{rsh} {host}` ended with status {code} (see above) before the process it should start called back; does `{rsh} {host} true` work?"
        ),
        Some(255) => {
            format!(
                "it was killed, or the connection to {host} was lost: `{rsh}` ended with status 255"
            )
        }
        _ => describe(status),
    }
}

fn killed(signal: i32) -> String {
    let name = match signal {
        2 => " (SIGINT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS: memory ran out)",
        9 => " (SIGKILL: by hand, or out of memory)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("it was killed by signal {signal}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn remote(code: i32, called: bool) -> String {
        let (host, rsh, program) = ("node1", "ssh -x", "bin/tensorwire");
        describe_remote(exited(code), Remote { host, rsh, program, called })
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_told_from_a_process_that_died_there() {
        assert!(remote(255, false).contains("does `ssh -x node1 true` work?"));
        assert!(remote(255, true).contains("the connection to node1 was lost"));
        assert!(remote(127, false).contains("node1 cannot start bin/tensorwire"));
        assert_eq!(remote(3, true), "it exited with status 3");
    }

    #[test]
    fn a_signal_is_the_same_wherever_it_struck() {
        let here = describe(ExitStatus::from_raw(9));
        assert!(here.starts_with("it was killed by signal 9 (SIGKILL"), "{here}");
        assert_eq!(remote(137, true), here);
        assert_eq!(describe(exited(0)), "it ended before its part was done");
    }
}
