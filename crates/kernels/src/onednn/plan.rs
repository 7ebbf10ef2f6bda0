//! What one operator of one shape is to the library: its primitives in their order, reorders around them
//! where the library wants an operand in an order of its own, and where in the scratch all that lies.

use std::ffi::c_int;

use super::primitive::{Blueprint, Desc, Primitive, Refused, Stream};

/// Start of everything in the scratch: a cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;

/// One operand of a call.
pub(super) enum Operand<'a> {
    In(&'a [u8]),
    Out(&'a mut [u8]),
}

/// Names an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(usize);

#[derive(Clone, Copy, Debug)]
enum Place {
    /// The caller's operand of that number.
    Caller(usize),
    /// That many bytes behind the scratch's start.
    Scratch(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[derive(Debug)]
struct Held {
    desc: Desc,
    place: Place,
}

#[derive(Debug)]
struct Step {
    primitive: Primitive,
    arguments: Vec<(c_int, Held)>,
}

/// Primitives ready to run.
#[derive(Debug, Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    /// Bytes of the caller's operands, in order.
    operands: Vec<(usize, Access)>,
    /// Bytes of the scratch in front of the primitives' own.
    kept_bytes: usize,
    scratchpad_bytes: usize,
}

/// A plan in the making.
#[derive(Debug, Default)]
pub(super) struct Planner {
    plan: Plan,
    slots: Vec<(Held, Access)>,
}

/// Memory that calls use one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u64>);

impl Planner {
    /// The next of the caller's operands, which is read.
    pub(super) fn input(&mut self, desc: Desc) -> Slot {
        self.operand(desc, Access::Read)
    }

    /// The next of the caller's operands, which is written.
    pub(super) fn output(&mut self, desc: Desc) -> Slot {
        self.operand(desc, Access::Write)
    }

    fn operand(&mut self, desc: Desc, access: Access) -> Slot {
        let place = Place::Caller(self.plan.operands.len());
        self.plan.operands.push((desc.bytes(), access));
        self.slots.push((Held { desc, place }, access));
        Slot(self.slots.len() - 1)
    }

    fn keep(&mut self, desc: &Desc) -> Place {
        let start = self.plan.kept_bytes;
        self.plan.kept_bytes += desc.bytes().next_multiple_of(ALIGNMENT);
        Place::Scratch(start)
    }

    /// Adds a primitive that reads `inputs` and writes `outputs`.
    pub(super) fn add(
        &mut self,
        blueprint: &Blueprint,
        inputs: &[(c_int, Slot)],
        outputs: &[(c_int, Slot)],
    ) -> Result<(), Refused> {
        let mut arguments = Vec::new();
        let mut behind = Vec::new();
        for (number, &(arg, slot)) in inputs.iter().chain(outputs).enumerate() {
            let is_output = number >= inputs.len();
            assert!(!is_output || self.slots[slot.0].1 == Access::Write);
            let wanted = blueprint.argument(arg).ok_or(Refused::Shape)?;
            let Held { desc, place } = &self.slots[slot.0].0;
            let place = *place;
            if wanted.is_same(desc) {
                arguments.push((arg, Held { desc: wanted, place }));
                continue;
            }
            let [source, target] = if is_output { [&wanted, desc] } else { [desc, &wanted] };
            let reorder = Blueprint::reorder(source, target)?;
            let own = self.keep(&wanted);
            arguments.push((arg, Held { desc: wanted, place: own }));
            let [from, to] = if is_output { [own, place] } else { [place, own] };
            let step = Step::reorder(&reorder, from, to)?;
            if is_output { behind.push(step) } else { self.push(step) }
        }
        self.push(Step { primitive: blueprint.build()?, arguments });
        for step in behind {
            self.push(step);
        }
        Ok(())
    }

    fn push(&mut self, step: Step) {
        let needed = step.primitive.scratchpad_bytes();
        self.plan.scratchpad_bytes = self.plan.scratchpad_bytes.max(needed);
        self.plan.steps.push(step);
    }

    pub(super) fn finish(self) -> Plan {
        self.plan
    }
}

impl Step {
    fn reorder(blueprint: &Blueprint, from: Place, to: Place) -> Result<Step, Refused> {
        use super::library::arg::{DST, SRC};
        let held = |arg, place| {
            blueprint.argument(arg).map(|desc| (arg, Held { desc, place })).ok_or(Refused::Shape)
        };
        let arguments = vec![held(SRC, from)?, held(DST, to)?];
        Ok(Step { primitive: blueprint.build()?, arguments })
    }
}

impl Plan {
    /// Bytes of scratch that a run needs.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.kept_bytes + self.scratchpad_bytes
    }

    /// Runs over the operands, in the order in which they were planned.
    pub(super) fn run(
        &self,
        stream: &mut Stream,
        scratch: &mut Scratch,
        operands: &mut [Operand<'_>],
    ) -> Result<(), Refused> {
        assert_eq!(operands.len(), self.operands.len());
        let mut addresses = Vec::with_capacity(operands.len());
        for (operand, &(bytes, access)) in operands.iter_mut().zip(&self.operands) {
            let (found, address, given) = match operand {
                Operand::In(slice) => (slice.len(), slice.as_ptr().cast_mut(), Access::Read),
                Operand::Out(slice) => (slice.len(), slice.as_mut_ptr(), Access::Write),
            };
            assert_eq!((found, given), (bytes, access));
            addresses.push(address);
        }
        let scratch = scratch.start(self.scratch_bytes())?;
        let scratchpad = scratch.wrapping_add(self.kept_bytes);
        for step in &self.steps {
            let address = |held: &Held| match held.place {
                Place::Caller(number) => addresses[number],
                Place::Scratch(start) => scratch.wrapping_add(start),
            };
            let arguments: Vec<_> = step
                .arguments
                .iter()
                .map(|(arg, held)| (*arg, &held.desc, address(held)))
                .collect();
            // SAFETY: the descriptors are the blueprint's own. An operand's place has the bytes of a
            // descriptor that is the same as its (`add`), asserted above; it is written only if it is an
            // output, by an assertion in `add`, and borrowed so by the caller until this returns. A
            // place in the scratch was given the bytes of its descriptor, apart from all others, and the
            // scratchpad, behind all of them, the most that a step needs; the scratch has both.
            unsafe { step.primitive.run(stream, &arguments, scratchpad)? };
        }
        Ok(())
    }
}

impl Scratch {
    /// The start of `bytes` bytes of unspecified contents.
    fn start(&mut self, bytes: usize) -> Result<*mut u8, Refused> {
        const OUT_OF_MEMORY: c_int = 1;
        let words = bytes.div_ceil(size_of::<u64>()) + ALIGNMENT / size_of::<u64>();
        if self.0.len() < words {
            // not both at the same time
            self.0 = Vec::new();
            let mut grown = Vec::new();
            grown.try_reserve_exact(words).map_err(|_| Refused::Status(OUT_OF_MEMORY))?;
            grown.resize(words, 0);
            self.0 = grown;
        }
        let start = self.0.as_mut_ptr().cast::<u8>();
        Ok(start.wrapping_add(start.align_offset(ALIGNMENT)))
    }
}
