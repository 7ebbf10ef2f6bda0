"""Time and memory of causal attention, forward and backward, beside PyTorch's `scaled_dot_product_attention`:
12 heads of 64, batch 1, f32, each measurement a new process, in turns. Exit status: 0 all was measured.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version

from compare import machine

HEADS, DEPTH = 12, 64
FIELDS = ("forward_ms", "backward_ms", "peak_bytes")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attention", default="target/release/examples/attention", help="the program [%(default)s]")
    parser.add_argument("--lengths", default="1024,2048,4096", help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a length")
    # one measurement of PyTorch, in a process of its own
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(given, length):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(given.threads)
    q, k, v, dy = (torch.rand(1, HEADS, length, DEPTH) * 2 - 1 for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_(True)

    def median(run):
        run()
        took = []
        begin = time.perf_counter()
        while len(took) < 5 or time.perf_counter() - begin < 1:
            took.append(run())
        return statistics.median(took) * 1e3

    def forward():
        start = time.perf_counter()
        scaled_dot_product_attention(q, k, v, is_causal=True)
        return time.perf_counter() - start

    def backward():
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        q.grad = k.grad = v.grad = None
        start = time.perf_counter()
        y.backward(dy)
        return time.perf_counter() - start

    # what importing PyTorch takes is not attention's
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    operands = 4 * q.numel() * q.element_size()
    found = {"forward_ms": median(forward), "backward_ms": median(backward)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**found, "peak_bytes": peak - before + operands}))


def run(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    given = arguments()
    if given.measure:
        return measure(given, given.measure)
    print(f"{'length':>6} {'forward':>22} {'backward':>24} {'memory':>22}")
    for length in map(int, given.lengths.split(",")):
        load, rounds = os.getloadavg()[0], []
        for _ in range(given.rounds):
            ours = run(given.attention, str(length), str(given.threads))
            theirs = run(
                sys.executable, __file__, "--measure", str(length), "--threads", str(given.threads)
            )
            rounds.append((ours, theirs))
        row = {"bench": "pytorch-attention", "length": length, "threads": given.threads, "rounds": given.rounds}
        row |= {"version": version("torch"), "machine": machine(load, [])}
        for field in FIELDS:
            for at, whose in enumerate(("tensorwire", "pytorch")):
                row[f"{whose}_{field}"] = statistics.median(one[at][field] for one in rounds)
            row[f"{field}_ratio"] = statistics.median(one[0][field] / one[1][field] for one in rounds)
        cells = []
        for field, unit, scale in zip(FIELDS, ("ms", "ms", "MiB"), (1, 1, 1 / (1 << 20))):
            pair = (row[f"tensorwire_{field}"] * scale, row[f"pytorch_{field}"] * scale)
            cells.append(f"{pair[0]:.1f}/{pair[1]:.1f} {unit} {row[f'{field}_ratio']:.2f}")
        print(f"{length:6} {cells[0]:>22} {cells[1]:>24} {cells[2]:>22}", flush=True)
        if given.json:
            with given.json.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
