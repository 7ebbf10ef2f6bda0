//! NCCL: communicators of several members, what they reduce and broadcast, and how they end where one does not come. On a
//! machine with a GPU and NCCL, a communicator of one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_device::nccl::{
    Nccl, NcclCommunicator, NcclElement, NcclError, NcclId, NcclReduction,
};
use tensorwire_device::{CudaLibrary, LibrarySearch};
use tensorwire_memory::Buffer;
use tensorwire_testkit::skip::skip_part;

use crate::support::*;

/// NCCL beside the driver of this child; none where the machine has none, which is said.
fn library(machine: &Machine) -> Option<Arc<Nccl>> {
    let path = match machine.is_fake() {
        true => PathBuf::from(machine.driver.looked_for()),
        false => {
            let mut search = LibrarySearch::default();
            search.ask_python();
            match search.find(CudaLibrary::Nccl) {
                Some(found) => found.path,
                None => {
                    skip_part(&"this machine has no NCCL");
                    return None;
                }
            }
        }
    };
    Some(Nccl::open(&path).unwrap())
}

fn join(
    machine: &Machine,
    nccl: &Arc<Nccl>,
    id: &NcclId,
    rank: usize,
    size: usize,
) -> Result<NcclCommunicator, NcclError> {
    NcclCommunicator::join(nccl, &machine.device, id, (rank, size), soon())
}

/// Runs `body` in a thread for each member, with its communicator.
fn members(size: usize, body: impl Fn(&Machine, NcclCommunicator) + Sync) {
    let machine = Machine::open();
    let Some(nccl) = library(&machine) else { return };
    let id = nccl.make_id().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (machine, nccl, id, body) = (&machine, &nccl, &id, &body);
            scope.spawn(move || body(machine, join(machine, nccl, id, rank, size).unwrap()));
        }
    });
}

/// Where members meet. Pinned memory goes once the whole GPU is idle, so nobody copies while one waits there for what another
/// has not told yet.
struct Met {
    size: usize,
    came: AtomicUsize,
}

impl Met {
    fn new(size: usize) -> Met {
        Met { size, came: AtomicUsize::new(0) }
    }

    fn wait(&self) {
        let round = self.came.fetch_add(1, Ordering::AcqRel) / self.size;
        let deadline = soon();
        while self.came.load(Ordering::Acquire) < (round + 1) * self.size {
            assert!(!deadline.passed(), "a member does not come");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn vector<T: Copy>(machine: &Machine, values: &[T], bytes_of: impl Fn(T) -> Vec<u8>) -> Buffer {
    let bytes: Vec<u8> = values.iter().copied().flat_map(bytes_of).collect();
    let buffer = whole(&machine.memory(bytes.len() as u64).slab());
    upload(machine, &bytes, &buffer);
    buffer
}

fn f32s(machine: &Machine, from: &Buffer) -> Vec<f32> {
    let bytes = download(machine, from);
    bytes.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

#[test]
fn all_have_the_sum_and_the_mean_of_all() {
    on_fake(&[("FAKE_CUDA_FAULTS", "delay=300,garbage")], || {
        // more than a slot of the stand-in, and no whole number of them
        for count in [1, 7, 50_001] {
            let met = Met::new(3);
            members(3, |machine, mut member| {
                let rank = member.rank() as f32;
                let values: Vec<f32> = (0..count).map(|at| (at % 97) as f32 + rank).collect();
                let here = vector(machine, &values, |value: f32| value.to_ne_bytes().to_vec());
                let stream = machine.stream();
                met.wait();
                // the mean of what all have alike is that
                for reduction in [NcclReduction::Sum, NcclReduction::Mean] {
                    let how = (NcclElement::F32, reduction);
                    member.all_reduce(&stream, &writing(&here), how, soon()).unwrap();
                    member.synchronize(&stream, soon()).unwrap();
                    met.wait();
                    let wanted = (0..count).map(|at| 3.0 * (at % 97) as f32 + 3.0);
                    assert!(
                        f32s(machine, &here).into_iter().eq(wanted),
                        "{reduction:?} of {count}"
                    );
                    met.wait();
                }
            });
        }
    });
}

#[test]
fn narrow_and_wide_elements_are_reduced_and_anything_is_broadcast() {
    on_fake(&[], || {
        let met = Met::new(2);
        members(2, |machine, mut member| {
            let (rank, stream) = (member.rank(), machine.stream());
            let wide = vector(machine, &[0.1 + rank as f64], |v: f64| v.to_ne_bytes().to_vec());
            // 1.0 and 2^-8: half a unit in the last place, which goes to the even one
            let narrow = [0x3f80u16, 0x3b80][rank];
            let narrow = vector(machine, &[narrow], |v: u16| v.to_ne_bytes().to_vec());
            let bytes = vector(machine, &pattern(1000, rank), |byte: u8| vec![byte]);
            met.wait();
            let how = (NcclElement::F64, NcclReduction::Sum);
            member.all_reduce(&stream, &writing(&wide), how, soon()).unwrap();
            let how = (NcclElement::BF16, NcclReduction::Sum);
            member.all_reduce(&stream, &writing(&narrow), how, soon()).unwrap();
            member.broadcast(&stream, &writing(&bytes), (NcclElement::Byte, 1), soon()).unwrap();
            member.synchronize(&stream, soon()).unwrap();
            met.wait();
            assert_eq!(download(machine, &wide), (0.1f64 + 1.1).to_ne_bytes());
            assert_eq!(download(machine, &narrow), 0x3f80u16.to_ne_bytes());
            assert_eq!(download(machine, &bytes), pattern(1000, 1));
        });
    });
}

#[test]
fn members_are_processes() {
    on_fake(&[], || {
        let machine = Machine::open();
        let nccl = library(&machine).unwrap();
        let told = role().map(|hex| {
            let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
            NcclId(std::array::from_fn(byte))
        });
        let id = told.unwrap_or_else(|| nccl.make_id().unwrap());
        let rank = usize::from(told.is_some());
        let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let other = told.is_none().then(|| peer(&hex).spawn().unwrap());
        let mut member = join(&machine, &nccl, &id, rank, 2).unwrap();
        let here = vector(&machine, &[1.0 + rank as f32], |v: f32| v.to_ne_bytes().to_vec());
        let stream = machine.stream();
        let how = (NcclElement::F32, NcclReduction::Mean);
        member.all_reduce(&stream, &writing(&here), how, soon()).unwrap();
        member.synchronize(&stream, soon()).unwrap();
        assert_eq!(f32s(&machine, &here), [1.5]);
        drop(member);
        if let Some(mut other) = other {
            assert!(other.wait().unwrap().success());
        }
    });
}

#[test]
fn who_waits_for_one_that_does_not_come_ends_in_time() {
    on_fake(&[], || {
        let machine = Machine::open();
        let nccl = library(&machine).unwrap();
        let near = || Deadline::after(Duration::from_millis(100));
        let alone = nccl.make_id().unwrap();
        let ended = NcclCommunicator::join(&nccl, &machine.device, &alone, (0, 2), near());
        assert!(matches!(ended, Err(NcclError::TimedOut { .. })), "{ended:?}");
        let met = Met::new(2);
        members(2, |machine, mut member| {
            let stream = machine.stream();
            let here = vector(machine, &[1.0f32], |v: f32| v.to_ne_bytes().to_vec());
            met.wait();
            let how = (NcclElement::F32, NcclReduction::Sum);
            if member.rank() == 1 {
                // says nothing more, and goes when the other has had enough
                std::thread::sleep(Duration::from_millis(300));
                return;
            }
            let start = Instant::now();
            member.all_reduce(&stream, &writing(&here), how, soon()).unwrap();
            let error = member.synchronize(&stream, near()).unwrap_err();
            assert!(error.to_string().contains("late or gone"), "{error}");
            // the stream comes free of it
            stream.synchronize(soon()).unwrap();
            let again = member.all_reduce(&stream, &writing(&here), how, soon());
            assert_eq!(again, Err(NcclError::Aborted));
            assert!(start.elapsed() < Duration::from_secs(20));
        });
    });
}

/// What is told at once is told when NCCL gets to it, some time after the call.
#[test]
fn several_vectors_are_reduced_at_once() {
    on_fake(&[("FAKE_CUDA_FAULTS", "delay=300,garbage")], || {
        let met = Met::new(2);
        members(2, |machine, mut member| {
            let (stream, rank) = (machine.stream(), member.rank() as f32);
            let of = |values: &[f32]| vector(machine, values, |v: f32| v.to_ne_bytes().to_vec());
            let all = [of(&[rank; 3]), of(&[rank + 10.0])];
            met.wait();
            for _ in 0..2 {
                let loans = all.each_ref().map(|here| (writing(here), NcclElement::F32));
                member.start_all_reduces(&stream, &loans, NcclReduction::Mean).unwrap();
                while !member.has_told().unwrap() {}
            }
            member.synchronize(&stream, soon()).unwrap();
            // the mean of what all have alike is that
            assert_eq!(f32s(machine, &all[0]), [0.5; 3]);
            assert_eq!(f32s(machine, &all[1]), [10.5]);
        });
    });
}

#[test]
fn one_that_fails_ends_the_others() {
    on_fake(&[], || {
        let met = Met::new(2);
        members(2, |machine, mut member| {
            let stream = machine.stream();
            let here = vector(machine, &[1.0f32], |v: f32| v.to_ne_bytes().to_vec());
            // who leaves while another still joins ends its joining
            met.wait();
            if member.rank() == 1 {
                return member.abort();
            }
            let how = (NcclElement::F32, NcclReduction::Sum);
            let told = member.all_reduce(&stream, &writing(&here), how, soon());
            let error = told.and_then(|()| member.synchronize(&stream, soon())).unwrap_err();
            assert!(error.to_string().contains("another member failed or is gone"), "{error}");
        });
    });
}

#[test]
fn what_is_no_nccl_or_an_old_one_is_said() {
    on_fake(&[("FAKE_NCCL_VERSION", "21703")], || {
        let machine = Machine::open();
        let path = PathBuf::from(machine.driver.looked_for());
        let error = Nccl::open(&path).unwrap_err().to_string();
        assert!(error.contains("NCCL 2.17.3; 2.18.0 or newer is needed"), "{error}");
        let error = Nccl::open(&PathBuf::from("libnccl-none.so.2")).unwrap_err();
        assert!(error.is_absence() && error.to_string().contains("nvidia-nccl-cu12"), "{error}");
        let error = Nccl::open(&PathBuf::from("libc.so.6")).unwrap_err();
        assert!(matches!(error, NcclError::Function { .. }), "{error}");
    });
}

#[test]
fn a_member_alone_has_what_it_gives() {
    on_each(|machine| {
        let Some(nccl) = library(machine) else { return };
        let id = nccl.make_id().unwrap();
        let mut member = join(machine, &nccl, &id, 0, 1).unwrap();
        let here = vector(machine, &[1.5f32, -2.0], |v: f32| v.to_ne_bytes().to_vec());
        let stream = machine.stream();
        for reduction in [NcclReduction::Sum, NcclReduction::Mean] {
            let how = (NcclElement::F32, reduction);
            member.all_reduce(&stream, &writing(&here), how, soon()).unwrap();
        }
        member.broadcast(&stream, &writing(&here), (NcclElement::F32, 0), soon()).unwrap();
        member.synchronize(&stream, soon()).unwrap();
        assert_eq!(f32s(machine, &here), [1.5, -2.0]);
    });
}
