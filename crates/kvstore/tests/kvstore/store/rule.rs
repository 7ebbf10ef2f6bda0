//! What the servers of tests do with pushes, with a journal of it; snapshots on a shelf; tensors of small numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tensorwire_kvstore::{
    Keep, Key, KvWorker, PushedRows, Reduce, ShardKey, Snapshot, StateTensor, Updater, ValueSpec,
};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

pub(crate) const TYPES: [DType; 6] =
    [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::BF16];

/// The elements of a tensor of small whole numbers, whatever its type.
pub(crate) fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    macro_rules! each {
        ($number:ty, $as:expr) => {
            bytes
                .as_chunks::<{ size_of::<$number>() }>()
                .0
                .iter()
                .map(|chunk| $as(<$number>::from_le_bytes(*chunk)))
                .collect()
        };
    }
    match dtype {
        DType::F32 => each!(f32, f64::from),
        DType::F64 => each!(f64, f64::from),
        DType::I32 => each!(i32, f64::from),
        DType::I64 => each!(i64, |value| value as f64),
        DType::U8 => each!(u8, f64::from),
        // a bf16 is the upper half of an f32
        DType::BF16 => each!(u16, |value| f64::from(f32::from_bits(u32::from(value) << 16))),
    }
}

/// The other way.
pub(crate) fn bytes(dtype: DType, numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    numbers
        .flat_map(|value| match dtype {
            DType::F32 => (value as f32).to_le_bytes().to_vec(),
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::I32 => (value as i32).to_le_bytes().to_vec(),
            DType::I64 => (value as i64).to_le_bytes().to_vec(),
            DType::U8 => (value as u8).to_le_bytes().to_vec(),
            DType::BF16 => (((value as f32).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        })
        .collect()
}

pub(crate) fn fill(buffer: &Buffer, by: impl Fn(usize) -> f32) {
    let elements = buffer.bytes() / 4;
    let values = bytes(DType::F32, (0..elements).map(|at| f64::from(by(at))));
    buffer.write().unwrap().copy_from_slice(&values);
}

pub(crate) fn f32s(buffer: &Buffer) -> Vec<f32> {
    numbers(DType::F32, &buffer.read().unwrap()).into_iter().map(|value| value as f32).collect()
}

/// A tensor in memory that servers reach.
pub(crate) fn tensor(store: &mut KvWorker, spec: &ValueSpec, by: impl Fn(usize) -> f32) -> Buffer {
    let buffer = store.alloc(spec).unwrap();
    fill(&buffer, by);
    buffer
}

/// What servers did: keys of updates and names of optimizers, in order.
pub(crate) type Journal = Arc<Mutex<Vec<String>>>;

/// A value becomes the sum of a round. After `set(b"add")` it is added to, and how often is the state.
/// Rows are always added.
#[derive(Default)]
pub(crate) struct Sum {
    shards: HashMap<ShardKey, (Key, ValueSpec)>,
    adds: bool,
    updates: HashMap<ShardKey, u64>,
    journal: Journal,
}

impl Sum {
    pub(crate) fn new(journal: Journal) -> Sum {
        Sum { journal, ..Sum::default() }
    }

    fn note(&mut self, shard: ShardKey, what: &str) {
        let key = self.shards[&shard].0;
        self.journal.lock().unwrap().push(format!("{what} {}", key.0));
        *self.updates.entry(shard).or_default() += 1;
    }
}

impl Reduce for Sum {
    fn add(&mut self, dtype: DType, into: &mut [u8], from: &[u8]) -> Result<(), String> {
        let all = numbers(dtype, into).into_iter().zip(numbers(dtype, from));
        let sums = bytes(dtype, all.map(|(into, from)| into + from));
        into.copy_from_slice(&sums);
        Ok(())
    }
}

impl Updater for Sum {
    /// Numbers of f32 are those of f64 whose halves are left out.
    fn wide(&self, shard: ShardKey, weights: &[u8]) -> Option<Vec<u8>> {
        let is_narrow = self.shards[&shard].1.dtype == DType::F32;
        let wide = numbers(DType::F32, weights).into_iter().map(|number| number + 0.5);
        is_narrow.then(|| bytes(DType::F64, wide))
    }

    fn create(&mut self, shard: ShardKey, key: Key, spec: &ValueSpec) -> Result<(), String> {
        self.shards.insert(shard, (key, *spec));
        Ok(())
    }

    fn apply(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String> {
        self.note(shard, "fold");
        let dtype = self.shards[&shard].1.dtype;
        if pushes.iter().any(|push| numbers(dtype, push).first().is_some_and(|n| n.is_nan())) {
            return Err("this rule adds numbers only".to_string());
        }
        if !self.adds {
            weights.fill(0);
        }
        pushes.iter().try_for_each(|push| self.add(dtype, weights, push))
    }

    /// Every element of a push is the one number that came.
    fn apply_encoded(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[&[u8]],
    ) -> Result<(), String> {
        if pushes.iter().any(|push| push.len() != size_of::<f32>()) {
            return Err("one number is what values are made of".to_string());
        }
        let whole: Vec<Vec<u8>> =
            pushes.iter().map(|push| push.repeat(weights.len() / push.len())).collect();
        let whole: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
        self.apply(shard, weights, &whole)
    }

    fn apply_rows(
        &mut self,
        shard: ShardKey,
        weights: &mut [u8],
        pushes: &[PushedRows<'_>],
    ) -> Result<(), String> {
        self.note(shard, "rows");
        let spec = self.shards[&shard].1;
        let row = spec.row_bytes();
        for PushedRows { indices, rows } in pushes {
            for (index, from) in indices.as_chunks::<4>().0.iter().zip(rows.chunks_exact(row)) {
                let at = i32::from_le_bytes(*index) as usize * row;
                self.add(spec.dtype, &mut weights[at..at + row], from)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, bytes: &[u8]) -> Result<(), String> {
        let name = String::from_utf8_lossy(bytes).to_string();
        self.adds = match name.as_str() {
            "add" => true,
            "replace" => false,
            other => return Err(format!("'{other}' is no rule here")),
        };
        self.updates.clear();
        self.journal.lock().unwrap().push(format!("set {name}"));
        Ok(())
    }

    fn state(&self, shard: ShardKey) -> Result<Vec<StateTensor>, String> {
        let updates = self.updates.get(&shard).copied().unwrap_or_default();
        let bytes = updates.to_le_bytes().to_vec();
        let (name, dims) = ("updates".to_string(), vec![]);
        Ok(vec![StateTensor { name, dtype: DType::I64, dims, bytes }])
    }

    fn restore(&mut self, shard: ShardKey, state: Vec<StateTensor>) -> Result<(), String> {
        let updates = numbers(DType::I64, &state[0].bytes)[0] as u64;
        self.updates.insert(shard, updates);
        let key = self.shards[&shard].0;
        self.journal.lock().unwrap().push(format!("restore {} after {updates}", key.0));
        Ok(())
    }
}

/// Snapshots in memory, by server and path.
#[derive(Clone, Default)]
pub(crate) struct Shelf {
    kept: Arc<Mutex<HashMap<(usize, String), Snapshot>>>,
    /// How many more it keeps before it is full; any number if there is none.
    room: Option<Arc<AtomicUsize>>,
}

impl Shelf {
    pub(crate) fn with_room(snapshots: usize) -> Shelf {
        Shelf { room: Some(Arc::new(AtomicUsize::new(snapshots))), ..Shelf::default() }
    }

    pub(crate) fn kept(&self, server: usize, path: &str) -> Option<Snapshot> {
        self.kept.lock().unwrap().get(&(server, path.to_string())).cloned()
    }
}

impl Keep for Shelf {
    fn save(&mut self, server: usize, to: &str, snapshot: Snapshot) -> Result<(), String> {
        let take = |room: usize| room.checked_sub(1);
        let taken = self.room.as_ref().map(|room| room.fetch_update(SeqCst, SeqCst, take));
        if let Some(Err(_)) = taken {
            return Err("No space left on device".to_string());
        }
        self.kept.lock().unwrap().insert((server, to.to_string()), snapshot);
        Ok(())
    }

    fn load(&mut self, server: usize, from: &str) -> Result<Option<Snapshot>, String> {
        Ok(self.kept(server, from))
    }
}
