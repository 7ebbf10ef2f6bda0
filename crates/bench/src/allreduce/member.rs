//! A process of the measurement: it fills its vectors, meets the others, takes part, and compares every element.

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_collectives::{
    Algorithm, CollectiveCall, Collectives, Design, Group, GroupError, GroupOptions, GroupStats,
    Reducer, TensorGroup, TensorId, VectorId,
};
use tensorwire_kernels::{FoldKind, NoFold};
use tensorwire_launch::{Blame, JoinError, Member, MemberError, Peers, WireOptions};
use tensorwire_memory::{ALIGNMENT, Arena, ArenaError, Buffer, LoanError, Place};
use tensorwire_tensor::DType;
use tensorwire_train::{VectorReducer, link_cost};

use super::devices::DeviceThreads;
use super::payload::Payload;
use super::{ALLREDUCE, CollectiveKind, DeviceTensor, SLICES, Told, Way};

/// How long a wait looks and yields before it sleeps: as long as others need for short vectors where several share a
/// core.
const SPIN: Duration = Duration::from_micros(200);
/// Longest that an operation may take: others may be comparing a large vector meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// To each peer, as in training.
const QUEUE_PAIRS: usize = 4;
/// Who has what is broadcast, and gets what is reduced.
const ROOT: usize = 0;

/// Why a process of the measurement gave up.
#[derive(Debug, thiserror::Error)]
pub enum AllreduceError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("cutting memory of the group: {0}")]
    Arena(#[from] ArenaError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error("starting the threads of devices: {0}")]
    Devices(std::io::Error),
    #[error(transparent)]
    Fold(#[from] NoFold),
    #[error(
        "step {step}, vector {vector}: byte {at} of {bytes} after {collective} is not what was given: wrong data"
    )]
    Wrong { step: u64, vector: usize, at: usize, bytes: usize, collective: &'static str },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

/// What a member reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberReport {
    /// Of the measured operations.
    pub(super) times_ns: Vec<f64>,
    pub(super) algorithm: Algorithm,
    pub(super) vectors_verified: u64,
    /// In one operation.
    pub(super) bytes_sent: u64,
    /// The same of what went to members that share no memory with this one; and the number of its host.
    pub(super) bytes_over_wire: u64,
    pub(super) host: u32,
    pub(super) registered_bytes: u64,
}

/// One process of the measurement, from its assignment to its report.
///
/// # Errors
/// When anything fails or an element was wrong; the launcher has been told then.
pub fn allreduce_member(member: &Member) -> Result<(), AllreduceError> {
    let done = take_part(member);
    if let Err(error) = &done {
        let user_error = matches!(error, AllreduceError::Member(MemberError::Verbs(_)));
        let lost_peer = match error {
            AllreduceError::Group(error) => error.lost_peer(),
            _ => None,
        };
        member.fail(&error.to_string(), Blame::of(user_error, lost_peer));
    }
    done
}

fn take_part(member: &Member) -> Result<(), AllreduceError> {
    let told: Told = member.payload()?;
    if told.measures_link {
        let mut group = open_group(member, &told)?;
        let link = group.measure_link(soon())?;
        group.barrier(soon())?;
        group.close(soon())?;
        return Ok(member.finish(link)?);
    }
    let mut subject = Subject::open(member, &told)?;
    let report = measure(&mut subject, &told, member.host())?;
    subject.members().close(soon())?;
    member.finish(report)?;
    Ok(())
}

fn measure(subject: &mut Subject, told: &Told, host: u32) -> Result<MemberReport, AllreduceError> {
    let spec = &told.spec;
    let mut case = Case::new(subject, told)?;
    let (mut times_ns, mut vectors_verified) = (Vec::new(), 0);
    let (mut bytes_sent, mut bytes_over_wire) = (0, 0);
    // fits: counts of repetitions
    let warm_up = spec.warm_up as u64;
    for step in 0..warm_up + spec.repetitions as u64 {
        case.fill(subject, step)?;
        subject.members().barrier(soon())?;
        let before = subject.stats();
        let start_ns = Clock::now_ns();
        subject.run(&case.call)?;
        let took_ns = Clock::now_ns().saturating_sub(start_ns);
        let after = subject.stats();
        bytes_sent = after.bytes_sent - before.bytes_sent;
        bytes_over_wire = after.bytes_over_wire - before.bytes_over_wire;
        if step >= warm_up {
            // fits: durations far below 2^53
            times_ns.push(took_ns as f64);
        }
        vectors_verified += case.verify(subject, step)?;
    }
    // nobody leaves while others need its memory
    subject.members().barrier(soon())?;
    let registered_bytes = subject.stats().registered_bytes;
    let algorithm = subject.algorithm;
    Ok(MemberReport {
        times_ns,
        algorithm,
        vectors_verified,
        bytes_sent,
        bytes_over_wire,
        host,
        registered_bytes,
    })
}

fn open_group(member: &Member, Told { spec, way, .. }: &Told) -> Result<Group, AllreduceError> {
    let fabric = member.connect(
        &WireOptions {
            transport: spec.transport,
            verbs: spec.verbs.clone(),
            arrival: spec.arrival,
            encrypt: false,
            spin: SPIN,
            queue_pairs: QUEUE_PAIRS,
            peers: Peers::All,
        },
        ALLREDUCE,
    )?;
    // fits: a job has far fewer than 2^32 members
    let members: Vec<Rank> = (0..member.world() as u32).map(Rank).collect();
    let is_spread = member.members_here() < member.world();
    let assumed = || link_cost(spec.transport, is_spread);
    let options = GroupOptions {
        algorithm: way.algorithm,
        table: spec.table.clone(),
        link: spec.link.unwrap_or_else(assumed),
        deterministic: spec.deterministic,
        cores: (!is_spread).then(|| member.cores_here()),
        ..GroupOptions::default()
    };
    Ok(Group::open(fabric, &members, member.rank().index(), options, soon())?)
}

/// What the operation is done on.
struct Subject {
    vectors: Vec<Buffer>,
    algorithm: Algorithm,
    kind: SubjectKind,
}

enum SubjectKind {
    Vectors { group: Box<Group>, ids: Vec<VectorId> },
    Tensor { group: TensorGroup, id: TensorId },
}

impl Subject {
    fn open(member: &Member, told: &Told) -> Result<Subject, AllreduceError> {
        let Told { spec, way, .. } = told;
        let group = open_group(member, told)?;
        match way {
            Way { tensor: Some(tensor), .. } if tensor.design != Design::FlatRing => {
                Subject::of_tensor(group, *tensor, spec.bytes)
            }
            _ => Subject::of_vectors(group, spec.bytes, spec.vectors),
        }
    }

    fn of_vectors(mut group: Group, bytes: usize, count: usize) -> Result<Subject, AllreduceError> {
        let room = bytes.next_multiple_of(ALIGNMENT);
        let slab = group.alloc(room * count)?;
        let places = (0..count).map(|at| Place { offset: at * room, bytes });
        let vectors = Arena::new(&slab, &places.collect::<Vec<_>>())?.into_buffers();
        let algorithm = group.algorithm(bytes);
        let ids = group.bind(&vectors, soon())?;
        let kind = SubjectKind::Vectors { group: Box::new(group), ids };
        Ok(Subject { vectors, algorithm, kind })
    }

    fn of_tensor(
        group: Group,
        tensor: DeviceTensor,
        bytes: usize,
    ) -> Result<Subject, AllreduceError> {
        let algorithm = group.algorithm(bytes);
        // fits: usize is 64 bits wide
        let devices = DeviceThreads::start(tensor.devices as usize);
        let devices = Arc::new(devices.map_err(AllreduceError::Devices)?);
        let mut group = TensorGroup::new(Box::new(group), devices, tensor.design, SLICES)?;
        let id = group.bind(bytes, soon())?;
        let vectors = group.vectors(id)?.to_vec();
        Ok(Subject { vectors, algorithm, kind: SubjectKind::Tensor { group, id } })
    }

    /// Does it, and comes back when this process is done.
    fn run(&mut self, call: &CollectiveCall) -> Result<(), GroupError> {
        match &mut self.kind {
            SubjectKind::Vectors { group, ids } => {
                let start = |id: &VectorId| group.start(*id, call.clone());
                let handles = ids.iter().map(start).collect::<Result<Vec<_>, _>>()?;
                handles.into_iter().try_for_each(|handle| group.wait(handle, soon()))
            }
            SubjectKind::Tensor { group, id } => group.run(*id, call, soon()),
        }
    }

    fn members(&mut self) -> &mut dyn Collectives {
        match &mut self.kind {
            SubjectKind::Vectors { group, .. } => group.as_mut(),
            SubjectKind::Tensor { group, .. } => group.members(),
        }
    }

    fn stats(&mut self) -> GroupStats {
        self.members().stats()
    }

    /// The bytes of a vector that are a member's.
    fn pieces(
        &mut self,
        member: usize,
        element_bytes: usize,
    ) -> Result<Vec<Range<usize>>, GroupError> {
        match &mut self.kind {
            SubjectKind::Vectors { group, .. } => {
                let (size, len) = (group.size(), self.vectors[0].bytes() / element_bytes);
                let at = |member: usize| member * len / size * element_bytes;
                Ok(once(at(member)..at(member + 1)).collect())
            }
            SubjectKind::Tensor { group, id } => group.pieces(*id, member, element_bytes),
        }
    }
}

/// What is given and what is wanted.
struct Case {
    collective: CollectiveKind,
    call: CollectiveCall,
    payload: Payload,
    me: usize,
    /// By member.
    pieces: Vec<Vec<Range<usize>>>,
}

impl Case {
    fn new(subject: &mut Subject, told: &Told) -> Result<Case, AllreduceError> {
        let spec = &told.spec;
        let dtype = DType::from(spec.dtype);
        let reducer: Arc<dyn Reducer> = Arc::new(VectorReducer::new(dtype, FoldKind::Sum)?);
        let call = match spec.collective {
            CollectiveKind::AllReduce => CollectiveCall::AllReduce(reducer),
            CollectiveKind::ReduceScatter => CollectiveCall::ReduceScatter(reducer),
            CollectiveKind::AllGather => CollectiveCall::AllGather { element_bytes: dtype.bytes() },
            CollectiveKind::Broadcast => CollectiveCall::Broadcast { root: ROOT },
            CollectiveKind::Reduce => CollectiveCall::Reduce { root: ROOT, reducer },
        };
        let (me, size) = (subject.members().me(), subject.members().size());
        let pieces = (0..size).map(|member| subject.pieces(member, dtype.bytes()));
        let pieces = pieces.collect::<Result<_, _>>()?;
        let contributors = spec.ranks * told.way.devices();
        let payload = Payload::new(spec.dtype, contributors);
        Ok(Case { collective: spec.collective, call, payload, me, pieces })
    }

    /// Puts into every vector what it gives, and elsewhere nothing of the step before.
    fn fill(&mut self, subject: &Subject, step: u64) -> Result<(), AllreduceError> {
        for (device, vector) in subject.vectors.iter().enumerate() {
            let contributor = self.contributor(self.me, device, subject);
            let weight = self.payload.weight(Some(contributor));
            let mut bytes = vector.write()?;
            let gives = match self.collective {
                CollectiveKind::AllGather => Some(self.pieces[self.me].clone()),
                CollectiveKind::Broadcast if self.me != ROOT => Some(Vec::new()),
                _ => None,
            };
            let Some(gives) = gives else {
                let all = 0..bytes.len();
                self.payload.fill(&mut bytes, all, weight, step);
                continue;
            };
            bytes.fill(0);
            for range in gives {
                self.payload.fill(&mut bytes, range, weight, step);
            }
        }
        Ok(())
    }

    /// Compares every vector as far as it is defined; how many there were.
    fn verify(&mut self, subject: &Subject, step: u64) -> Result<u64, AllreduceError> {
        let mut count = 0;
        for (vector, buffer) in subject.vectors.iter().enumerate() {
            let bytes = buffer.read()?;
            let all = || once(0..bytes.len()).collect();
            let sum = self.payload.weight(None);
            let of_first = |member| self.payload.weight(Some(self.contributor(member, 0, subject)));
            let wanted: Vec<(Vec<Range<usize>>, u32)> = match self.collective {
                CollectiveKind::AllReduce => vec![(all(), sum)],
                CollectiveKind::ReduceScatter => vec![(self.pieces[self.me].clone(), sum)],
                CollectiveKind::AllGather => {
                    let pieces = self.pieces.iter().cloned().enumerate();
                    pieces.map(|(member, pieces)| (pieces, of_first(member))).collect()
                }
                CollectiveKind::Broadcast => vec![(all(), of_first(ROOT))],
                CollectiveKind::Reduce if self.me == ROOT => vec![(all(), sum)],
                CollectiveKind::Reduce => vec![],
            };
            let is_defined = !wanted.is_empty();
            for (ranges, weight) in wanted {
                for range in ranges {
                    if let Some(at) = self.payload.first_difference(&bytes, range, weight, step) {
                        let (bytes, collective) = (bytes.len(), self.collective.name());
                        return Err(AllreduceError::Wrong { step, vector, at, bytes, collective });
                    }
                }
            }
            count += u64::from(is_defined);
        }
        Ok(count)
    }

    /// The number of a device of a member among all. Vectors of a member without devices are alike.
    fn contributor(&self, member: usize, device: usize, subject: &Subject) -> u32 {
        let at = match subject.kind {
            SubjectKind::Vectors { .. } => member,
            SubjectKind::Tensor { .. } => member * subject.vectors.len() + device,
        };
        // fits: far fewer than 2^32 devices
        at as u32
    }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
