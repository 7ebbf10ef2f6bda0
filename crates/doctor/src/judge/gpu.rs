//! Judges GPUs: whether they can compute, how processes and NICs reach them, and what is missing beside them. A machine
//! without a GPU has nothing to mend.

use crate::facts::{CudaFacts, CudaLibraryFacts, Facts, GpuFacts};

use super::{Finding, Severity};

/// The least compute capability that kernels are made for.
const COMPUTE: (u32, u32) = (8, 0);
/// What the kernel says of two nodes that are one.
const NEXT_TO: u32 = 10;

pub(super) fn gpus(facts: &Facts) -> Vec<Finding> {
    let cuda = &facts.gpu.cuda;
    let mut findings: Vec<Finding> = unusable(facts).into_iter().collect();
    findings.extend(cuda.gpus.iter().flat_map(|gpu| one(facts, gpu)));
    findings.extend(peers(cuda));
    findings.extend(direct(facts));
    findings.extend(cuda.libraries.iter().filter_map(library));
    findings
}

/// Why GPUs that are there cannot be used, or that they can be.
fn unusable(facts: &Facts) -> Option<Finding> {
    let (gpu, cuda) = (&facts.gpu, &facts.gpu.cuda);
    let severity = if cuda.asked { Severity::Error } else { Severity::Warning };
    let why = match cuda.asked {
        true => "the driver was named, and a job with --device cuda would end here",
        false => "training computes on the CPU although there is a GPU",
    };
    if let Some(obstacle) = &cuda.obstacle {
        let is_there = cuda.asked || gpu.driver.is_some() || !gpu.on_bus.is_empty();
        if !is_there {
            return None;
        }
        let (id, what, mend) = match (&gpu.driver, gpu.on_bus.first()) {
            (None, Some(address)) if !cuda.asked => (
                "gpu-no-driver",
                format!("there is a GPU at {address}, and no driver of NVIDIA's is loaded"),
                "sudo apt-get install nvidia-driver (or as your distribution has it), then reboot"
                    .to_string(),
            ),
            _ => ("gpu-unusable", obstacle.reason.clone(), obstacle.mend.clone()),
        };
        return Some(Finding::new(severity, id, what, why).mended_by(mend));
    }
    if let (true, Some(address)) = (cuda.gpus.is_empty(), gpu.on_bus.first()) {
        let what = format!("there is a GPU at {address}, and the driver shows this process none");
        return Some(Finding::new(severity, "gpu-hidden", what, why).mended_by(
            "unset CUDA_VISIBLE_DEVICES and see nvidia-smi -L; in a container: docker run --gpus all …",
        ));
    }
    let able = cuda.gpus.iter().filter(|gpu| can_compute(gpu)).count();
    let version = cuda.version.as_ref().filter(|_| able > 0)?;
    let what = format!("{} can be used, by a driver of CUDA {version}", count(able));
    Some(Finding::new(Severity::Ok, "gpu", what, "what --device cuda would take"))
}

fn count(gpus: usize) -> String {
    if gpus == 1 { "a GPU".to_string() } else { format!("{gpus} GPUs") }
}

/// True if kernels are made for it, and it has all that memory here needs.
fn can_compute(gpu: &GpuFacts) -> bool {
    gpu.compute >= COMPUTE && gpu.virtual_memory
}

/// What one GPU lacks.
fn one(facts: &Facts, gpu: &GpuFacts) -> Vec<Finding> {
    let GpuFacts { ordinal, name, .. } = gpu;
    let mut findings = Vec::new();
    let (major, minor) = gpu.compute;
    if !can_compute(gpu) {
        let what = match gpu.virtual_memory {
            true => format!("GPU {ordinal} ({name}) is of compute capability {major}.{minor}"),
            false => format!("GPU {ordinal} ({name}) maps no memory apart from allocating it"),
        };
        let why = "kernels are made for 8.0 and newer, and all memory is mapped: it computes nothing here";
        let is_only = !facts.gpu.cuda.gpus.iter().any(can_compute);
        let is_asked = facts.gpu.cuda.asked && is_only;
        let severity = if is_asked { Severity::Error } else { Severity::Warning };
        let finding = Finding::new(severity, "gpu-too-old", what, why);
        findings.push(finding.mended_by("CUDA_VISIBLE_DEVICES=… with the others, or --device cpu"));
    }
    if !gpu.export {
        let what = format!("GPU {ordinal} shows its memory to no other process");
        let why = "tensors between processes of this host take a way by the host's memory";
        let finding = Finding::new(Severity::Note, "gpu-no-export", what, why);
        findings.push(finding.mended_by(
            "run on the machine itself instead of WSL or a vGPU; in a container: docker run --gpus all --ipc=host …",
        ));
    }
    findings.extend(ordering(facts, gpu));
    findings.extend(far(gpu));
    findings
}

/// Writes of a NIC that nobody orders and nobody can flush.
fn ordering(facts: &Facts, gpu: &GpuFacts) -> Option<Finding> {
    if gpu.writes_ordering != "none" || gpu.flush || facts.rdma.nics.is_empty() {
        return None;
    }
    let what = format!("GPU {} neither orders nor flushes what a NIC writes", gpu.ordinal);
    let why = "a stream that waits may not see what came: steps are told in parts, not whole";
    let finding = Finding::new(Severity::Note, "gpu-unordered", what, why);
    Some(
        finding.mended_by(
            "install a newer driver (550 or newer), or keep arrivals in the host's memory",
        ),
    )
}

/// A GPU whose nearest NIC is far.
fn far(gpu: &GpuFacts) -> Option<Finding> {
    let known: Vec<_> = gpu.nics.iter().filter_map(|nic| Some((nic, nic.distance?))).collect();
    let (nearest, distance) = known.iter().min_by_key(|(_, distance)| *distance)?;
    let farthest = known.iter().map(|(_, distance)| *distance).max()?;
    let ordinal = gpu.ordinal;
    if *distance > NEXT_TO {
        let what = format!(
            "GPU {ordinal} and its nearest NIC, {}, are at a distance of {distance} (10 is next to each other)",
            nearest.nic
        );
        let why = "tensors cross between processors on their way from one to the other";
        let finding = Finding::new(Severity::Note, "gpu-nic-far", what, why);
        return Some(finding.mended_by(
            "put NIC and GPU into slots of one processor, or use a GPU next to the NIC: --device cuda:N",
        ));
    }
    if farthest > NEXT_TO {
        let what = format!("GPU {ordinal} has NICs near and far");
        let why = "of NICs that are as fast and on one network a process takes the nearest; where they are not, it may get a far one";
        let finding = Finding::new(Severity::Note, "gpu-nic-choice", what, why);
        return Some(finding.mended_by(format!("--nic {}", nearest.nic)));
    }
    None
}

/// GPUs that do not reach each other.
fn peers(cuda: &CudaFacts) -> Option<Finding> {
    let all = cuda.gpus.len();
    let apart: Vec<String> = cuda
        .gpus
        .iter()
        .filter(|gpu| gpu.reaches.len() + 1 < all)
        .map(|gpu| gpu.ordinal.to_string())
        .collect();
    if apart.is_empty() {
        return None;
    }
    let what = format!("GPUs {} do not reach the memory of all others", apart.join(", "));
    let why = "what crosses between them takes a way by the host's memory";
    let finding = Finding::new(Severity::Note, "gpu-peers", what, why);
    Some(finding.mended_by(
        "nvidia-smi topo -p2p r shows which do; ACS and IOMMU off in the firmware lets more",
    ))
}

/// A NIC that does not reach the GPU.
fn direct(facts: &Facts) -> Option<Finding> {
    let gpu = &facts.gpu;
    if gpu.driver.is_none() || gpu.direct().is_some() || facts.rdma.nics.is_empty() {
        return None;
    }
    let what = "the RDMA NIC cannot reach the GPU's memory".to_string();
    let why = "GPUDirect needs nvidia-peermem, or the driver's open kernel modules on Linux 5.12 or newer";
    Some(Finding::new(Severity::Note, "gpudirect", what, why).mended_by("modprobe nvidia-peermem"))
}

/// A library that is not there, or that cannot be called.
fn library(library: &CudaLibraryFacts) -> Option<Finding> {
    if let Some(obstacle) = &library.obstacle {
        let what = format!("{} cannot be used: {obstacle}", library.name);
        let why = match library.name.as_str() {
            "NVRTC" => "operators of your own whose kernels are CUDA C are compiled by it",
            "NCCL" => "--collectives nccl would end before it starts",
            _ => "this program's own kernels compute in its place",
        };
        let finding = Finding::new(Severity::Note, "cuda-library", what, why);
        let package = &library.package;
        return Some(finding.mended_by(format!("python3 -m pip install --upgrade {package}")));
    }
    // a user's operators may do without the others
    let why = match (&library.path, library.name.as_str()) {
        (None, "cuBLASLt") => "matrix products can be computed by it",
        (None, "cuDNN") => "convolutions can be computed by it",
        (None, "NCCL") => "--collectives nccl reduces by it",
        _ => return None,
    };
    let what = format!("{} was not found", library.name);
    let finding = Finding::new(Severity::Note, "cuda-library", what, why);
    Some(finding.mended_by(format!(
        "python3 -m pip install {} (an installed PyTorch has it too), or --cuda-libs FOLDER",
        library.package
    )))
}

#[cfg(test)]
mod tests;
