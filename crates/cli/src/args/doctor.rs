//! The command line of `tensorwire doctor`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tensorwire_doctor::{CudaSearch, LibrarySearch};
use tensorwire_launch::{GidChoice, RSH, VerbsOptions};

use super::wire::parse_gid;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire doctor
      this machine: facts, a trial of every transport, what to fix
  tensorwire doctor --json
      the same as one object, on one line
  tensorwire doctor --peer node1
      also the way to node1, and what is different there
  tensorwire doctor --peer node1 --nic mlx5_1 --gid 3

A trial writes 8 bytes to 1 MiB both ways (from less than a packet to many full
ones) and reads 1 MiB; every byte is verified on arrival. Where small writes
arrive and large ones do not, some switch or interface on the way has a smaller
MTU than both ends. On this machine both ends are in one process. --peer starts
a process on the other host as `train --hosts` does: by `RSH HOST COMMAND`, with
this program at the same path; TCP is tried, and RDMA where both hosts can.
Nothing is changed on any machine.

GPUs are looked for by CUDA's driver, and its libraries in the folders of
--cuda-libs, where the dynamic linker looks, in CUDA_HOME, and among the
packages of python3, in this order. A machine without a GPU trains on its CPU:
nothing is wrong with it. With --cuda-driver a GPU is asked for, and must be
there.

Findings: `error` keeps training, or what was asked for, from working;
`warning`: it works, but not as well as the machine could; `note`: good to know.
The line with → is what to type. No RDMA is a note: training takes shared memory
on one host and TCP between hosts. With --nic or --gid RDMA is asked for, and
must be there.

Exit status: 0 no error; 1 an error; 2 something given cannot be right.";

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Try the way to this host, too
    ///
    /// And compare the two.
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
    /// Remote shell
    ///
    /// What starts a process on that host: it is given the host and a command line.
    #[arg(long, value_name = "COMMAND", hide_short_help = true, default_value = RSH, requires = "peer")]
    pub(crate) rsh: String,
    /// Where that process calls this machine
    ///
    /// Port 0: the system chooses. [default: this machine's address towards that host]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "peer")]
    pub(crate) listen: Option<SocketAddr>,
    /// RDMA devices, as in mlx5_0 or mlx5_0:2,mlx5_1:2
    ///
    /// [default: as a job chooses]
    #[arg(long, value_name = "NAME[:PORT],...", value_delimiter = ',')]
    nic: Vec<String>,
    /// Entry of the device's GID table
    ///
    /// By its index or its address. [default: as a job chooses]
    #[arg(long, value_name = "INDEX|ADDRESS", value_parser = parse_gid)]
    gid: Option<GidChoice>,
    /// The library of CUDA's driver
    ///
    /// [default: libcuda.so.1, where the dynamic linker finds it]
    #[arg(long, value_name = "FILE")]
    cuda_driver: Option<PathBuf>,
    /// Where to look first for CUDA's libraries
    ///
    /// Folders with cuBLASLt, cuDNN, NVRTC, NCCL.
    #[arg(long, value_name = "FOLDER", value_delimiter = ',')]
    cuda_libs: Vec<PathBuf>,
    /// Print one object of JSON instead
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorArgs {
    pub(crate) fn options(&self) -> VerbsOptions {
        VerbsOptions { nics: self.nic.clone(), gid: self.gid, ..VerbsOptions::default() }
    }

    pub(crate) fn cuda(&self) -> CudaSearch {
        let libraries = LibrarySearch {
            folders: self.cuda_libs.clone(),
            cuda_home: std::env::var_os("CUDA_HOME").map(PathBuf::from),
            site_packages: Vec::new(),
        };
        CudaSearch { driver: self.cuda_driver.clone(), libraries }
    }
}
