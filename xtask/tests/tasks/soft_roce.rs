//! What can be known of the machines without starting one: what boots, what they say, what the cases
//! are, and remote execution, over loopback.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use xtask::soft_roce::cases::{CASES, PRELUDE};
use xtask::soft_roce::perftest::{judge_ratio, own_rates, rows};
use xtask::soft_roce::{Decoder, Event, insmod_order, quoted, remote};

/// Of perftest 4.5, on rxe in a machine.
const WRITE_BW: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
 Number of qps   : 1\t\tTransport type : IB
 TX depth        : 50
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0xed69da RKey 0x00028a VAddr 0x007f4ee0ef6000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    50               37.42              30.17  \t\t   0.000030
---------------------------------------------------------------------------------------
";

fn mib(count: f64) -> f64 {
    count * 1_048_576.0
}

#[test]
fn the_table_of_ib_write_bw() {
    let found = rows(WRITE_BW);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].message_bytes, found[0].iterations), (1 << 20, 50));
    assert_eq!(found[0].bytes_per_second, mib(30.17));
    // another unit, and a table that is cut off
    assert_eq!(rows(&WRITE_BW.replace("BW average[MB/sec]", "BW average[Gb/sec]")), []);
    assert_eq!(rows(WRITE_BW.split(" 1048576").next().unwrap()), []);
    assert_eq!(rows(&WRITE_BW.replace(" 1048576", "fault: wire-cut 2\n 1048576")).len(), 1);
    assert_eq!(rows("1048576 50 37.42 30.17 0.000030\n"), [], "a row without a head");
}

#[test]
fn our_throughput_against_that_of_ib_write_bw() {
    let own = |mib_per_second: f64| {
        format!("{{\"bytes_per_second\": {}, \"more\": 1}}\n", mib(mib_per_second))
    };
    let turns = |figures: [f64; 3]| figures.map(|figure| own(figure) + WRITE_BW).concat();
    assert_eq!(own_rates(&turns([1.0, 2.0, 3.0])), [1.0, 2.0, 3.0].map(mib));
    // the median counts: neither the slowest nor the fastest
    let says = judge_ratio(&turns([1.0, 27.5, 99.0])).unwrap();
    assert_eq!(says, "ours 27.5 MiB/s, ib_write_bw 30.2 MiB/s, ratio 0.91");
    let says = judge_ratio(&turns([1.0, 27.0, 99.0])).unwrap();
    assert!(says.ends_with("ratio 0.89; 0.9 is wanted"), "{says}");
    assert!(judge_ratio(&turns([0.0; 3])).is_err(), "nothing was moved");
    assert!(judge_ratio(&turns([30.0; 3]).replace("bytes_per_second", "bytes")).is_err());
    assert!(judge_ratio(&(own(99.0) + WRITE_BW)).is_err(), "one turn is not three");
    assert!(judge_ratio(&turns([30.0; 3]).replace("30.17", "nan")).is_err());
}

#[test]
fn modules_come_after_what_they_need_and_once() {
    let shown = "\
insmod unpacked/lib/modules/6.1/kernel/crypto/crc32_generic.ko \n\
builtin crc32c\n\
insmod unpacked/lib/modules/6.1/kernel/drivers/virtio_ring.ko \n\
insmod unpacked/lib/modules/6.1/kernel/drivers/virtio.ko \n\
insmod unpacked/lib/modules/6.1/kernel/drivers/virtio_ring.ko \n\
insmod unpacked/lib/modules/6.1/kernel/net/rdma_rxe.ko debug=1\n";
    let names = ["crypto/crc32_generic", "drivers/virtio_ring", "drivers/virtio", "net/rdma_rxe"];
    let files = names.map(|n| PathBuf::from(format!("unpacked/lib/modules/6.1/kernel/{n}.ko")));
    assert_eq!(insmod_order(shown), files);
}

#[test]
fn a_shell_takes_quoted_words_for_the_same_words() {
    let words = [
        "printf",
        "%s\\n",
        "",
        "two words",
        "it's",
        "$HOME",
        "`id`",
        "a\nb",
        "*",
        "~",
        "-x",
        "a=b",
        "#",
        "\"",
        "\\",
        "ä",
    ];
    let words: Vec<String> = words.map(str::to_owned).into();
    let output = Command::new("bash").arg("-c").arg(quoted(&words)).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, words[2..].iter().map(|word| format!("{word}\n")).collect::<String>());
}

fn decoded(text: &str) -> Vec<Event> {
    let mut decoder = Decoder::default();
    text.lines().flat_map(|line| decoder.push(line.as_bytes())).collect()
}

#[test]
fn markers_are_told_from_what_programs_say() {
    let line = |text: &str| Event::Line(text.to_owned());
    let text = "early\n\n@@soft-roce ready\n\n@@soft-roce start 12\nno line break\n\
                @@soft-roce end 12 124\n\n\n@@soft-roce done\n";
    let ended = Event::Ended { step: 12, status: 124 };
    let started = Event::Started { step: 12 };
    let broken = line("no line break");
    let expected = [line("early"), Event::Ready, started, broken, ended, line(""), Event::Done];
    assert_eq!(decoded(text), expected);
    // programs keep their own empty lines, and cannot end a step by accident
    assert_eq!(decoded("a\n\n\nb\n"), [line("a"), line(""), line(""), line("b")]);
    for near in ["@@soft-roce", "@@soft-roce end 1", "@@soft-roce end 1 x", " @@soft-roce done"] {
        assert_eq!(decoded(near), [line(near)]);
    }
    let mut decoder = Decoder::default();
    assert_eq!(decoder.push(b"\xff\r"), [line("\u{fffd}")]);
}

#[test]
fn every_case_can_be_told_apart_and_read_by_a_shell() {
    for (at, case) in CASES.iter().enumerate() {
        let name = case.name;
        assert!(CASES[..at].iter().all(|earlier| earlier.name != name), "{name} stands twice");
        let prefix = ["one::", "two::"].get(case.machines - 1).expect("one or two machines");
        assert!(name.starts_with(prefix), "{name} runs on {} machines", case.machines);
        // what no ordinary run has may take longer
        let most_s = if name.contains("::long_") { 3600 } else { 1800 };
        assert!((1..=most_s).contains(&case.timeout_s), "{name}");
        let script = format!("{PRELUDE}{}", case.script);
        let output = Command::new("bash").args(["-n", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(CASES.iter().any(|case| case.machines == 1));
    assert!(CASES.iter().any(|case| case.machines == 2));
}

#[test]
fn the_scripts_of_a_machine_are_scripts() {
    let folder = xtask::root().join("xtask/src/soft_roce/guest");
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let output = Command::new("bash").arg("-n").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {said}", file.display());
    }
}

fn server() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || remote::serve(&listener));
    address
}

/// Output, error and status of a command that gets this input.
fn call(command: &str, input: impl Read + Send + 'static) -> (Vec<u8>, String, i32) {
    let (mut output, mut error) = (Vec::new(), Vec::new());
    let status = remote::call(server(), command, input, &mut output, &mut error).expect("a status");
    (output, String::from_utf8(error).expect("text"), status)
}

#[test]
fn a_remote_command_has_input_outputs_and_status() {
    let (output, error, status) = call("cat; echo problem >&2; exit 7", &b"one line\n"[..]);
    assert_eq!((output.as_slice(), error.as_str(), status), (&b"one line\n"[..], "problem\n", 7));
    // any bytes, and more of them than a frame or a pipe holds
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let (output, _, status) = call("cat", io::Cursor::new(bytes.clone()));
    assert!(output == bytes, "{} bytes of {}", output.len(), bytes.len());
    assert_eq!(status, 0);
    assert_eq!(call("kill -9 $$", io::empty()).2, 128 + 9);
    assert_eq!(call("no-such-program", io::empty()).2, 127);
}

#[test]
fn a_remote_command_need_not_read_its_input() {
    let (open, _kept) = UnixStream::pair().unwrap();
    let (output, _, status) = call("echo done", open);
    assert_eq!((output.as_slice(), status), (&b"done\n"[..], 0));
    let (_, _, status) = call("exec <&-; sleep 0.2", io::repeat(b'x').take(5_000_000));
    assert_eq!(status, 0);
}

#[test]
fn what_a_remote_command_leaves_behind_keeps_nobody_waiting() {
    let started = Instant::now();
    let (output, _, status) = call("sleep 60 & echo $!", io::empty());
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(status, 0);
    let id = String::from_utf8(output).unwrap();
    Command::new("kill").arg(id.trim()).status().unwrap();
}

/// Fails when it is first written to: a caller that dies.
struct Dead;

impl Write for Dead {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls, and is gone at the first output. The input stays open for as long as the result is kept.
fn call_and_die(command: &str) -> UnixStream {
    let (open, kept) = UnixStream::pair().expect("a pair");
    let closer = open.try_clone().expect("a handle");
    let called = remote::call(server(), command, open, &mut Dead, &mut io::sink());
    assert_eq!(called.expect_err("it died").kind(), io::ErrorKind::BrokenPipe);
    // the process would take the connection's last handle, the one that reads the input, with it
    closer.shutdown(std::net::Shutdown::Both).expect("open");
    kept
}

fn appears(file: &std::path::Path, limit: Duration) -> bool {
    let started = Instant::now();
    while !file.exists() && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    file.exists()
}

#[test]
fn the_input_of_a_remote_command_closes_with_its_caller() {
    let closes = || {
        let folder = tempfile::tempdir().unwrap();
        let closed = folder.path().join("closed");
        let _open = call_and_die(&format!("echo here; cat; touch {}", closed.display()));
        appears(&closed, remote::ORPHAN_MAX / 2)
    };
    // where others keep the cores busy it may take longer, but not each time
    assert!((0..3).any(|_| closes()));
}

#[test]
fn a_remote_command_that_ignores_the_loss_of_its_caller_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let outlived = folder.path().join("outlived");
    let pid = folder.path().join("pid");
    let seconds = remote::ORPHAN_MAX.as_secs() + 2;
    let (pid_file, file) = (pid.display(), outlived.display());
    let command = format!("echo $$ >{pid_file}; echo here; sleep {seconds}; touch {file}");
    let _open = call_and_die(&command);
    let id = std::fs::read_to_string(pid).unwrap();
    let process = PathBuf::from(format!("/proc/{}", id.trim()));
    let started = Instant::now();
    while process.exists() && started.elapsed() < remote::ORPHAN_MAX * 2 {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!process.exists());
    assert!(!outlived.exists());
}
