//! Runs a command on another machine as ssh would: input, both outputs and the exit status pass, and
//! the command's input closes with the caller's or when the caller is gone. No secret and no cipher:
//! for machines that nobody else reaches. Knows nothing of what it runs.
//!
//! Both ends send frames: a byte that says what it is, four of length (big-endian), the bytes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

pub const PORT: u16 = 2222;

/// As ssh says that it is not the command which failed.
pub const STATUS_LOST: i32 = 255;

const FRAME_BYTES_MAX: usize = 64 << 10;
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// For the first frame, which comes at once.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Between the end of a command and that of its output, which its own children may hold open.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Between the loss of the caller and SIGKILL, for a command that ends when its input does.
pub const ORPHAN_MAX: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Command = 1,
    Input = 2,
    InputEnd = 3,
    Output = 4,
    Error = 5,
    Exit = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::{Command, Error, Exit, Input, InputEnd, Output};
        [Command, Input, InputEnd, Output, Error, Exit].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Serves callers one thread each, for as long as the listener works.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        std::thread::spawn(move || {
            // the caller sees that the connection ended; there is nobody else to tell
            let _ = serve_one(stream);
        });
    }
}

/// Runs `command` by the shell of `host`. Its exit status, or 128 and the signal that ended it.
pub fn call(
    address: impl ToSocketAddrs,
    command: &str,
    mut input: impl Read + Send + 'static,
    output: &mut dyn Write,
    error: &mut dyn Write,
) -> io::Result<i32> {
    let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    stream.set_nodelay(true)?;
    write_frame(&mut stream, Kind::Command, command.as_bytes())?;
    let mut writer = stream.try_clone()?;
    // not joined: reading the input may block for longer than the command runs
    std::thread::spawn(move || {
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        while let Ok(read @ 1..) = input.read(&mut bytes) {
            if write_frame(&mut writer, Kind::Input, &bytes[..read]).is_err() {
                return;
            }
        }
        // an error here is seen by whoever reads from the same connection
        let _ = write_frame(&mut writer, Kind::InputEnd, &[]);
    });
    loop {
        let (kind, bytes) = read_frame(&mut stream)?;
        let target: &mut dyn Write = match kind {
            Kind::Output => &mut *output,
            Kind::Error => &mut *error,
            Kind::Exit => {
                let status = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
                return Ok(i32::from_be_bytes(status));
            }
            Kind::Command | Kind::Input | Kind::InputEnd => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        target.write_all(&bytes)?;
        target.flush()?;
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(COMMAND_MAX))?;
    let (kind, command) = read_frame(&mut stream)?;
    if kind != Kind::Command {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.set_read_timeout(None)?;
    let writer = Arc::new(Mutex::new(stream.try_clone()?));
    // a group of its own, so that it can be ended with all that it started
    let mut child = Command::new("/bin/bash")
        .arg("-c")
        .arg(String::from_utf8_lossy(&command).as_ref())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let lost = Arc::new(AtomicBool::new(false));
    if let Some(input) = child.stdin.take() {
        let (stream, lost) = (stream.try_clone()?, Arc::clone(&lost));
        std::thread::spawn(move || feed(stream, input, &lost));
    }
    let output = child.stdout.take().map(|pipe| pump(pipe, Kind::Output, &writer, &lost));
    let error = child.stderr.take().map(|pipe| pump(pipe, Kind::Error, &writer, &lost));
    let status = wait(&mut child, &lost)?;
    let deadline = Instant::now() + DRAIN_MAX;
    let ended = |pump: &Option<JoinHandle<()>>| pump.as_ref().is_none_or(JoinHandle::is_finished);
    while !(ended(&output) && ended(&error)) && Instant::now() < deadline {
        std::thread::sleep(TICK);
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    write_frame(&mut writer, Kind::Exit, &code.to_be_bytes())?;
    stream.shutdown(std::net::Shutdown::Both)
}

/// Waits for the command, whose group is killed if it outlives its caller for too long.
fn wait(child: &mut Child, lost: &AtomicBool) -> io::Result<ExitStatus> {
    let mut lost_since = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if lost.load(Ordering::Relaxed) {
            let since = *lost_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= ORPHAN_MAX {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    // fails only if all of it has ended
                    let _ = kill_process_group(group, Signal::KILL);
                }
                return child.wait();
            }
        }
        std::thread::sleep(TICK);
    }
}

/// The caller's input to the command, until it ends or the caller is gone; then the pipe closes.
fn feed(mut stream: TcpStream, input: impl Write, lost: &AtomicBool) {
    let mut input = Some(input);
    loop {
        match read_frame(&mut stream) {
            Ok((Kind::Input, bytes)) => {
                // a command that does not want its input says so by closing it
                if input.as_mut().is_some_and(|pipe| pipe.write_all(&bytes).is_err()) {
                    input = None;
                }
            }
            // the connection is read further, to learn when the caller is gone
            Ok((Kind::InputEnd, _)) => input = None,
            Ok(_) | Err(_) => {
                lost.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// What a command says to its caller, until it says no more. Without a caller the pipe closes, so
/// that the command learns of it.
fn pump(
    mut pipe: impl Read + Send + 'static,
    kind: Kind,
    writer: &Arc<Mutex<TcpStream>>,
    lost: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (writer, lost) = (Arc::clone(writer), Arc::clone(lost));
    std::thread::spawn(move || {
        let mut bytes = vec![0; FRAME_BYTES_MAX];
        while let Ok(read @ 1..) = pipe.read(&mut bytes) {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            if write_frame(&mut writer, kind, &bytes[..read]).is_err() {
                lost.store(true, Ordering::Relaxed);
                return;
            }
        }
    })
}

fn write_frame(stream: &mut TcpStream, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // one packet where it is short
    let mut frame = vec![kind as u8];
    frame.extend(length.to_be_bytes());
    frame.extend(bytes);
    stream.write_all(&frame)
}

fn read_frame(stream: &mut TcpStream) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let kind = Kind::from_byte(kind).ok_or(io::ErrorKind::InvalidData)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}
