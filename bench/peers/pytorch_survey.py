"""Which modules of torchvision, timm, transformers and torch.nn tensorwire imports, and whether it computes what PyTorch does.

Each is made from its configuration, small, with first weights that are drawn; nothing is downloaded. It is imported and trained for one
step by a job of one process, at a rate of 1, so that what the weights lose are the gradients. Loss, gradients and running statistics
are held against PyTorch's, of f64 unless --dtype says so: what differs then is not rounding. Nothing is dropped where PyTorch would draw
other elements. Exit status: 0 if each is the same or refused, 1 if one differs or fails.
"""

import argparse
import collections
import copy
import json
import logging
import pathlib
import sys
import time
import warnings
from typing import Any

import torch
from survey_modules import Subject, subjects
from torch import Tensor, nn

import tensorwire
from tensorwire.torch import ModuleImportError, import_

#: What may come of a module, the best first.
SAME, RUNS, DIFFERS, REFUSED, FAILED = "same", "runs", "differs", "refused", "failed"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modules", help="only those whose names have one of these in them, by commas [all]")
    parser.add_argument("--dtype", choices=["f32", "f64"], default="f64", help="[%(default)s]")
    parser.add_argument("--device", default="cpu", help="what computes, as of tensorwire train [%(default)s]")
    parser.add_argument("--cuda-driver", help="as of tensorwire train")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="relative, of losses and of each parameter's gradient [%(default)s]")
    parser.add_argument("--only-import", action="store_true", help="train nothing")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown at the end")
    parser.add_argument("--json", type=pathlib.Path, help="append one line of JSON a module")
    return parser.parse_args()


def without_dropping(module: nn.Module) -> nn.Module:
    """Returns a module with all rates of dropping at 0, wherever they are kept."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for kept in (part, getattr(part, "config", None)):
            for name, value in list(vars(kept).items()) if kept is not None else []:
                if isinstance(value, float) and ("drop" in name or (name == "p" and "Depth" in type(part).__name__)):
                    setattr(kept, name, 0.0)
    return module


def cast(batch: Any, to: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return {name: cast(tensor, to) for name, tensor in batch.items()}
    if isinstance(batch, tuple):
        return tuple(cast(tensor, to) for tensor in batch)
    return batch.to(to) if batch.is_floating_point() else batch


def eager(module: nn.Module, batch: Any, subject: Subject) -> Tensor:
    """Returns PyTorch's loss, and leaves the gradients at the module."""
    if subject.loss is None:
        output = module(**batch) if isinstance(batch, dict) else module(*batch)
        loss = output if isinstance(output, Tensor) else output.loss
    else:
        loss = subject.loss(module(*batch[:-1]), batch[-1])
    loss.backward()
    return loss.detach()


def difference(module: nn.Module, first: dict[str, Tensor], trained: dict[str, Tensor]) -> tuple[float, str]:
    """Returns by how much the gradients, or the running statistics, differ most, and of what. A gradient is held against its own
    length, or against a part of all of them where it should be 0."""
    gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    worst = (0.0, "")
    for name, gradient in gradients.items():
        found = first[name] - trained[name]
        by = (found - gradient).norm() / torch.maximum(gradient.norm(), 1e-4 * whole)
        worst = max(worst, (by.item(), name))
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and name in trained:
            # a mean that should be 0 is what rounding leaves
            by = (trained[name] - buffer).abs().max() / buffer.abs().max().clamp(min=1e-3)
            worst = max(worst, (by.item(), name))
    return worst


def examined(given: argparse.Namespace, subject: Subject) -> dict[str, Any]:
    """Returns what came of one module."""
    torch.manual_seed(1)
    to = {"f32": torch.float32, "f64": torch.float64}[given.dtype]
    module = subject.module().to(to).train()
    if not subject.draws:
        without_dropping(module)
    batch = cast(subject.batch(), to)
    begun = time.perf_counter()
    try:
        graph = import_(module, batch, loss=subject.loss)
    except ModuleImportError as error:
        return {"state": REFUSED, "why": str(error), "operator": error.operator}
    found = {"nodes": len(graph.description["nodes"]), "operators": len(graph.operators), "import_seconds": time.perf_counter() - begun}
    if given.only_import:
        return found | {"state": RUNS}
    first = copy.deepcopy(module.state_dict())
    options = {"device": given.device} | ({"cuda_driver": given.cuda_driver} if given.cuda_driver else {})
    done = tensorwire.train(graph, batch, strategy="local", workers=1, steps=1, learning_rate=1.0, threads=1, **options)
    if subject.draws:
        return found | {"state": RUNS if done.losses[0] == done.losses[0] else DIFFERS}
    wanted = eager(module, batch, subject)
    by_loss = (abs(done.losses[0] - wanted) / abs(wanted)).item()
    by_gradient, name = difference(module, first, done.state_dict)
    fits = by_loss <= given.tolerance and by_gradient <= given.tolerance
    return found | {"state": SAME if fits else DIFFERS, "loss": by_loss, "gradient": by_gradient, "of": name}


def line(name: str, found: dict[str, Any]) -> str:
    if found["state"] in (REFUSED, FAILED):
        return f"{name}: {found['state']}: {found['why'][:400]}"
    size = f"{found['nodes']} nodes of {found['operators']} operators, imported in {found['import_seconds']:.1f} s"
    if "loss" not in found:
        return f"{name}: {found['state']}: {size}"
    return f"{name}: {found['state']}: {size}; loss differs by {found['loss']:.0e}, gradients by {found['gradient']:.0e} ({found['of']})"


def table(all_found: dict[str, dict[str, list[str]]]) -> str:
    def named(name: str) -> str:
        return f'"{name}"' if ", " in name else name.removeprefix("timm ")

    rows = [f"| {origin} | {', '.join(map(named, states[SAME] + states[RUNS]))} |" for origin, states in all_found.items()]
    return "\n".join(["| from | modules |", "|---|---|", *rows])


def main() -> int:
    given = arguments()
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    wanted = given.modules.split(",") if given.modules else [""]
    all_found: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for origin, name, subject in subjects():
        if not any(part in name for part in wanted):
            continue
        try:
            found = examined(given, subject)
        except Exception as error:
            found = {"state": FAILED, "why": f"{type(error).__name__}: {error}"}
        print(line(name, found), flush=True)
        all_found[origin][found["state"]].append(name)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps({"from": origin, "module": name, "dtype": given.dtype} | found) + "\n")
    counts = collections.Counter(
        {state: sum(len(states[state]) for states in all_found.values()) for state in (SAME, RUNS, DIFFERS, REFUSED, FAILED)}
    )
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    if given.table:
        print(table(all_found))
    return int(counts[DIFFERS] + counts[FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main())
