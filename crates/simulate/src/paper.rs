//! What Xue et al. (EuroSys'19) say of their cluster, to hold the simulation against.

/// A model of theirs, by our name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Benchmark {
    pub model: &'static str,
    /// Table 2: all variables, in units of 2^20 bytes, and how many they are.
    pub model_mb: f64,
    pub variables: usize,
    /// Table 2: one sample on one machine, in milliseconds.
    pub sample_ms: f64,
    /// §5.2 and figure 11: how much faster 8 machines with a worker and a server each are than one without
    /// communication, at 32 samples a worker; where they say it.
    pub speedup_of_8: Option<f64>,
    /// The same with their gRPC over RDMA.
    pub grpc_rdma_speedup_of_8: Option<f64>,
}

/// Workers, and servers, of their speed-ups.
pub const MACHINES: u32 = 8;
/// Samples of a worker in figure 11.
pub const BATCH: usize = 32;
/// What a P100 does at most, by NVIDIA's data sheet: single-precision operations a second, behind PCIe.
const PEAK_FLOPS: f64 = 9.3e12;

/// Table 2 and figure 11.
pub const BENCHMARKS: [Benchmark; 6] = [
    Benchmark {
        model: "alexnet",
        model_mb: 176.42,
        variables: 16,
        sample_ms: 7.61,
        speedup_of_8: None,
        grpc_rdma_speedup_of_8: None,
    },
    Benchmark {
        model: "inception-v3",
        model_mb: 92.90,
        variables: 196,
        sample_ms: 68.32,
        speedup_of_8: Some(7.9),
        grpc_rdma_speedup_of_8: Some(6.0),
    },
    Benchmark {
        model: "vgg16",
        model_mb: 512.32,
        variables: 32,
        sample_ms: 30.92,
        speedup_of_8: Some(4.3),
        grpc_rdma_speedup_of_8: None,
    },
    Benchmark {
        model: "lstm",
        model_mb: 35.93,
        variables: 14,
        sample_ms: 33.33,
        speedup_of_8: Some(5.0),
        grpc_rdma_speedup_of_8: Some(1.5),
    },
    Benchmark {
        model: "gru",
        model_mb: 27.92,
        variables: 11,
        sample_ms: 30.44,
        speedup_of_8: None,
        grpc_rdma_speedup_of_8: None,
    },
    Benchmark {
        model: "fcn5",
        model_mb: 204.47,
        variables: 10,
        sample_ms: 4.88,
        speedup_of_8: None,
        grpc_rdma_speedup_of_8: None,
    },
];

/// What they say of a model.
pub fn benchmark(model: &str) -> Option<Benchmark> {
    BENCHMARKS.into_iter().find(|benchmark| benchmark.model == model)
}

impl Benchmark {
    /// A step on one of their machines, in seconds. They give the time of one sample; more take the same until the GPU
    /// is busy (§5.2: "can complete large mini-batches within the same time"), and never less than its peak allows.
    /// `flops`: operations of a step of so large a batch.
    pub fn compute_s(&self, flops: f64) -> f64 {
        (self.sample_ms * 1e-3).max(flops / PEAK_FLOPS)
    }
}
