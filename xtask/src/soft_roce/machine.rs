//! One or two QEMU machines from boot to end: their command line, their network, what they say. They
//! end when this is dropped. Knows no case and no command.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::serial::{Decoder, Event};
use super::tools::{self, Guarded, Stop, TICK, file_error};
use super::{Job, Kernel, SoftRoceError};

/// Lines that may wait to be read; a guest that says more waits itself.
const LINES_MAX: usize = 1024;
/// A line longer than this is two.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// From the start of the first QEMU to when it waits for the second.
const LISTEN_MAX: Duration = Duration::from_secs(30);
/// Where node 0 waits for node 1, in the folder of the job. No port, which somebody else may have.
const WIRE: &str = "wire";

/// How large, and how many.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// 1 or 2.
    pub machines: usize,
    pub memory_mib: usize,
    pub cpus: usize,
}

/// Machines that run.
#[derive(Debug)]
pub struct Machines {
    // dropped before the folder that they use
    nodes: Vec<Guarded>,
    said: Receiver<(usize, Said)>,
    /// QEMU's own complaints, a node each.
    complaints: Vec<String>,
    stop: Stop,
    job: tempfile::TempDir,
}

#[derive(Debug)]
enum Said {
    Event(Event),
    Complaint(String),
    /// QEMU has ended.
    End,
}

impl Machines {
    /// Starts QEMU for each machine; what they say comes from [`Machines::next`]. Call it from a
    /// thread that lasts: if that one ends, so do the machines, even if nobody drops them.
    pub fn boot(
        kernel: &Kernel,
        job: &Job<'_>,
        hardware: &Hardware,
        stop: &Stop,
    ) -> Result<Machines, SoftRoceError> {
        let place = tempfile::Builder::new()
            .prefix("soft-roce-")
            .tempdir()
            .map_err(file_error("make a folder in", &std::env::temp_dir()))?;
        job.write_to(place.path())?;
        let (says, said) = sync_channel(LINES_MAX);
        let mut machines = Machines {
            nodes: Vec::new(),
            said,
            complaints: vec![String::new(); hardware.machines],
            stop: stop.clone(),
            job: place,
        };
        for node in 0..hardware.machines {
            if node > 0 {
                machines.wait_for_wire()?;
            }
            let child = machines.start(node, kernel, hardware, &says)?;
            machines.nodes.push(child);
        }
        Ok(machines)
    }

    /// What a machine says next, and which one it is.
    pub fn next(&mut self, deadline: Instant) -> Result<(usize, Event), SoftRoceError> {
        loop {
            self.stop.check()?;
            match self.said.recv_timeout(TICK) {
                Ok((node, Said::Event(Event::Broken))) => {
                    return Err(self.error(node, "could not be set up"));
                }
                Ok((node, Said::Event(event))) => return Ok((node, event)),
                Ok((node, Said::Complaint(line))) => self.complaints[node] += &format!("{line}\n"),
                Ok((node, Said::End)) => {
                    return Err(self.error(node, "stopped"));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(_) => return Err(self.error(0, "said nothing in time")),
            }
        }
    }

    fn start(
        &self,
        node: usize,
        kernel: &Kernel,
        hardware: &Hardware,
        says: &SyncSender<(usize, Said)>,
    ) -> Result<Guarded, SoftRoceError> {
        // QEMU then ends with this process, even if that one is killed
        let mut command = tools::command("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(arguments(node, kernel, hardware, self.job.path()));
        // the socket's name may be short then, as it must be
        command.current_dir(self.job.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(file_error("start", Path::new("setpriv")))?;
        let mut child = Guarded(child);
        if let Some(stdout) = child.0.stdout.take() {
            let says = says.clone();
            std::thread::spawn(move || listen(node, stdout, &says));
        }
        if let Some(stderr) = child.0.stderr.take() {
            let says = says.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    if says.send((node, Said::Complaint(line))).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(child)
    }

    fn wait_for_wire(&self) -> Result<(), SoftRoceError> {
        let deadline = Instant::now() + LISTEN_MAX;
        while !self.job.path().join(WIRE).exists() {
            self.stop.check()?;
            if Instant::now() >= deadline {
                return Err(self.error(0, "did not open its network in time"));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn error(&self, node: usize, what: &str) -> SoftRoceError {
        let mut console = self.complaints[node].clone();
        // what comes after the event that led here, such as the reason why QEMU ended
        while let Ok((from, said)) = self.said.recv_timeout(TICK) {
            match said {
                Said::Complaint(line) | Said::Event(Event::Line(line)) if from == node => {
                    console += &format!("{line}\n");
                }
                _ => {}
            }
        }
        let file = self.job.path().join(console_file(node));
        let kernel = std::fs::read(file).unwrap_or_default();
        let kernel = tools::last_lines(&String::from_utf8_lossy(&kernel));
        let console = format!("{console}{kernel}");
        SoftRoceError::Machine { node, what: what.to_owned(), console }
    }
}

fn console_file(node: usize) -> String {
    format!("console.{node}")
}

/// Passes on a guest's events until it says no more.
fn listen(node: usize, stdout: impl Read, says: &SyncSender<(usize, Said)>) {
    let mut stdout = BufReader::new(stdout);
    let mut decoder = Decoder::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = stdout.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if !matches!(read, Ok(bytes) if bytes > 0) {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        for event in decoder.push(text) {
            if says.send((node, Said::Event(event))).is_err() {
                return;
            }
        }
    }
    // nobody may listen any more, which is fine
    let _ = says.send((node, Said::End));
}

/// QEMU's arguments. The kernel's messages go to a file, what programs say to QEMU's output.
fn arguments(node: usize, kernel: &Kernel, hardware: &Hardware, job: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    // not with KVM: in a machine that is itself virtual it may be there and not work, without a word
    add(&["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]);
    add(&["-m", &hardware.memory_mib.to_string(), "-smp", &hardware.cpus.to_string()]);
    add(&["-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"]);
    add(&["-serial", &format!("file:{}", console_file(node))]);
    // a file, not stdio: that one counts as closed when its input ends
    add(&["-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/proc/self/fd/1"]);
    add(&["-device", "virtserialport,chardev=out,name=out"]);
    let boot = format!("console=ttyS0 quiet panic=1 net.ifnames=0 NODE={node}");
    add(&["-append", &boot]);
    let wire = match (hardware.machines, node) {
        // a network with nobody else in it
        (1, _) => "hubport,id=net,hubid=0".to_owned(),
        (_, 0) => format!("stream,id=net,server=on,addr.type=unix,addr.path={WIRE}"),
        _ => format!("stream,id=net,server=off,addr.type=unix,addr.path={WIRE}"),
    };
    let mac = format!("52:54:00:00:00:{:02x}", node + 1);
    add(&["-netdev", &wire]);
    // room for an InfiniBand MTU of 4096 and its headers
    add(&["-device", &format!("virtio-net-pci,netdev=net,mac={mac},host_mtu=4200")]);
    for (tag, path) in [("host", Path::new("/")), ("job", job)] {
        // to QEMU, two commas are one
        let path = path.display().to_string().replace(',', ",,");
        let options = "security_model=none,readonly=on,multidevs=remap";
        add(&["-virtfs", &format!("local,path={path},mount_tag={tag},{options}")]);
    }
    arguments.extend(["-kernel".into(), kernel.image.clone().into()]);
    arguments.extend(["-initrd".into(), kernel.initial.clone().into()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machines: usize, node: usize) -> String {
        let kernel = Kernel { image: "k".into(), initial: "i".into() };
        let hardware = Hardware { machines, memory_mib: 512, cpus: 2 };
        let arguments = arguments(node, &kernel, &hardware, Path::new("/a,b"));
        let words = arguments.iter().map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_machine_reaches_nobody() {
        assert!(line(1, 0).contains("-netdev hubport,"), "{}", line(1, 0));
        assert!(!line(1, 0).contains("addr.type"));
    }

    #[test]
    fn of_two_machines_one_listens_and_one_connects() {
        assert!(line(2, 0).contains("server=on,addr.type=unix"), "{}", line(2, 0));
        assert!(line(2, 1).contains("server=off,addr.type=unix"), "{}", line(2, 1));
        assert!(line(2, 1).contains("NODE=1"));
        assert!(line(2, 1).contains("mac=52:54:00:00:00:02"));
    }

    #[test]
    fn the_hosts_files_are_never_written() {
        let line = line(1, 0);
        assert_eq!(line.matches("-virtfs").count(), line.matches("readonly=on").count());
        assert!(line.contains("path=/a,,b,"), "{line}");
    }
}
