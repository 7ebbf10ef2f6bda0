//! Rings between fabrics of one process, and what tests say over them.

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Fabric, FabricConfig, RegionDescriptor};
use tensorwire_kvstore::wire::{
    Direct, Outgoing, RemotePlace, RingOptions, Rings, SendStatus, Wire,
};
use tensorwire_memory::{Arena, Buffer, Place};
use tensorwire_testkit::mesh::{Setup, soon};

/// The smallest rings.
pub(crate) const SMALL: RingOptions = RingOptions { ring_bytes: 64 << 10, direct_from: 16 << 10 };

/// A message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) from: Rank,
    pub(crate) meta: Vec<u8>,
    pub(crate) blocks: Vec<Vec<u8>>,
}

/// `n` wires, each with rings to all others. Fabrics are handed out as well, for their counts.
pub(crate) fn wires(setup: Setup, n: u32, options: RingOptions) -> (Vec<Rings>, Vec<Fabric>) {
    wires_with(setup, n, options, |_| {})
}

pub(crate) fn wires_with(
    setup: Setup,
    n: u32,
    options: RingOptions,
    change: impl Fn(&mut FabricConfig),
) -> (Vec<Rings>, Vec<Fabric>) {
    let fabrics = setup.mesh_with(n, change);
    let others = |me: u32| (0..n).filter(|rank| *rank != me).map(Rank).collect::<Vec<_>>();
    let ends = (0..n).zip(&fabrics).map(|(me, fabric)| (fabric.clone(), others(me))).collect();
    (open(ends, options), fabrics)
}

/// Opens several ends at the same time.
pub(crate) fn open(ends: Vec<(Fabric, Vec<Rank>)>, options: RingOptions) -> Vec<Rings> {
    std::thread::scope(|scope| {
        let open = |(fabric, peers): (Fabric, Vec<Rank>)| {
            scope.spawn(move || Rings::open(fabric, &peers, options, soon()).unwrap())
        };
        let opening: Vec<_> = ends.into_iter().map(open).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What has come now.
pub(crate) fn receive(wire: &mut Rings) -> Vec<Came> {
    let mut came = Vec::new();
    let count = wire
        .receive(&mut |message| {
            let blocks = message.blocks.iter().map(|block| block.to_vec()).collect();
            came.push(Came { from: message.from, meta: message.meta.to_vec(), blocks });
        })
        .unwrap();
    assert_eq!(count, came.len());
    came
}

/// Waits until `count` messages have come.
pub(crate) fn await_messages(wire: &mut Rings, count: usize) -> Vec<Came> {
    let mut came = Vec::new();
    wait_until(wire, "messages", |wire| {
        came.extend(receive(wire));
        came.len() >= count
    });
    assert_eq!(came.len(), count);
    came
}

/// Waits on the wire until `done`.
pub(crate) fn wait_until(wire: &mut Rings, what: &str, mut done: impl FnMut(&mut Rings) -> bool) {
    let deadline = soon();
    loop {
        wire.observe();
        if done(wire) {
            return;
        }
        assert!(!deadline.passed(), "waited in vain for {what}");
        wire.wait(deadline);
    }
}

/// A message of metadata and blocks.
pub(crate) fn send(wire: &mut Rings, to: u32, meta: &[u8], blocks: &[&[u8]]) -> SendStatus {
    wire.send(Rank(to), &Outgoing { meta, blocks, direct: &[] }).unwrap()
}

/// Memory of a wire as buffers of `bytes` bytes each, and its descriptor.
pub(crate) fn buffers(
    wire: &mut Rings,
    count: usize,
    bytes: usize,
) -> (Vec<Buffer>, RegionDescriptor) {
    let (slab, descriptor) = wire.alloc(count * bytes).unwrap();
    let places = (0..count).map(|i| Place { offset: i * bytes, bytes });
    let arena = Arena::new(&slab, &places.collect::<Vec<_>>()).unwrap();
    (arena.into_buffers(), descriptor)
}

/// A buffer in a region, as its owner tells of it.
pub(crate) fn remote_place(descriptor: RegionDescriptor, buffer: &Buffer) -> RemotePlace {
    let Place { offset, bytes } = buffer.place();
    let region = (descriptor.key, descriptor.bytes);
    RemotePlace { region, offset: offset as u64, bytes: bytes as u64, on_device: false }
}

/// All of a buffer.
pub(crate) fn whole(from: &Buffer, to: RemotePlace, token: u64) -> Direct<'_> {
    Direct { from, to, offset: 0, bytes: from.bytes(), token }
}

/// Waits until all of these values may be written again.
pub(crate) fn await_tokens(wire: &mut Rings, expected: &[u64]) {
    let mut tokens = Vec::new();
    wait_until(wire, "values", |wire| {
        wire.finished(&mut tokens).unwrap();
        tokens.len() >= expected.len()
    });
    tokens.sort_unstable();
    assert_eq!(tokens, expected);
}

/// A deadline for a wait in a loop that looks at other things too.
pub(crate) fn briefly() -> Deadline {
    Deadline::after(std::time::Duration::from_micros(200))
}

/// A message each way.
pub(crate) fn exchange(one: &mut Rings, rank: u32, other: &mut Rings, other_rank: u32) {
    assert_eq!(send(one, other_rank, b"hello", &[]), SendStatus::Started);
    one.flush().unwrap();
    assert_eq!(await_messages(other, 1)[0].from, Rank(rank));
    assert_eq!(send(other, rank, b"hello", &[]), SendStatus::Started);
    other.flush().unwrap();
    assert_eq!(await_messages(one, 1)[0].from, Rank(other_rank));
}
