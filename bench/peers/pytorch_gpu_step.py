"""A training step of PyTorch on a GPU: eager, and as one CUDA graph that holds the whole step.

The model is tensorwire's (pytorch_models.py), a batch of made-up samples, SGD with momentum, numbers of f32 throughout
or, with --precision tf32, products of TF32. Prints one line of JSON: milliseconds of a step, the mean of those behind
some that warm up. `cargo xtask gpu` takes turns with it. With --device cpu there is no graph: a test of this script.
"""

import argparse
import json
import time

import torch

from pytorch_models import Variables, loss_of
from pytorch_transformers import CHARACTERS, MODULES

WARM_UP = 3
VOCABULARY = {"gpt2-small": 50257, "bert-mini": 30522}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=["f32", "tf32"], default="f32")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def batch_of(model, batch):
    window = MODULES.get(model, (None,))[0]
    if window:
        tokens = torch.randint(VOCABULARY.get(model, CHARACTERS), (batch, window + 1))
        return {"input": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    size = {"mlp": 28, "fcn5": 28, "cifar": 32, "inception-v3": 299}.get(model, 224)
    channels = 1 if size == 28 else 3
    is_sequence = model in ("lstm", "gru")
    shape = (80 * batch, 1024) if is_sequence else (batch, size, size, channels)
    classes = 1000 if is_sequence or model in ("resnet50", "vit-small") else 10
    return {"input": torch.rand(shape), "labels": torch.randint(classes, (batch,))}


def variables_on(device, model, feed):
    """What is learned, made on the host by a first pass and moved."""
    v = Variables(1)
    v.exact_dropout = False
    with torch.no_grad():
        loss_of(model, v, feed, 1)
    if v.transformer is not None:
        v.transformer.module.to(device)
        v.all = dict(v.transformer.module.named_parameters())
    else:
        v.all = {name: made.detach().to(device).requires_grad_(True) for name, made in v.all.items()}
    return v


def mean_ms(device, step, steps):
    for _ in range(WARM_UP):
        step()
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        # a job reads its loss in every step
        float(step())
    wait()
    return (time.perf_counter() - start) * 1e3 / steps


def graph_ms(step, steps):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return mean_ms("cuda", replay, steps)


def main():
    given = arguments()
    torch.manual_seed(1)
    is_tf32 = given.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = True
    host = batch_of(given.model, given.batch)
    # a first pass makes the variables: one sample's suffices but where the batch is among the samples
    v = variables_on(given.device, given.model, host)
    torch.set_default_device(given.device)
    feed = {name: tensor.to(given.device) for name, tensor in host.items()}
    optimizer = torch.optim.SGD(v.all.values(), lr=1e-4, momentum=0.9)

    def step():
        # as a job is fed: every step has a batch of its own
        for name, tensor in host.items():
            feed[name].copy_(tensor, non_blocking=True)
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(given.model, v, feed, 1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    row = {"model": given.model, "batch": given.batch, "precision": given.precision, "torch": torch.__version__}
    if given.device == "cuda":
        host = {name: tensor.pin_memory() for name, tensor in host.items()}
        row["gpu"] = torch.cuda.get_device_name()
    row["eager_ms"] = mean_ms(given.device, step, given.steps)
    row["graph_ms"] = graph_ms(step, given.steps) if given.device == "cuda" else None
    print(json.dumps(row))


if __name__ == "__main__":
    main()
