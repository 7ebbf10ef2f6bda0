"""Training of imported modules, and of shipped models, by the processes of a job, under any strategy."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from tensorwire import _job
from tensorwire._job import JobFailed, Said
from tensorwire.torch import _tensors
from tensorwire.torch.importing import ImportedModule

__all__ = ["Engine", "JobFailed", "Trained", "train"]

_TYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "u8": torch.uint8}
#: Samples that are read from a data set at a time.
_READ = 256
#: Checkpoints that stay.
_KEPT = 3

#: What runs the job of a folder, and gives what the process that leads it says. When it is over, ``trained.safetensors`` is in the
#: folder.
Engine = Callable[[Path], Said]


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
    graph: ImportedModule | str,
    data: Any,
    *,
    strategy: str = "ps",
    workers: int = 2,
    servers: int = 2,
    batch: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    optimizer: str | Mapping[str, Any] = "sgd",
    learning_rate: float = 0.01,
    momentum: float | None = None,
    weight_decay: float | None = None,
    shuffle: bool | None = None,
    seed: int = 1,
    checkpoint: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    engine: Engine | None = None,
    **options: Any,
) -> Trained:
    """Trains an imported module and returns losses and weights; the module itself stays as it is.

    ``data`` are a ``Dataset``, a ``DataLoader``, or tensors or NumPy arrays in a tuple or a mapping, with samples along the
    first dimension. They are read once, batch by batch, into files in a temporary folder (set ``TMPDIR`` to choose where), so
    they may be larger than memory; a transform that draws at random is drawn once a sample, and so is a sampler that takes a part. Of an ``IterableDataset`` as much
    is read as ``steps`` need.

    Each step takes ``batch`` samples for each worker, one after the other: the order is the DataLoader's, or the data's own;
    with ``shuffle``, or a DataLoader that shuffles, each epoch has an order of its own, which ``seed`` decides. Samples that
    fill no step are left out. Without ``batch`` it is the DataLoader's, else that of the module's example.

    A model that is shipped, and the data that it learns from, are given by name, as ``tensorwire train`` has them:
    ``train("cifar", "digits", epochs=5)``. The weights have its names.

    ``optimizer`` is a name, or a mapping with its parameters: ``{"name": "adam", "beta1": 0.8}``.

    ``strategy`` is one of ``tensorwire train --strategy``. ``checkpoint`` is a folder that gets a checkpoint of the whole job
    after each epoch, or a mapping: ``{"path": folder, "every": steps}``; with ``resume=folder`` a job goes on from there, with
    ``resume="auto"`` from its own once there are any, and with ``restarts=5`` all processes are started again when one dies;
    with ``fewest_workers=2`` the job goes on with fewer workers where some are lost, down to so many.
    ``options`` are any of the configuration: ``clip_norm=1.0``, ``threads=1``, ``transport="tcp"``, ``asynchronous=True``,
    ``wire="int8"`` (or ``"bf16"``, ``"top-k:0.01"``), ``clients={"interval": 8}``. ``engine`` starts the processes elsewhere: ``tensorwire.ray.train`` has one.

    ``hosts="node0,node1"`` has processes on other hosts, as ``tensorwire train --hosts`` (and ``rsh``, ``listen``) has them. Python and
    this package must be installed at the same path there, and the temporary folder (``TMPDIR``) be on a disk that all of them share.

    Under torchrun, mpirun or srun on one host the processes that they started are the job's: it returns in that of rank 0, and
    ends the others.

    Raises JobFailed where a process fails, and ValueError where what is asked for makes no sense.
    """
    if isinstance(graph, torch.nn.Module):
        raise TypeError(f"import the {type(graph).__name__} first: tensorwire.torch.import_(module, example, loss=...)")
    if (steps is None) == (epochs is None):
        raise ValueError("say how long: give either steps or epochs")
    if engine is not None and "hosts" in options:
        raise ValueError("the engine says where processes run; leave hosts out")
    config = {
        "strategy": strategy,
        "workers": workers,
        "servers": servers,
        "budget": {"epochs": epochs} if steps is None else {"steps": steps},
        "seed": seed,
        **options,
    }
    parameters = dict(optimizer) if isinstance(optimizer, Mapping) else {"name": optimizer}
    if "name" not in parameters:
        raise ValueError("optimizer: give its name, such as {'name': 'adam', 'beta1': 0.8}")
    rate = parameters.pop("learning_rate", learning_rate)
    parameters |= {name: value for name, value in (("momentum", momentum), ("weight_decay", weight_decay)) if value is not None}
    if checkpoint is not None:
        given = dict(checkpoint) if isinstance(checkpoint, Mapping) else {"path": checkpoint}
        if "path" not in given:
            raise ValueError("checkpoint: give the folder as path")
        # the processes may have another working directory
        config["checkpoint"] = {"keep": _KEPT, **given, "path": os.path.abspath(given["path"])}
    if config.get("resume", "auto") != "auto":
        config["resume"] = os.path.abspath(config["resume"])
    job = {
        "optimizer": parameters.pop("name"),
        "learning_rate": rate,
        "parameters": parameters,
        "config": config,
    }
    with tempfile.TemporaryDirectory(prefix="tensorwire-") as name:
        folder = Path(name)
        if isinstance(graph, str):
            job["subject"] = _shipped(graph, data, shuffle)
            config |= {} if batch is None else {"batch": batch}
        else:
            batch = batch or getattr(data, "batch_size", None) or graph.batch
            graph = graph.of_batch(batch)
            shuffle = _shuffles(data) if shuffle is None else shuffle
            if shuffle and isinstance(getattr(data, "dataset", data), IterableDataset):
                raise ValueError("an IterableDataset has an order of its own; leave shuffle out")
            # what is drawn from all of the data needs all
            most = None if steps is None or shuffle else steps * workers * batch
            samples = _written(folder, graph, data, most)
            job["subject"] = {"imported": {"module": graph.description, "samples": samples, "shuffle": shuffle}}
            config |= {"batch": batch, "dtype": graph.dtype}
            for file, tensors in (("constants", graph.constants), ("first", graph.first)):
                with (folder / f"{file}.safetensors").open("wb") as into:
                    _tensors.write(into, tensors)
        # last: where it is, all is
        (folder / "job.json").write_text(json.dumps(job))
        losses, summary = _followed((engine or _job.run)(folder), on_step)
        trained = _tensors.read(folder / "trained.safetensors")
    weights = trained if isinstance(graph, str) else graph.state_dict(trained, summary["steps"])
    return Trained(losses, weights, summary)


def _shipped(model: str, data: Any, shuffle: bool | None) -> dict[str, Any]:
    """Returns what a job is told of a model that is shipped."""
    if not isinstance(data, str):
        raise ValueError(f"'{model}' is shipped and learns from data by name, such as 'digits'; import_ makes a graph of a module of yours")
    if shuffle is not None:
        raise ValueError("the order of data by name is theirs; leave shuffle out")
    return {"shipped": {"model": model, "data": data}}


def _followed(said: Said, on_step: Callable[[dict[str, Any]], None] | None) -> tuple[list[float], dict[str, Any]]:
    """Returns the losses and the summary of a job that says what it does. A step that is made again counts as it was last."""
    losses, summary, status = {}, None, ""
    # whatever is raised here ends the job at once
    with contextlib.closing(said):
        for kind, text in (each for batch in said for each in batch):
            if kind == "failed":
                raise JobFailed(json.loads(text))
            if kind == "refused":
                raise ValueError(json.loads(text))
            if kind == "done":
                summary = json.loads(text)
            elif kind == "ended":
                status = text
            else:
                step = json.loads(text)
                losses[step["step"]] = step["loss"]
                if on_step is not None:
                    on_step(step)
    if summary is None and status == "0":
        # this one has done its part of a job that another one leads
        raise SystemExit(0)
    if summary is None:
        raise JobFailed(f"the process that leads the job ended with status {status}, and said nothing")
    return [losses[step] for step in sorted(losses)], summary


def _shuffles(data: Any) -> bool:
    if not isinstance(data, DataLoader) or not isinstance(data.sampler, RandomSampler):
        return False
    # one that draws some of the samples, or some of them often, is taken as it comes
    return not data.sampler.replacement and data.sampler.num_samples == len(data.sampler.data_source)


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
                files[given["name"]].write(_tensors.raw(_tensors.laid(tensor)))
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
    if not to.is_floating_point and tensor.dtype != torch.bool and tensor.numel():
        limits, least, most = torch.iinfo(to), int(tensor.min()), int(tensor.max())
        if least < limits.min or most > limits.max:
            raise ValueError(
                f"'{name}' of the data has integers from {least} to {most}, and the module takes {limits.min} to {limits.max}"
            )
    return tensor.detach().cpu().to(to)
