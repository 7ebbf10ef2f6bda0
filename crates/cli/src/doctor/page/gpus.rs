//! The section of GPUs: one line where there is none.

use tensorwire_base::human_bytes;
use tensorwire_doctor::{CudaLibraryFacts, Facts, GpuFacts};

use super::Page;

pub(super) fn gpus(page: &mut Page, facts: &Facts) {
    let cuda = &facts.gpu.cuda;
    page.section("GPUs");
    if cuda.gpus.is_empty() {
        let why = cuda.obstacle.as_ref().map_or("the driver sees none", |why| &why.reason);
        page.line("none", why);
        if !facts.gpu.on_bus.is_empty() {
            page.line("on the bus", facts.gpu.on_bus.join(", "));
        }
        return;
    }
    let version = cuda.version.as_deref().unwrap_or("unknown");
    let library = cuda.library.as_deref().unwrap_or("libcuda.so.1");
    page.line("driver", format_args!("of CUDA {version} ({library})"));
    for gpu in &cuda.gpus {
        one(page, gpu, cuda.gpus.len());
    }
    for CudaLibraryFacts { name, path, place, version, obstacle, .. } in &cuda.libraries {
        let version = version.as_ref().map_or_else(String::new, |version| format!("{version}, "));
        let used = if obstacle.is_some() { ", cannot be used" } else { "" };
        match (path, place) {
            (Some(path), Some(place)) => {
                page.line(name, format_args!("{version}{path} ({place}{used})"))
            }
            _ => page.line(name, "not found"),
        }
    }
}

fn one(page: &mut Page, gpu: &GpuFacts, count: usize) {
    let (major, minor) = gpu.compute;
    let node =
        |node: Option<u32>| node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
    let memory = human_bytes(gpu.memory_bytes);
    page.line(
        &format!("GPU {}", gpu.ordinal),
        format_args!(
            "{}, compute capability {major}.{minor}, {memory}, {}{}",
            gpu.name,
            gpu.pci_bus_id,
            node(gpu.numa_node)
        ),
    );
    let yes = |it: bool| if it { "yes" } else { "no" };
    page.line(
        "",
        format_args!(
            "memory shared with processes: {}, with NICs: {}, as dma-buf: {}; words of streams: {}",
            yes(gpu.export),
            yes(gpu.rdma),
            yes(gpu.dmabuf),
            yes(gpu.memory_operations)
        ),
    );
    let flush = if gpu.flush { "can be flushed" } else { "cannot be flushed" };
    let ordering = match gpu.writes_ordering.as_str() {
        "owner" => "in order for this GPU",
        "all" => "in order for every GPU",
        _ => "in no order",
    };
    page.line("", format_args!("writes of a NIC: {ordering}, {flush}"));
    if count > 1 {
        let reached: Vec<String> = gpu.reaches.iter().map(usize::to_string).collect();
        let reached = reached.join(", ");
        page.line("", format_args!("reaches the memory of GPUs: {}", super::or_none(&reached)));
    }
    for nic in &gpu.nics {
        let distance = nic.distance.map_or_else(
            || "at an unknown distance".to_string(),
            |distance| format!("at a distance of {distance} (10 is next to each other)"),
        );
        page.line("", format_args!("{}: {distance}{}", nic.nic, node(nic.numa_node)));
    }
}
