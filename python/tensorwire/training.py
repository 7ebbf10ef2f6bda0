"""Training of imported modules by the processes of a job, under any strategy."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from tensorwire.torch import _tensors
from tensorwire.torch.importing import ImportedModule

_TYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "u8": torch.uint8}
#: Samples that are read from a data set at a time.
_READ = 256


class JobFailed(RuntimeError):
    """A job was not done. Says the first cause, which names the process and the step."""


@dataclass(frozen=True)
class Trained:
    """What came of a job."""

    #: The mean of the workers' losses, step by step.
    losses: list[float]
    #: What the module's ``load_state_dict`` takes.
    state_dict: dict[str, Tensor]
    #: What ``tensorwire train --json`` prints.
    summary: dict[str, Any]


def train(
    graph: ImportedModule,
    data: Any,
    *,
    strategy: str = "ps",
    workers: int = 2,
    servers: int = 2,
    batch: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    optimizer: str = "sgd",
    learning_rate: float = 0.01,
    momentum: float | None = None,
    weight_decay: float | None = None,
    shuffle: bool | None = None,
    seed: int = 1,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Trained:
    """Trains an imported module and returns losses and weights; the module itself stays as it is.

    ``data`` are a ``Dataset``, a ``DataLoader``, or tensors or NumPy arrays in a tuple or a mapping, with samples along the
    first dimension. They are read once, batch by batch, into files in a temporary folder (set ``TMPDIR`` to choose where), so
    they may be larger than memory; a transform that draws at random is drawn once a sample. Of an ``IterableDataset`` as much
    is read as ``steps`` need.

    Each step takes ``batch`` samples for each worker, one after the other: the order is the DataLoader's, or the data's own;
    with ``shuffle``, or a DataLoader that shuffles, each epoch has an order of its own, which ``seed`` decides. Samples that
    fill no step are left out. Without ``batch`` it is the DataLoader's, else that of the module's example.

    ``strategy`` is one of ``tensorwire train --strategy``. ``options`` are any of the configuration: ``clip_norm=1.0``,
    ``threads=1``, ``transport="tcp"``, ``asynchronous=True``, ``clients={"interval": 8}``.

    Raises JobFailed where a process fails, and ValueError where what is asked for makes no sense.
    """
    if (steps is None) == (epochs is None):
        raise ValueError("say how long: give either steps or epochs")
    batch = batch or getattr(data, "batch_size", None) or graph.batch
    graph = graph.of_batch(batch)
    shuffle = _shuffles(data) if shuffle is None else shuffle
    # what is drawn from all of the data needs all
    most = None if steps is None or shuffle else steps * workers * batch
    job = {
        "module": graph.description,
        "shuffle": shuffle,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "config": {
            "strategy": strategy,
            "workers": workers,
            "servers": servers,
            "batch": batch,
            "budget": {"epochs": epochs} if steps is None else {"steps": steps},
            "dtype": graph.dtype,
            "seed": seed,
            **options,
        },
    }
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as name:
        folder = Path(name)
        job["samples"] = _written(folder, graph, data, most)
        (folder / "job.json").write_text(json.dumps(job))
        for file, tensors in (("constants", graph.constants), ("first", graph.first)):
            with (folder / f"{file}.safetensors").open("wb") as into:
                _tensors.write(into, tensors)
        losses, summary = _run(folder, on_step)
        trained = _tensors.read(folder / "trained.safetensors")
    return Trained(losses, graph.state_dict(trained, summary["steps"]), summary)


def _run(folder: Path, on_step: Callable[[dict[str, Any]], None] | None) -> tuple[list[float], dict[str, Any]]:
    """Runs the job of a folder in a process of its own; returns its losses and its summary."""
    command = [sys.executable, "-m", "tensorwire._job", str(folder)]
    # the processes of the job find what this one found
    found = os.pathsep.join(path for path in sys.path if path)
    losses, summary = [], None
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": found}
    ) as process:
        for line in process.stdout:
            kind, said = line.split(" ", 1)
            if kind == "failed":
                raise JobFailed(json.loads(said))
            if kind == "refused":
                raise ValueError(json.loads(said))
            if kind == "done":
                summary = json.loads(said)
                continue
            step = json.loads(said)
            losses.append(step["loss"])
            if on_step is not None:
                on_step(step)
    if summary is None:
        raise JobFailed(f"the process that leads the job ended with status {process.returncode}, and said nothing")
    return losses, summary


def _shuffles(data: Any) -> bool:
    return isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler)


def _batches(data: Any) -> Iterable[Any]:
    """Returns the data as batches of any sizes, in their own order."""
    if isinstance(data, DataLoader):
        if not _shuffles(data):
            return data
        return DataLoader(
            data.dataset, batch_size=_READ, collate_fn=data.collate_fn, num_workers=data.num_workers
        )
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=_READ)
    if isinstance(data, (tuple, list)) or isinstance(data, Mapping) or not isinstance(data, Dataset):
        return _slices(data)
    return DataLoader(data, batch_size=_READ)


def _slices(data: Any) -> Iterator[Any]:
    """Gives arrays or tensors some samples at a time."""
    if not isinstance(data, (tuple, list, Mapping)):
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            raise ValueError(f"data of {type(data).__name__} are not known; give a Dataset, a DataLoader, or tensors")
        if not hasattr(data, "shape"):
            yield from DataLoader(data, batch_size=_READ)
            return
        data = (data,)
    arrays = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"the data have {sizes} samples; give each tensor as many as the others")
    for start in range(0, next(iter(sizes.values())), _READ):
        part = {name: torch.as_tensor(array[start : start + _READ]) for name, array in arrays.items()}
        yield part if isinstance(data, Mapping) else tuple(part.values())


def _written(folder: Path, graph: ImportedModule, data: Any, most: int | None) -> int:
    """Writes the data into a file for each tensor; returns how many samples there are."""
    inputs = graph.description["inputs"]
    names, samples = graph.inputs, 0
    files = {given["name"]: (folder / f"{given['name']}.bin").open("wb") for given in inputs}
    try:
        for batch in _batches(data):
            tensors = _named(batch, names)
            count = len(next(iter(tensors.values())))
            taken = count if most is None else min(count, most - samples)
            for given in inputs:
                tensor = _converted(given, tensors[given["name"]])[:taken]
                files[given["name"]].write(_tensors.raw(tensor.contiguous()))
            samples += taken
            if samples == most:
                break
    finally:
        for file in files.values():
            file.close()
    return samples


def _named(batch: Any, names: list[str]) -> dict[str, Tensor]:
    if isinstance(batch, Mapping):
        lacking = [name for name in names if name not in batch]
        if lacking:
            raise ValueError(f"the data lack {', '.join(lacking)}; the module was imported with them")
        return {name: batch[name] for name in names}
    found = list(batch) if isinstance(batch, (tuple, list)) else [batch]
    if len(found) != len(names):
        raise ValueError(f"the data have {len(found)} tensors, and the module was imported with {len(names)}")
    return dict(zip(names, found, strict=True))


def _converted(given: dict[str, Any], tensor: Tensor) -> Tensor:
    """Returns a tensor of the data in the type that the graph takes."""
    name, dims = given["name"], given["dims"][1:]
    if list(tensor.shape[1:]) != dims:
        raise ValueError(f"'{name}' of the data is {list(tensor.shape[1:])} a sample, and the module was imported with {dims}")
    to = _TYPES[given["dtype"]]
    if tensor.is_floating_point() != to.is_floating_point:
        raise ValueError(f"'{name}' of the data is of {tensor.dtype}, and the module takes {to}; convert it")
    if not to.is_floating_point and tensor.numel() and to == torch.int32 and abs(int(tensor.abs().max())) >= 2**31:
        raise ValueError(f"'{name}' of the data has integers beyond 32 bits; use smaller ones")
    return tensor.detach().cpu().to(to)
