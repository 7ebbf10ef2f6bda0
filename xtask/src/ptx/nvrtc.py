"""Compiles CUDA C to PTX with NVRTC, which needs no GPU.

nvrtc.py LIBRARY TARGET HEADERS SOURCE...: writes SOURCE's PTX beside its name in the working folder. Errors are what the
compiler says.
"""

import ctypes
import pathlib
import sys


def compile_source(nvrtc: ctypes.CDLL, source: pathlib.Path, options: list[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = source.read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status != 0 or log.value.strip():
        sys.exit(f"{source.name}: {log.value.decode()}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value


def main() -> None:
    library, target, headers, *sources = sys.argv[1:]
    nvrtc = ctypes.CDLL(library)
    # functions that a file does not use are no news
    options = ["--std=c++17", f"--gpu-architecture={target}", f"-I{headers}", "--fmad=false", "-diag-suppress=177"]
    for source in map(pathlib.Path, sources):
        pathlib.Path(source.stem + ".ptx").write_bytes(compile_source(nvrtc, source, options))


main()
