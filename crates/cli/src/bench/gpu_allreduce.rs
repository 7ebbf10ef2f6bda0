//! `tensorwire bench allreduce --device cuda`: vectors in the memory of GPUs, reduced by the graph and by NCCL.

use std::path::PathBuf;

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_bench::{GpuAllreduceResult, GpuAllreduceSpec, GpuSystem, Machine, gpu_allreduce};
use tensorwire_train::CudaLibraries;

use super::allreduce::{sizes_of, spec_of};
use super::{Lines, announce};
use crate::Failure;
use crate::args::AllreduceArgs;
use crate::job::job_spec;
use crate::output::{print, print_text};
use crate::table::{live, table_by};

/// Of the table, and above rows as they come.
const HEADER: [&str; 9] =
    ["processes", "GPUs", "by", "size", "time", "p10", "p90", "GB/s", "bus GB/s"];

pub(super) fn run(
    args: &AllreduceArgs,
    gpus: &(Option<PathBuf>, CudaLibraries),
    lines: &mut Lines,
) -> Result<(), Failure> {
    let job = job_spec()?;
    announce(&Machine::here());
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for &ranks in &args.ranks {
        let mut present = Vec::new();
        for system in GpuSystem::ALL {
            // whatever the size is
            let spec = GpuAllreduceSpec::of(system, &spec_of(args, ranks, 4), gpus.clone());
            match spec.absence() {
                Some(why) => {
                    let name = system.name();
                    missing.push(format!("{name}, {ranks} processes: not measured: {why}"));
                }
                None => present.push(system),
            }
        }
        for &bytes in sizes_of(args) {
            for system in &present {
                let spec =
                    GpuAllreduceSpec::of(*system, &spec_of(args, ranks, bytes), gpus.clone());
                let result = gpu_allreduce(&spec, &job)?;
                lines.append(&result)?;
                let row = row(&result);
                live(&HEADER, &row, rows.is_empty());
                rows.push(row);
            }
        }
    }
    if !rows.is_empty() {
        show(&rows)?;
    }
    missing.iter().try_for_each(print)
}

fn show(rows: &[Vec<String>]) -> Result<(), Failure> {
    print(table_by(4, &HEADER, rows, &[0, 1, 3, 4, 5, 6, 7, 8]))?;
    print_text(
        "medians of the slowest process's time, from a meeting on until its GPU has the result; GB/s: bytes of the vector \
         over it; bus: times 2(n-1)/n, as nccl-tests count it. tensorwire: the graph's all-reduce, with a pass over memory that \
         makes the vector, and one by which each has the result of its own; nccl: ncclAllReduce in place. After every operation all vectors were compared whole.",
    )
}

fn row(result: &GpuAllreduceResult) -> Vec<String> {
    // fits: for people
    let rate = |bytes_per_s: f64| format!("{:.2}", bytes_per_s / 1e9);
    let by = match &result.version {
        Some(version) => format!("{} {version}", result.system),
        None => result.system.to_string(),
    };
    vec![
        result.ranks.to_string(),
        result.gpus.to_string(),
        by,
        human_bytes(result.bytes as u64),
        human_seconds(result.median_s),
        human_seconds(result.p10_s),
        human_seconds(result.p90_s),
        rate(result.algorithm_bytes_per_s),
        rate(result.bus_bytes_per_s),
    ]
}
