//! Convolutions by cuDNN: by the one that stands in its place, on the driver without a GPU, and on a GPU by the real one.
//! Where the real one is found and no GPU is, its objects are made all the same, if a driver's library is there.

use std::sync::Arc;

use tensorwire_device::{
    ConvolutionPass, ConvolutionPlan, CudaLibrary, Cudnn, DeviceError, ImageConvolution, RealType,
};
use tensorwire_testkit::skip::{skip, skip_part};

use crate::libraries::{FOLDERS, bytes, named, number, search};
use crate::support::{Machine, alive, download, on_each, on_fake, soon, upload, whole};

/// As in the suite of products.
fn library(machine: &Machine) -> Option<(Arc<Cudnn>, Option<tempfile::TempDir>)> {
    if !machine.is_fake() {
        return match Cudnn::open(&machine.device, &search()) {
            Ok(library) => Some((Arc::new(library), None)),
            Err(error) => {
                skip_part(&error);
                None
            }
        };
    }
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    let library = Cudnn::open(&machine.device, &named(folder.path())).unwrap();
    Some((Arc::new(library), Some(folder)))
}

#[test]
fn the_real_library_makes_what_the_table_says() {
    match Cudnn::look(&search()) {
        Ok(library) => eprintln!("{library} in {}", library.found().path.display()),
        // some of its parts load the driver
        Err(error) if tensorwire_device::Driver::open(None).is_err() => skip(Some(FOLDERS), &error),
        Err(error)
            if search().candidates(CudaLibrary::Cudnn).iter().any(|found| found.path.exists()) =>
        {
            panic!("{error}")
        }
        Err(error) => skip(Some(FOLDERS), &error),
    }
}

const BATCH: usize = 2;
const SIZE: [usize; 2] = [7, 5];
const CHANNELS: usize = 4;
const OUTPUTS: usize = 6;
const KERNEL: [usize; 2] = [3, 2];

fn convolution(pass: ConvolutionPass, groups: usize, stride: usize) -> ImageConvolution {
    let before = [1, 0];
    // a row of padding on both sides
    let windows = [(SIZE[0] + 2 - KERNEL[0]) / stride + 1, (SIZE[1] - KERNEL[1]) / stride + 1];
    ImageConvolution {
        pass,
        of: RealType::F32,
        batch: BATCH,
        size: SIZE,
        channels: CHANNELS,
        windows,
        outputs: OUTPUTS,
        groups,
        kernel: KERNEL,
        stride: [stride; 2],
        dilation: [1, 1],
        before,
        rounds_to_tf32: false,
    }
}

/// The numbers of x, w and y.
fn counts(of: &ImageConvolution) -> [usize; 3] {
    let images = of.batch * of.size[0] * of.size[1] * of.channels;
    let weight = of.outputs * (of.channels / of.groups) * of.kernel[0] * of.kernel[1];
    [images, weight, of.batch * of.windows[0] * of.windows[1] * of.outputs]
}

/// What the pass makes of the other two, by the formula.
fn expected(of: &ImageConvolution, given: &[Vec<f32>; 3]) -> Vec<f32> {
    let made = match of.pass {
        ConvolutionPass::Forward => 2,
        ConvolutionPass::GradInput => 0,
        ConvolutionPass::GradWeight => 1,
    };
    let mut all = given.clone();
    all[made].fill(0.0);
    let (group_channels, group_outputs) = (of.channels / of.groups, of.outputs / of.groups);
    for n in 0..of.batch {
        for (i, j) in (0..of.windows[0]).flat_map(|i| (0..of.windows[1]).map(move |j| (i, j))) {
            for (k, l) in (0..of.kernel[0]).flat_map(|k| (0..of.kernel[1]).map(move |l| (k, l))) {
                let (row, column) = (i * of.stride[0] + k, j * of.stride[1] + l);
                let Some(row) = row.checked_sub(of.before[0]).filter(|row| *row < of.size[0])
                else {
                    continue;
                };
                for (o, c) in (0..of.outputs).flat_map(|o| (0..group_channels).map(move |c| (o, c)))
                {
                    let channel = o / group_outputs * group_channels + c;
                    let image = (n * of.size[0] + row) * of.size[1] + column;
                    let at = [
                        image * of.channels + channel,
                        ((o * group_channels + c) * of.kernel[0] + k) * of.kernel[1] + l,
                        ((n * of.windows[0] + i) * of.windows[1] + j) * of.outputs + o,
                    ];
                    let [a, b] = [[1, 2], [0, 2], [0, 1]][made];
                    all[made][at[made]] += given[a][at[a]] * given[b][at[b]];
                }
            }
        }
    }
    std::mem::take(&mut all[made])
}

/// Computes it twice, once as a part of a graph: both results.
fn computed(machine: &Machine, plan: &ConvolutionPlan, of: &ImageConvolution) -> [Vec<f32>; 2] {
    let counts = counts(of);
    let given: [Vec<f32>; 3] =
        std::array::from_fn(|t| (0..counts[t]).map(|at| number(at, t + 1)).collect());
    let memory = counts.map(|count| machine.memory(4 * count as u64));
    let room = machine.memory(plan.workspace_bytes().max(1) as u64);
    let made = match of.pass {
        ConvolutionPass::Forward => 2,
        ConvolutionPass::GradInput => 0,
        ConvolutionPass::GradWeight => 1,
    };
    let stream = machine.stream();
    let launch = || {
        let operands = memory.each_ref().map(|memory| memory.address());
        // SAFETY: all of it is this test's memory, of as many bytes, and lives until the stream has passed.
        unsafe { plan.launch(&stream, operands, room.address()) }.unwrap();
    };
    let mut graph = None;
    [0, 1].map(|turn| {
        for (memory, numbers) in memory.iter().zip(&given) {
            upload(machine, &bytes(numbers), &whole(&memory.slab()));
        }
        if turn == 0 {
            launch();
        } else {
            stream.begin_capture().unwrap();
            launch();
            let captured = graph.insert(stream.end_capture().unwrap());
            captured.launch(&stream).unwrap();
        }
        stream.synchronize(soon()).unwrap();
        download(machine, &whole(&memory[made].slab()))
            .chunks_exact(4)
            .map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()))
            .collect()
    })
}

#[test]
fn convolutions_are_those_of_the_formula() {
    on_each(|machine| {
        let Some((library, _folder)) = library(machine) else { return };
        use ConvolutionPass::{Forward, GradInput, GradWeight};
        for (groups, stride) in [(1, 1), (2, 2)] {
            for pass in [Forward, GradInput, GradWeight] {
                let of = convolution(pass, groups, stride);
                let plan = library.plan(&of, of.bytes() + (32 << 20)).unwrap().unwrap();
                let counts = counts(&of);
                let given: [Vec<f32>; 3] =
                    std::array::from_fn(|t| (0..counts[t]).map(|at| number(at, t + 1)).collect());
                let expected = expected(&of, &given);
                let [once, again] = computed(machine, &plan, &of);
                assert_eq!(once, expected, "{of:?}");
                assert_eq!(again, expected, "{of:?} in a graph");
            }
        }
    });
}

#[test]
fn what_no_engine_has_is_not_planned() {
    on_fake(&[], || {
        let machine = Machine::open();
        let (library, _folder) = library(&machine).unwrap();
        let of = convolution(ConvolutionPass::Forward, 1, 1);
        assert!(library.plan(&of, 1 << 20).unwrap().is_some());
        // the one that would do needs a workspace
        assert!(library.plan(&of, 0).unwrap().is_none());
        // windows that are left out, and sizes that nobody counts
        let fewer = ImageConvolution { windows: [2, 4], ..of };
        assert!(library.plan(&fewer, 1 << 20).unwrap().is_none());
        let many = ImageConvolution { channels: usize::MAX, ..of };
        assert!(library.plan(&many, 1 << 20).unwrap().is_none());
        let empty = ImageConvolution { batch: 0, ..of };
        assert!(library.plan(&empty, 1 << 20).unwrap().is_none());
    });
}

#[test]
fn a_plan_gives_its_objects_back() {
    on_fake(&[], || {
        let machine = Machine::open();
        let (library, _folder) = library(&machine).unwrap();
        let before = alive();
        let of = convolution(ConvolutionPass::GradWeight, 2, 1);
        let plan = library.plan(&of, 1 << 20).unwrap().unwrap();
        assert!(alive() > before);
        drop(plan);
        assert_eq!(alive(), before);
    });
}

#[test]
fn a_convolution_that_fails_says_so_in_the_librarys_words() {
    on_fake(&[("FAKE_CUDA_FAULTS", "convolution=2")], || {
        let machine = Machine::open();
        let (library, _folder) = library(&machine).unwrap();
        let of = convolution(ConvolutionPass::Forward, 1, 1);
        let plan = library.plan(&of, 1 << 20).unwrap().unwrap();
        let (memory, stream) = (machine.memory(1 << 20), machine.stream());
        let at = |part: u64| memory.address() + (part << 16);
        // SAFETY: the parts are larger than the tensors and the workspace, and live until the stream has passed.
        let launch = || unsafe { plan.launch(&stream, [at(0), at(1), at(2)], at(3)) };
        launch().unwrap();
        let failed = launch().unwrap_err();
        assert!(matches!(failed, DeviceError::Library { library: "cuDNN", .. }), "{failed}");
        let said = failed.to_string();
        let why = "cuDNN fails on GPU 0: cudnnBackendExecute says CUDNN_STATUS_EXECUTION_FAILED (5000, it was told to fail)";
        assert!(said.contains(why), "{said}");
        assert!(said.contains("--cuda-libs none"), "{said}");
        stream.synchronize(soon()).unwrap();
    });
}

/// Opens the library that stands in the real one's place, on a machine where it cannot be used.
fn refused_on(machine: &[(&str, &str)], why: &str) {
    on_fake(machine, || {
        let folder = tempfile::tempdir().unwrap();
        tensorwire_fakecuda::libraries(folder.path()).unwrap();
        let found = Cudnn::open(&Machine::open().device, &named(folder.path())).unwrap_err();
        assert!(found.to_string().contains(why), "{found}");
    });
}

#[test]
fn a_library_that_does_not_start_says_so() {
    let why = "does not start: cudnnCreate says CUDNN_STATUS_NOT_INITIALIZED (1001, it was told not to start)";
    refused_on(&[("FAKE_CUDA_FAULTS", "nolibrary")], why);
}

#[test]
fn a_library_of_another_time_says_so() {
    refused_on(&[("FAKE_CUDA_CUDNN", "8904")], "is of version 8.9.4; 9 can be used");
}
