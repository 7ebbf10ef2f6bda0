//! What the environment says the fake machine is, and what goes wrong on it.

use crate::random::Random;

/// One GPU's memory, where nothing else is said.
const MEMORY_BYTES: u64 = 4 << 30;
/// CUDA 12.4.
const VERSION: i32 = 12_040;
const COMPUTE: i32 = 80;

/// The fake machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) seed: u64,
    /// Of each GPU.
    pub(crate) memory_bytes: u64,
    /// Allocations are multiples of so many bytes.
    pub(crate) grain: usize,
    /// As `cuDriverGetVersion` says it.
    pub(crate) version: i32,
    /// Compute capability, major and minor in one number.
    pub(crate) compute: i32,
    /// As cuBLASLt says its own; 0: as usual.
    pub(crate) cublas_version: usize,
    /// As cuDNN says its own; 0: as usual.
    pub(crate) cudnn_version: usize,
    /// As NVRTC says its own, in the driver's way; 0: as the driver.
    pub(crate) nvrtc_version: i32,
    /// The library that runs kernels.
    pub(crate) kernels: Option<String>,
    /// The host cannot follow addresses of GPUs but while a kernel runs.
    pub(crate) guard: bool,
    pub(crate) faults: Faults,
}

/// What goes wrong. Numbers count from 1; 0 is never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// A stream takes so much at a time; whoever tells it more waits.
    pub(crate) queue: u64,
    /// A graph takes as much of a stream as what is in it: whoever launches it waits until the rest fits.
    pub(crate) counted: bool,
    /// What is made or used for the first time waits until the streams of its GPU have nothing to do.
    pub(crate) lazy: bool,
    /// Streams sleep up to so many microseconds before what they do, as the seed says.
    pub(crate) delay_us: u64,
    /// The allocation that finds no memory.
    pub(crate) out_of_memory: u64,
    /// The launch that fails, and with it everything after.
    pub(crate) launch: u64,
    /// So many calls succeed; then the GPU is gone.
    pub(crate) lost: u64,
    /// The wait of a stream for a word that never ends.
    pub(crate) hang: u64,
    /// What NICs write is not seen before a flush.
    pub(crate) stale: bool,
    /// Fresh memory holds anything.
    pub(crate) garbage: bool,
    /// No GPU reaches another.
    pub(crate) no_peer: bool,
    /// Streams make no graphs.
    pub(crate) no_graph: bool,
    /// Memory has no file descriptor.
    pub(crate) no_export: bool,
    /// Memory has no dma-buf.
    pub(crate) no_dmabuf: bool,
    /// CUDA's libraries do not start.
    pub(crate) no_library: bool,
    /// They have no algorithm for anything.
    pub(crate) no_algorithm: bool,
    /// The matrix product of cuBLASLt's that fails.
    pub(crate) product: u64,
    /// The convolution of cuDNN's that fails.
    pub(crate) convolution: u64,
    /// The program in which NVRTC fails.
    pub(crate) compile: u64,
    /// The launch of a kernel of NVRTC's that reads what is not there.
    pub(crate) program: u64,
}

impl Config {
    /// Reads it by a function that gives a variable's value.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let number = |name: &str, otherwise: u64| match get(name) {
            None => Ok(otherwise),
            Some(text) => {
                text.trim().parse::<u64>().map_err(|_| format!("{name}={text}: no number"))
            }
        };
        let small = |name: &str, otherwise: i32| {
            // fits: not negative
            let value = number(name, otherwise as u64)?;
            i32::try_from(value).map_err(|_| format!("{name}={value}: too large"))
        };
        let faults = get("FAKE_CUDA_FAULTS").unwrap_or_default();
        Ok(Config {
            devices: usize::try_from(small("FAKE_CUDA_DEVICES", 1)?).unwrap_or(0),
            seed: number("FAKE_CUDA_SEED", 1)?,
            memory_bytes: number("FAKE_CUDA_MEMORY", MEMORY_BYTES)?,
            grain: grain(number("FAKE_CUDA_GRAIN_KIB", 2048)?)?,
            version: small("FAKE_CUDA_VERSION", VERSION)?,
            compute: small("FAKE_CUDA_COMPUTE", COMPUTE)?,
            cublas_version: usize::try_from(small("FAKE_CUDA_CUBLAS", 0)?).unwrap_or(0),
            cudnn_version: usize::try_from(small("FAKE_CUDA_CUDNN", 0)?).unwrap_or(0),
            nvrtc_version: small("FAKE_CUDA_NVRTC", 0)?,
            kernels: get("FAKE_CUDA_KERNELS").filter(|path| !path.is_empty()),
            guard: number("FAKE_CUDA_GUARD", 0)? != 0,
            faults: Faults::parse(&faults)?,
        })
    }

    /// Of NVRTC, as `cuDriverGetVersion` says the driver's.
    pub(crate) fn nvrtc_version(&self) -> i32 {
        if self.nvrtc_version > 0 { self.nvrtc_version } else { self.version }
    }
}

/// So many KiB, if allocations can be multiples of them: whole pages, and no more than the addresses between two ranges.
fn grain(kib: u64) -> Result<usize, String> {
    let pages = rustix::param::page_size() as u64 >> 10;
    match kib.is_power_of_two() && (pages..=2048).contains(&kib) {
        // fits: so small
        true => Ok((kib as usize) << 10),
        false => Err(format!("FAKE_CUDA_GRAIN_KIB={kib}: no power of two from {pages} to 2048")),
    }
}

impl Faults {
    /// Reads `delay=200,stale`.
    fn parse(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, "1"));
            let bad = || format!("FAKE_CUDA_FAULTS: {word}: no number");
            let value = value.parse::<u64>().map_err(|_| bad())?;
            match name {
                "queue" => faults.queue = value,
                "counted" => faults.counted = value != 0,
                "lazy" => faults.lazy = value != 0,
                "delay" => faults.delay_us = value,
                "oom" => faults.out_of_memory = value,
                "launch" => faults.launch = value,
                "lost" => faults.lost = value,
                "hang" => faults.hang = value,
                "stale" => faults.stale = value != 0,
                "garbage" => faults.garbage = value != 0,
                "nopeer" => faults.no_peer = value != 0,
                "nograph" => faults.no_graph = value != 0,
                "noexport" => faults.no_export = value != 0,
                "nodmabuf" => faults.no_dmabuf = value != 0,
                "nolibrary" => faults.no_library = value != 0,
                "noalgorithm" => faults.no_algorithm = value != 0,
                "product" => faults.product = value,
                "convolution" => faults.convolution = value,
                "compile" => faults.compile = value,
                "program" => faults.program = value,
                _ => return Err(format!("FAKE_CUDA_FAULTS: {name}: no such fault")),
            }
        }
        Ok(faults)
    }

    /// How long to sleep before something.
    pub(crate) fn delay(&self, random: &mut Random) -> Option<std::time::Duration> {
        let draw = (self.delay_us > 0).then(|| random.next())?;
        // every other time
        let micros = (draw >> 1) % (self.delay_us + 1);
        (draw & 1 == 0).then(|| std::time::Duration::from_micros(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_describes_a_machine() {
        let plain = read(&[]).unwrap();
        assert_eq!((plain.devices, plain.version, plain.compute), (1, 12_040, 80));
        assert_eq!((plain.faults, plain.grain), (Faults::default(), 2 << 20));
        let other = read(&[
            ("FAKE_CUDA_DEVICES", "2"),
            ("FAKE_CUDA_MEMORY", "1048576"),
            ("FAKE_CUDA_FAULTS", "delay=200, stale,oom=3"),
        ]);
        let other = other.unwrap();
        assert_eq!((other.devices, other.memory_bytes), (2, 1 << 20));
        let faults = Faults { delay_us: 200, stale: true, out_of_memory: 3, ..Faults::default() };
        assert_eq!(other.faults, faults);
    }

    #[test]
    fn what_it_does_not_know_is_said() {
        assert!(read(&[("FAKE_CUDA_FAULTS", "flood=1")]).unwrap_err().contains("flood"));
        assert!(read(&[("FAKE_CUDA_FAULTS", "oom=many")]).unwrap_err().contains("oom=many"));
        for kib in ["1", "96", "4096"] {
            assert!(read(&[("FAKE_CUDA_GRAIN_KIB", kib)]).unwrap_err().contains(kib));
        }
        assert!(read(&[("FAKE_CUDA_DEVICES", "-1")]).unwrap_err().contains("FAKE_CUDA_DEVICES"));
    }

    #[test]
    fn delays_come_every_other_time_and_end() {
        let faults = Faults { delay_us: 10, ..Faults::default() };
        let mut random = Random::new(7, 0);
        let delays: Vec<_> = (0..1000).filter_map(|_| faults.delay(&mut random)).collect();
        assert!((300..700).contains(&delays.len()), "{}", delays.len());
        assert!(delays.iter().all(|delay| delay.as_micros() <= 10));
        assert_eq!(Faults::default().delay(&mut random), None);
    }
}
