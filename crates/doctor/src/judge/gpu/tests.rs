//! Made-up GPUs, and what the judge must say of them.

use super::super::tests::{found, mend, plain, with_nic};
use super::super::{machine, worst};
use super::*;
use crate::facts::{Gpu, NicDistance};
use tensorwire_launch::Obstacle;

/// A GPU with which nothing is wrong.
fn good() -> GpuFacts {
    GpuFacts {
        name: "GPU of tests".into(),
        compute: (9, 0),
        virtual_memory: true,
        export: true,
        rdma: true,
        dmabuf: true,
        memory_operations: true,
        writes_ordering: "owner".into(),
        flush: true,
        ..GpuFacts::default()
    }
}

fn with_gpus(facts: Facts, gpus: Vec<GpuFacts>) -> Facts {
    let cuda = CudaFacts { version: Some("12.4".into()), gpus, ..CudaFacts::default() };
    let driver = Some("NVIDIA 550".into());
    let gpu = Gpu { driver, devices: 1, peermem: true, cuda, ..Gpu::default() };
    Facts { gpu, ..facts }
}

#[test]
fn a_machine_without_a_gpu_has_nothing_to_mend() {
    let mut facts = plain();
    facts.gpu.cuda.obstacle = Some(Obstacle { reason: "no".into(), mend: "install".into() });
    assert_eq!(gpus(&facts), []);
    // but for who names a driver
    facts.gpu.cuda.asked = true;
    let findings = machine(&facts, false);
    assert_eq!(found(&findings, "gpu-unusable").severity, Severity::Error);
    assert_eq!(mend(&findings, "gpu-unusable"), "install");
}

#[test]
fn a_gpu_that_cannot_be_used_is_a_warning_with_its_fix() {
    let mut facts = plain();
    facts.gpu.on_bus = vec!["0000:3b:00.0".into()];
    facts.gpu.cuda.obstacle =
        Some(Obstacle { reason: "no file".into(), mend: "--gpus all".into() });
    let findings = gpus(&facts);
    assert!(findings[0].what.contains("0000:3b:00.0"), "{findings:?}");
    assert!(mend(&findings, "gpu-no-driver").contains("nvidia-driver"));
    assert_eq!(worst(&findings), Severity::Warning);
    facts.gpu.driver = Some("NVIDIA 550".into());
    assert_eq!(mend(&gpus(&facts), "gpu-unusable"), "--gpus all");
}

#[test]
fn a_gpu_that_the_driver_does_not_show_is_a_warning_and_without_a_card_there_is_none() {
    let mut facts = with_gpus(plain(), Vec::new());
    assert_eq!(gpus(&facts), []);
    facts.gpu.on_bus = vec!["0000:3b:00.0".into()];
    let findings = gpus(&facts);
    assert_eq!(found(&findings, "gpu-hidden").severity, Severity::Warning);
    assert!(mend(&findings, "gpu-hidden").contains("CUDA_VISIBLE_DEVICES"));
}

#[test]
fn a_good_gpu_is_in_order() {
    let findings = gpus(&with_gpus(with_nic(), vec![good()]));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].severity, findings[0].id), (Severity::Ok, "gpu"));
    assert!(findings[0].what.contains("a GPU can be used, by a driver of CUDA 12.4"));
}

#[test]
fn what_a_gpu_lacks_is_told_with_what_it_costs() {
    let bad = GpuFacts {
        compute: (7, 5),
        export: false,
        writes_ordering: "none".into(),
        flush: false,
        ..good()
    };
    let findings = gpus(&with_gpus(with_nic(), vec![bad.clone()]));
    assert!(found(&findings, "gpu-too-old").what.contains("7.5"));
    assert!(mend(&findings, "gpu-no-export").contains("--ipc=host"));
    found(&findings, "gpu-unordered");
    // without a NIC nobody writes there
    let findings = gpus(&with_gpus(plain(), vec![bad]));
    assert!(!findings.iter().any(|finding| finding.id == "gpu-unordered"));
}

#[test]
fn a_gpu_without_kernels_is_none_that_can_be_used() {
    let old = GpuFacts { compute: (7, 5), ..good() };
    let findings = gpus(&with_gpus(plain(), vec![old.clone(), good()]));
    assert!(found(&findings, "gpu").what.starts_with("a GPU can be used"), "{findings:?}");
    assert_eq!(found(&findings, "gpu-too-old").severity, Severity::Warning);
    let mut facts = with_gpus(plain(), vec![old]);
    assert!(gpus(&facts).iter().all(|finding| finding.id != "gpu"));
    facts.gpu.cuda.asked = true;
    assert_eq!(found(&gpus(&facts), "gpu-too-old").severity, Severity::Error);
}

#[test]
fn gpus_that_do_not_reach_each_other_are_named() {
    let reaching =
        |ordinal, reaches: &[usize]| GpuFacts { ordinal, reaches: reaches.into(), ..good() };
    let findings =
        gpus(&with_gpus(plain(), vec![reaching(0, &[1]), reaching(1, &[0]), reaching(2, &[])]));
    assert!(found(&findings, "gpu-peers").what.contains("GPUs 0, 1, 2"), "{findings:?}");
    let findings = gpus(&with_gpus(plain(), vec![reaching(0, &[1]), reaching(1, &[0])]));
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn the_distance_to_the_nics_counts() {
    let nic = |nic: &str, distance| NicDistance { nic: nic.into(), numa_node: None, distance };
    let with = |nics| gpus(&with_gpus(with_nic(), vec![GpuFacts { nics, ..good() }]));
    assert_eq!(with(vec![nic("a", Some(10))]).len(), 1);
    assert_eq!(with(vec![nic("a", None)]).len(), 1, "nobody knows");
    let findings = with(vec![nic("a", Some(21))]);
    assert!(found(&findings, "gpu-nic-far").what.contains("a, are at a distance of 21"));
    let findings = with(vec![nic("a", Some(21)), nic("b", Some(10))]);
    assert_eq!(mend(&findings, "gpu-nic-choice"), "--nic b");
}

#[test]
fn libraries_that_are_missing_can_be_installed() {
    let library = |name: &str, path: Option<&str>| CudaLibraryFacts {
        name: name.into(),
        path: path.map(Into::into),
        place: None,
        version: None,
        obstacle: None,
        package: "nvidia-cublas-cu12".into(),
    };
    let mut facts = with_gpus(plain(), vec![good()]);
    facts.gpu.cuda.libraries = vec![library("cuBLASLt", None), library("cuDNN", Some("/x"))];
    let findings = gpus(&facts);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(mend(&findings, "cuda-library").contains("pip install nvidia-cublas-cu12"));
    assert!(found(&findings, "cuda-library").what.contains("cuBLASLt"));
    facts.gpu.cuda.libraries = vec![library("cuBLASLt", Some("/x")), library("cuDNN", None)];
    let findings = gpus(&facts);
    assert!(found(&findings, "cuda-library").what.contains("cuDNN"), "{findings:?}");
    facts.gpu.cuda.libraries = vec![library("NVRTC", None), library("NCCL", None)];
    let findings = gpus(&facts);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(found(&findings, "cuda-library").what.contains("NCCL was not found"), "{findings:?}");
    let old = CudaLibraryFacts {
        obstacle: Some("/x is of version 11.0.0; 12 or 13 can be used".into()),
        ..library("cuBLASLt", Some("/x"))
    };
    facts.gpu.cuda.libraries = vec![old];
    let findings = gpus(&facts);
    assert!(found(&findings, "cuda-library").what.contains("version 11.0.0"), "{findings:?}");
    assert!(mend(&findings, "cuda-library").contains("--upgrade nvidia-cublas-cu12"));
}
