"""Modules of PyTorch that tensorwire trains: losses and weights are held against PyTorch's own training."""

import copy
import importlib.util
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import tensorwire
from tensorwire.torch import ModuleImportError, import_
from tensorwire.training import _converted

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Relative, of a loss.
TOLERANCE = 1e-4
STEPS = 3


def has(package: str) -> Any:
    return unittest.skipUnless(importlib.util.find_spec(package), f"there is no {package}")


def labels(samples: int, classes: int = 4) -> torch.Tensor:
    return torch.randint(0, classes, (samples,))


def tokens(*dims: int) -> torch.Tensor:
    return torch.randint(0, 50, dims)


def eager(
    module: nn.Module,
    data: tuple[torch.Tensor, ...],
    loss: Callable[..., torch.Tensor] | None,
    workers: int,
    steps: int,
    **optimizer: float,
) -> tuple[list[float], nn.Module]:
    """Returns PyTorch's losses, and the module that it trained: each worker has its part of a step's samples."""
    module = copy.deepcopy(module)
    by = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], **optimizer)
    parts = [tensor.chunk(steps * workers) for tensor in data]
    losses = []
    for step in range(steps):
        by.zero_grad()
        total = 0.0
        for worker in range(workers):
            *given, last = [part[step * workers + worker] for part in parts]
            found = module(*given, last) if loss is None else loss(module(*given), last)
            (found / workers).backward()
            total += found.item() / workers
        by.step()
        losses.append(total)
    return losses, module


class Language(nn.Module):
    """A model of Hugging Face by its tokens and labels."""

    def __init__(self, model: nn.Module, **always: Any) -> None:
        super().__init__()
        self.model = model
        self.always = always

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=labels, **self.always).loss


class Recurrent(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, padding_idx=3)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, **given)
        self.output = nn.Linear(12 if self.lstm.bidirectional else 6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.words(ids))[0][:, -1])


class Gated(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.gru = nn.GRU(8, 6, 2, batch_first=True, **given)
        self.output = nn.Linear(12 if self.gru.bidirectional else 6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        every, last = self.gru(self.words(ids))
        return self.output(every[:, -1]) + last.sum((0, 2)).unsqueeze(1)


class Lambda(nn.Module):
    """A layer, and any function of what it makes."""

    def __init__(self, inputs: int, f: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 12)
        self.f = f

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(self.layer(x))


class Endless(IterableDataset):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self):
        while True:
            yield from self.samples


class Case(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        # torch.export on the weights that an LSTM keeps twice
        warnings.filterwarnings("ignore", "The tensor attributes")

    def agree(
        self,
        module: nn.Module,
        example: tuple[torch.Tensor, ...],
        loss: Callable[..., torch.Tensor] | None = F.cross_entropy,
        rate: float = 0.05,
        workers: int = 1,
        **options: Any,
    ) -> None:
        """Trains a module by both, and compares losses and weights."""
        batch, steps = len(example[0]), options.pop("steps", STEPS)
        rows = torch.randperm(steps * workers * batch) % batch
        data = tuple(tensor[rows] for tensor in example)
        wanted, trained = eager(module, data, loss, workers, steps, lr=rate, momentum=0.9)
        graph = import_(module, example, loss=loss)
        options = {"strategy": "local", "threads": 1} | options
        done = tensorwire.train(
            graph, data, steps=steps, workers=workers, learning_rate=rate, momentum=0.9, **options
        )
        self.assertEqual(len(done.losses), steps)
        for step, (found, expected) in enumerate(zip(done.losses, wanted, strict=True), 1):
            self.assertLess(abs(found - expected), TOLERANCE * abs(expected), f"step {step}: {found}, not {expected}")
        for key, expected in trained.state_dict().items():
            found = done.state_dict[key]
            # of several workers each normalises by itself, and all count one step
            if workers == 1 or not key.endswith(("running_mean", "running_var", "num_batches_tracked")):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=lambda said: f"{key}: {said}")
        module.load_state_dict(done.state_dict, strict=True)


class Models(Case):
    """Models as people have them, small."""

    def test_mlp(self):
        self.agree(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(8, 6), labels(8)))

    def test_cnn(self):
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.BatchNorm2d(8, momentum=0.3),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(3, 2, 1),
            nn.Conv2d(8, 8, 3, stride=2, groups=4, bias=False),
            nn.GroupNorm(2, 8),
            nn.Hardswish(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
        self.agree(net, (torch.randn(6, 3, 12, 12), labels(6)))

    def test_lstm(self):
        self.agree(Recurrent(), (tokens(4, 7), labels(4)))

    def test_lstm_in_both_directions(self):
        self.agree(Recurrent(bidirectional=True), (tokens(4, 7), labels(4)))

    def test_gru(self):
        for given in ({}, {"bidirectional": True}, {"bias": False}):
            with self.subTest(**given):
                net = Gated(**given)
                for parameter in net.gru.parameters():
                    # biases of any size, that it is seen which of them are reset
                    nn.init.normal_(parameter, std=0.5)
                self.agree(net, (tokens(4, 7), labels(4)))

    def test_encoder(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        net = nn.Sequential(nn.Embedding(50, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(56, 4))
        self.agree(net, (tokens(4, 7), labels(4)))

    def test_decoder_of_images(self):
        net = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(4, affine=True),
            nn.PReLU(4),
            nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2),
            nn.Upsample(scale_factor=(1, 2)),
            nn.ConvTranspose2d(4, 8, 3, padding=2, bias=False),
            nn.PixelShuffle(2),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(266, 4),
        )
        self.agree(net, (torch.randn(3, 3, 4, 5), labels(3)))

    @has("torchvision")
    def test_resnet(self):
        from torchvision.models import resnet18

        net = resnet18(num_classes=4).double()
        self.agree(net, (torch.randn(4, 3, 32, 32).double(), labels(4)), rate=1e-3)

    @has("transformers")
    def test_gpt2(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        drops = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16, **drops)
        net = Language(GPT2LMHeadModel(config), use_cache=False)
        self.agree(net, (tokens(4, 8), tokens(4, 8)), loss=None)

    @has("transformers")
    def test_bert(self):
        from transformers import BertConfig, BertForMaskedLM

        sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=50)
        drops = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        net = Language(BertForMaskedLM(BertConfig(num_hidden_layers=2, **sizes, **drops)))
        self.agree(net, (tokens(4, 8), tokens(4, 8)), loss=None)

    @has("transformers")
    def test_llama(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32, vocab_size=50)
        net = Language(LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)), use_cache=False)
        self.agree(net, (tokens(4, 8), tokens(4, 8)), loss=None)

    @has("torchvision")
    def test_vit(self):
        from torchvision.models import VisionTransformer

        net = VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=4)
        self.agree(net, (torch.randn(4, 3, 16, 16), labels(4)))


class Operators(Case):
    """What models are made of, several at a time."""

    def test_functions_of_elements(self):
        def f(x):
            y = F.gelu(x) + F.gelu(x, approximate="tanh") * F.silu(x) - F.softplus(x) / 3
            y = y + F.leaky_relu(x, 0.1) + F.hardsigmoid(x) + F.relu6(x) + F.mish(x) + torch.clamp(x, -0.5, 0.5)
            y = y + torch.exp(-x.abs()) + (x * x + 1).sqrt() + (x.square() + 1).log() + 1 / (x * x + 2) + x**3
            y = torch.where(x > 0.1, y, 2 * y) + torch.maximum(x, y) + (1 - x).masked_fill(x < 0, 0.25)
            return y + (2 * x).mul_(0.5) + (x.sigmoid() >= 0.5) * x + x.detach() * x

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 12)), rate=0.01)

    def test_moves(self):
        def f(x):
            y = x.view(-1, 3, 2, 2).permute(0, 2, 3, 1)
            y = torch.cat([y, y.roll(1, 1)], dim=1)[:, :, :, 1:]
            a, b = y.chunk(2, dim=-1)
            y = torch.stack([a, b.expand_as(a)], dim=1).squeeze(-1).transpose(1, 2)
            first, *_ = y.unbind(1)
            y = F.pad(y.flatten(1), (1, -2), value=0.5) + first.flatten(1).repeat(1, 4)[:, :15].unflatten(1, (3, 5)).reshape(-1, 15)
            return y.split([7, 8], dim=1)[0] + y[..., -7:] + y.narrow(1, 1, 7)

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 7)))

    def test_products_and_reductions(self):
        def f(x):
            y = x.view(-1, 3, 4)
            y = y @ y.mT + torch.bmm(y, y.transpose(1, 2)) + y @ x[0, :4].view(4, 1)
            z = y.softmax(1) + y.log_softmax(-1) + torch.logsumexp(y, 1, keepdim=True) + y.var(-1, keepdim=True)
            z = z / (z.norm(dim=1, keepdim=True) + 1) + y.amax(2, keepdim=True) + y.sum((1, 2), keepdim=True)
            return F.rms_norm(z, (3,)).mean(1) + F.layer_norm(z, (3, 3)).sum(2) + torch.matmul(z, z[0, 0])

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 3)))

    def test_steps_and_turns(self):
        def f(x):
            rows = x.view(-1, 3, 4)
            y = torch.cat([x[:, ::2], x[:, 1::3], x[:, :11:5], rows[:, ::2].flatten(1)], 1)
            return y[:, :12] + y.flip(1)[:, 6:18] + rows.flip(0, 2).flatten(1)

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 12)))

    def test_what_pytorch_computes_by_others(self):
        def f(x):
            rows = x.view(-1, 3, 4)
            y = torch.einsum("bij,bkj->bik", rows, rows).flatten(1) + torch.einsum("bi,ij->bj", x, torch.ones(12, 9))
            y = y + F.glu(F.elu(x, 0.7).repeat(1, 2)[:, :18]) + F.normalize(F.celu(x))[:, :9] + F.selu(x)[:, 1:10]
            y = y * F.cosine_similarity(x, 2 * x + 1).unsqueeze(1) - F.logsigmoid(y) + F.softsign(y)
            return y

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 9)))
        for loss in (F.smooth_l1_loss, F.huber_loss):
            self.agree(Lambda(5, lambda y: y), (torch.randn(6, 5), torch.randn(6, 12)), loss=loss)

    def test_attention(self):
        def f(x):
            q, k, v = x.view(-1, 3, 2, 2).unbind(1)
            q, k, v = (part.unsqueeze(1) for part in (q, k, v))
            seen = torch.tensor([[True, False], [True, True]])
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=k.sum(-1).unsqueeze(-2))
            return y.flatten(1)

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6)))

    def test_losses(self):
        x, numbers = torch.randn(6, 5), torch.randn(6, 12)
        for loss in (F.mse_loss, F.l1_loss):
            self.agree(Lambda(5, lambda y: y), (x, numbers), loss=loss)
        self.agree(Lambda(5, lambda y: y), (x, (numbers > 0).float()), loss=F.binary_cross_entropy_with_logits)
        smooth = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2)
        self.agree(Lambda(5, lambda y: y.view(-1, 3, 4)), (x, torch.randint(0, 3, (6, 4))), loss=smooth)
        likelihood = lambda y, target: F.nll_loss(F.log_softmax(y, 1), target)  # noqa: E731
        self.agree(Lambda(5, lambda y: y), (x, labels(6, 12)), loss=likelihood)

    def test_losses_with_weights_and_sums(self):
        x, weights = torch.randn(6, 5), torch.linspace(0.5, 2, 12)

        def of_numbers(y, target):
            loss = F.cross_entropy(y, target, weights, label_smoothing=0.1, ignore_index=3)
            loss = loss + F.nll_loss(F.log_softmax(y, 1), target, weights, reduction="sum")
            loss = loss + (F.cross_entropy(y, target, reduction="none") * (target + 1)).sum() / (target > 2).sum()
            return loss - y.log_softmax(1).gather(1, target[:, None]).mean()

        def of_shares(y, target):
            loss = F.cross_entropy(y, target, label_smoothing=0.1) + F.binary_cross_entropy(y.sigmoid(), target)
            loss = loss + F.binary_cross_entropy_with_logits(y, target, pos_weight=weights, reduction="sum")
            loss = loss + F.kl_div(y.log_softmax(1), target, reduction="batchmean")
            return loss + F.triplet_margin_loss(y[:, :4], y[:, 4:8], target[:, :4])

        self.agree(Lambda(5, lambda y: y), (x, labels(6, 12)), loss=of_numbers)
        self.agree(Lambda(5, lambda y: y), (x, torch.rand(6, 12).softmax(1)), loss=of_shares, rate=0.01)

    def test_images_of_any_size(self):
        def f(x):
            y = x.view(-1, 1, 3, 4)
            grown = F.interpolate(y, scale_factor=2, mode="bilinear") + F.interpolate(y, (6, 8), mode="bicubic", align_corners=True)
            grown = F.interpolate(grown, (5, 7)) + F.interpolate(y, (5, 7), mode="nearest-exact")
            padded = F.pad(y, (2, 1, 1, 2), mode="reflect") + F.pad(y, (1, 2, 0, 3), mode="circular")
            padded = padded + F.pad(y, (0, 3, 1, 2), mode="replicate")
            windows = F.unfold(padded, 3, padding=1, stride=2).flatten(1)[:, :12] + x.unfold(1, 3, 2)[:, :4].flatten(1)
            return F.adaptive_avg_pool2d(grown, (2, 3)).flatten(1) + F.adaptive_max_pool2d(padded, (1, 7)).flatten(1)[:, :6] + windows[:, :6]

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 6)))

    def test_three_dimensions(self):
        net = nn.Sequential(
            nn.Conv3d(2, 4, 3, stride=(1, 2, 1), padding=(1, 2, 2)),
            nn.BatchNorm3d(4),
            nn.Conv3d(4, 4, 2, groups=2, dilation=(2, 1, 1)),
            nn.ConvTranspose3d(4, 4, 3, stride=(2, 1, 1), padding=(1, 0, 1), output_padding=(1, 0, 0), groups=2),
            nn.MaxPool3d(2, stride=1),
            nn.AvgPool3d(2, stride=1, padding=1),
            nn.AdaptiveAvgPool3d((2, 1, 1)),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
        self.agree(net, (torch.randn(3, 2, 5, 6, 4), labels(3)))

    def test_elements_by_places(self):
        def f(x):
            y = x.view(-1, 3, 4)
            rows, columns = torch.tensor([[0, 2], [1, -1]]), torch.tensor([3, -4])
            places = torch.arange(y.shape[0])
            z = y[:, rows, columns].flatten(1) + y[places, y.argmax(2)[:, 0] * 0 + 1] + y[places, :, 2].repeat(1, 2)[:, :4]
            z = z + y.index_select(2, torch.tensor([3, 1]))[:, 0].repeat(1, 2) + y.diagonal(dim1=1, dim2=2).repeat(1, 2)[:, :4]
            z = z + y.tril(-1)[:, 2] + y.triu(1)[:, 0] + y.cumsum(2)[:, 1] + y.repeat_interleave(2, dim=1)[:, 3]
            most, where = y.max(dim=1)
            return z + most + (where == 1) * most + x.amin(1, keepdim=True) + x.std(1, keepdim=True)

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6)), rate=0.01)

    def test_places_outside_end_the_job(self):
        class Picked(nn.Module):
            def __init__(self, f: Callable[..., torch.Tensor]) -> None:
                super().__init__()
                self.layer, self.f = nn.Linear(5, 12), f

            def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
                return -self.f(self.layer(x), at).mean()

        x, at = torch.randn(6, 5), labels(6, 12)
        given = {"strategy": "local", "workers": 1, "threads": 1, "steps": 1}
        for f in (
            lambda x, at: x.gather(1, at.unsqueeze(1)),
            lambda x, at: x[torch.arange(x.shape[0]), at],
            lambda x, at: -F.nll_loss(x, at, reduction="none"),
        ):
            graph = import_(Picked(f), (x, at))
            self.assertTrue(math.isfinite(tensorwire.train(graph, (x, at), **given).losses[0]))
            for outside in (-1, 12):
                with self.assertRaisesRegex(tensorwire.JobFailed, f"there is no row {outside}"):
                    tensorwire.train(graph, (x, torch.where(torch.arange(6) == 2, outside, at)), **given)

    def test_integers(self):
        class Counted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words, self.places = nn.Embedding(50, 4), nn.Embedding(30, 4)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                there = (ids != 3).int()
                places = (torch.cumsum(there, 1) * there + 2).clamp(max=9) + ids.remainder(5) - ids // 25
                last = (there * torch.arange(ids.shape[1])).argmax(-1)
                y = self.words(ids) + self.places(torch.where(ids > 9, places, -ids + 20).long())
                return y[torch.arange(ids.shape[0]), last] + y.mean(1) * there.sum(1, keepdim=True) / 7

        self.agree(Counted(), (tokens(6, 7), labels(6)))

    def test_changes_through_views(self):
        def f(x):
            y = torch.zeros_like(x)
            y[:, 1:] = x[:, :-1]
            y[:, 0] = 0.5
            y.view(-1, 3, 4)[:, 1, 2:] += x[:, :2]
            mask = torch.zeros(12)
            mask[3:6] = 1
            mask[4] = 2
            y[x > 1] = 0.25
            return y * mask + x

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 12)))

    def test_what_is_changed_of_a_copy_is_not_of_its_whole(self):
        def f(x):
            y = x.view(-1, 3, 4).transpose(1, 2)
            copy, flat = y.contiguous(), y.flatten(1)
            F.relu(copy, inplace=True)
            flat.mul_(2)
            return (copy + y).flatten(1) + flat

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6, 12)))

    def test_slopes_at_the_end_are_none(self):
        def f(x):
            nothing = x[:, :4] * 0
            sure = torch.sigmoid(x[:, 4:8] * 1e6)
            each = F.binary_cross_entropy(sure, torch.ones_like(sure), reduction="none")
            return each / 100 + nothing.std(1, keepdim=True) + nothing.norm(3, dim=1, keepdim=True) + x[:, 8:]

        self.agree(Lambda(5, f), (torch.randn(6, 5), labels(6)))

    def test_what_is_drawn(self):
        """Moments of what a step draws, and that each step draws anew."""

        class Noisy(nn.Module):
            def __init__(self, f: Callable[[torch.Tensor], torch.Tensor]) -> None:
                super().__init__()
                self.scale, self.f = nn.Parameter(torch.ones(())), f

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.f(x * self.scale)

        ones = torch.ones(4, 4000)
        given = {"strategy": "local", "workers": 1, "threads": 1, "steps": 3, "learning_rate": 1e-9}
        # within five standard deviations
        for f, mean, within in [
            (lambda x: torch.randn_like(x).square().mean() * x.mean(), 1, 0.06),
            (lambda x: (torch.rand_like(x) * x).mean(), 0.5, 0.012),
            (lambda x: (torch.rand(x.shape) * x).square().mean(), 1 / 3, 0.012),
            (lambda x: (torch.bernoulli(0.3 * x.detach()) * x).mean(), 0.3, 0.02),
            (lambda x: (x * x.new_empty(x.shape).bernoulli_(0.8)).mean(), 0.8, 0.016),
            (lambda x: F.dropout1d(x.unsqueeze(2), 0.25).mean(), 1, 0.023),
            # α²p/(1 + α²p) of zeros
            (lambda x: F.alpha_dropout(x - 1, 0.25, training=True).square().mean(), 0.4359, 0.02),
        ]:
            graph = import_(Noisy(f), (ones,))
            losses = tensorwire.train(graph, (ones.repeat(3, 1),), **given).losses
            self.assertEqual(len(set(losses)), 3)
            for loss in losses:
                self.assertLess(abs(loss - mean), within)
        self.assertEqual(tensorwire.train(graph, (ones.repeat(3, 1),), **given).losses, losses)

    def test_waves(self):
        self.agree(Lambda(5, lambda x: x.sin() + (2 * x).cos() * torch.erf(x)), (torch.randn(6, 5), labels(6, 12)))

    def test_bags(self):
        net = nn.Sequential(nn.EmbeddingBag(50, 8, mode="mean"), nn.Linear(8, 4))
        self.agree(net, (tokens(4, 3), labels(4)))

    def test_sequences(self):
        net = nn.Sequential(
            nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1),
            nn.Conv1d(4, 4, 3, stride=2, padding=1),
            nn.BatchNorm1d(4),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(16, 4),
        )
        self.agree(net, (torch.randn(6, 3, 8), labels(6)))

    def test_dropout_is_ours_and_off_where_the_module_is_evaluated(self):
        net = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 4))
        example = (torch.randn(8, 6), labels(8))
        drops = tensorwire.train(import_(net, example, loss="cross_entropy"), example, steps=1, strategy="local", workers=1)
        self.assertNotAlmostEqual(drops.losses[0], F.cross_entropy(net.eval()(example[0]), example[1]).item(), 4)
        self.agree(net.eval(), example)


class Weights(Case):
    def test_what_takes_no_gradient_or_part_stays(self):
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval(), nn.Tanh(), nn.Linear(8, 4))
        net[0].weight.requires_grad_(False)
        net[1].running_mean += 0.5
        net[2].unused = nn.Linear(3, 3)
        self.agree(net, (torch.randn(8, 6), labels(8)))

    def test_tied_weights_are_one(self):
        net = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 50, bias=False))
        net[4].weight = net[0].weight
        self.agree(net, (tokens(4, 3), labels(4, 50)))

    def test_jobs_of_several_processes(self):
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)).double()
        example = (torch.randn(4, 2, 6, 6).double(), labels(4))
        self.agree(net, example, workers=2, steps=5, strategy="ps", servers=2)
        self.agree(net, example, workers=2, strategy="allreduce")


class Data(Case):
    def train(self, data: Any, **options: Any) -> list[float]:
        net = line()
        given = {"strategy": "local", "workers": 2, "learning_rate": 0.1} | options
        graph = import_(net, (torch.zeros(1, 3), torch.zeros(1, 4)), loss="mse")
        return tensorwire.train(graph, data, **given).losses

    def test_all_kinds_are_read_in_one_order(self):
        x, y = torch.randn(24, 3), torch.randn(24, 4)
        wanted, _ = eager(line(), (x, y), F.mse_loss, 2, 4, lr=0.1)
        pairs = TensorDataset(x, y)
        kinds = {
            "tensors": (x, y),
            "a data set": pairs,
            "a loader": DataLoader(pairs, batch_size=3),
            "a stream": Endless(pairs),
            "pairs in a list of batches": DataLoader(pairs, batch_sampler=[[*range(at, at + 4)] for at in range(0, 24, 4)]),
        }
        if importlib.util.find_spec("numpy"):
            kinds["arrays"] = (x.numpy(), y.numpy())
        for kind, data in kinds.items():
            with self.subTest(kind):
                found = self.train(data, steps=4, batch=3)
                torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-4, atol=1e-6)

    def test_a_shuffled_loader_shuffles_and_its_batch_counts(self):
        pairs = TensorDataset(torch.randn(24, 3), torch.randn(24, 4))
        ordered = self.train(DataLoader(pairs, batch_size=4), epochs=2)
        self.assertEqual(len(ordered), 6)
        shuffled = self.train(DataLoader(pairs, batch_size=4, shuffle=True), epochs=2)
        self.assertEqual(len(shuffled), 6)
        self.assertNotEqual(ordered, shuffled)
        again = self.train(DataLoader(pairs, batch_size=4, shuffle=True), epochs=2)
        self.assertEqual(again, shuffled)

    def test_named_tensors_and_steps_that_are_told(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 4)

            def forward(self, points):
                return self.layer(points)

        data = {"points": torch.randn(8, 3), "labels": labels(8)}
        graph = import_(Named(), data, loss="cross_entropy")
        told = []
        done = tensorwire.train(graph, data, steps=2, batch=4, strategy="local", on_step=told.append)
        self.assertEqual([step["loss"] for step in told], done.losses)
        self.assertEqual(done.summary["steps"], 2)

    def test_what_does_not_fit_is_said(self):
        x, y = torch.randn(8, 3), torch.randn(8, 4)
        for data, options, said in [
            ((x, y), {}, "give either steps or epochs"),
            ((x,), {"steps": 1}, "have 1 tensors, and the module was imported with 2"),
            ((x[:, :2], y), {"steps": 1}, r"'input_0' of the data is \[2\] a sample"),
            ((x.long(), y), {"steps": 1}, "convert it"),
            ((x, y[:3]), {"steps": 1}, "give each tensor as many"),
            ((x, y), {"steps": 1, "strategy": "pss"}, "strategy: unknown variant `pss`"),
            ((x, y), {"steps": 1, "optimizer": {"name": "adam", "beta": 1}}, "'adam' has no parameter 'beta'"),
            ((x, y), {"steps": 1, "optimizer": {"beta1": 1}}, "optimizer: give its name"),
            ((x, y), {"steps": 1, "optimiser": "adam"}, "there is no option 'optimiser'"),
            ((x, y), {"steps": 1, "lr": 0.1}, "there is no option 'lr'; here it is learning_rate"),
            ((x, y), {"steps": 1, "hosts": "127.0.0.1:0"}, "no number of slots"),
            ((x, y), {"steps": 1, "hosts": "127.0.0.1", "rsh": " "}, "--rsh names no command"),
            ((x, y), {"steps": 1, "optimizer": "adamm"}, "there is no optimizer 'adamm'"),
            ((x, y), {"steps": 1, "batch": 5}, "batch larger than data set"),
            ((x, y), {"steps": 1, "checkpoint": {"every": 2}}, "give the folder as path"),
            (DataLoader(Endless([]), batch_size=4), {"steps": 1, "shuffle": True}, "has an order of its own"),
        ]:
            with self.subTest(said), self.assertRaisesRegex((ValueError, tensorwire.JobFailed), said):
                self.train(data, **options)
        with self.assertRaisesRegex(TypeError, "import the Linear first"):
            tensorwire.train(nn.Linear(3, 4), (x, y), steps=1)

    def test_what_on_step_raises_is_all_that_is_said(self):
        """Also if the process that leads the job has something to say just then."""
        program = """
import tensorwire
def stop(step):
    raise ZeroDivisionError("enough")
tensorwire.train("mlp", "digits", strategy="local", workers=1, steps=100_000, on_step=stop)
"""
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual(ended.returncode, 1)
        self.assertTrue(ended.stderr.rstrip().endswith("ZeroDivisionError: enough"), ended.stderr)
        for word in ("BrokenPipe", "JobFailed", "ignored"):
            self.assertNotIn(word, ended.stderr)

    def test_integers_that_do_not_fit_are_refused(self):
        given = {"name": "x", "dims": [1, 3], "dtype": "u8"}
        with self.assertRaisesRegex(ValueError, "integers from 0 to 300, and the module takes 0 to 255"):
            _converted(given, torch.tensor([[0, 1, 300]]))
        self.assertEqual(_converted(given, torch.tensor([[0, 1, 255]])).tolist(), [[0, 1, 255]])
        self.assertEqual(_converted(given | {"dtype": "i32"}, torch.tensor([[True, False, True]])).tolist(), [[1, 0, 1]])

    def test_a_sampler_that_draws_some_is_taken_as_it_comes(self):
        pairs = TensorDataset(torch.randn(24, 3), torch.randn(24, 4))
        some = RandomSampler(pairs, num_samples=16)
        self.assertEqual(len(self.train(DataLoader(pairs, batch_size=4, sampler=some), epochs=1)), 2)

    def test_a_loss_that_is_no_number_ends_the_job(self):
        x, y = torch.randn(8, 3), torch.randn(8, 4)
        x[5, 1] = float("nan")
        with self.assertRaisesRegex(tensorwire.JobFailed, "sample 5: 'input_0' holds NaN"):
            self.train((x, y), steps=3, strategy="ps", servers=1)


class Jobs(Case):
    """What any job may have."""

    def test_a_model_that_is_shipped_is_trained_by_name(self):
        given = {"steps": 4, "threads": 1, "batch": 16}
        alone = tensorwire.train("mlp", "digits", strategy="local", **given)
        self.assertEqual(alone.summary["model"], "mlp")
        done = tensorwire.train("mlp", "digits", servers=1, **given)
        self.assertEqual(done.losses, alone.losses)
        self.assertIn("hidden1/weight", done.state_dict)
        torch.testing.assert_close(done.state_dict, alone.state_dict, rtol=0, atol=0)
        for model, data, options, said in [
            ("mlp", torch.zeros(8, 3), {}, "learns from data by name"),
            ("mlp", "digits", {"shuffle": True}, "leave shuffle out"),
            ("mlq", "digits", {}, "no model 'mlq'"),
            ("mlp", "digit", {}, "digit"),
        ]:
            with self.subTest(said), self.assertRaisesRegex(ValueError, said):
                tensorwire.train(model, data, steps=1, **options)

    def test_a_job_has_processes_on_other_hosts(self):
        """By a command in the place of ssh that runs here what it is to run there."""
        with tempfile.TemporaryDirectory() as folder:
            rsh = os.path.join(folder, "rsh.sh")
            with open(rsh, "w", encoding="utf-8") as script:
                # of the environment a login there has no more
                there = 'exec env -i PATH="$PATH" HOME="$HOME" PYTHONPATH="$PYTHONPATH" sh -c "$2"'
                script.write(f'echo "$1" >> {folder}/hosts; [ -e {folder}/lost ] && cd / && set -- "$1" "$(echo "$2" | sed s,/tensorwire-,/lost-,)"; {there}')
            given = {"strategy": "allreduce", "workers": 2, "threads": 1, "steps": 3, "transport": "tcp"}
            here = tensorwire.train("mlp", "digits", **given)
            given |= {"hosts": "127.0.0.1,other", "rsh": f"sh {rsh}", "listen": "127.0.0.1:0"}
            there = tensorwire.train("mlp", "digits", **given)
            self.assertEqual(there.losses, here.losses)
            torch.testing.assert_close(there.state_dict, here.state_dict, rtol=0, atol=0)
            with open(os.path.join(folder, "hosts"), encoding="utf-8") as hosts:
                self.assertEqual(hosts.read(), "other\n")
            # a folder that is not there
            with open(os.path.join(folder, "lost"), "w", encoding="utf-8"):
                pass
            program = f"import tensorwire; tensorwire.train('mlp', 'digits', **{given})"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
            self.assertRegex(done.stderr, "the job's folder .*/lost-[^ ]* is not on this host; set TMPDIR")

    def test_processes_that_torchrun_started_are_the_jobs(self):
        program = "import sys, tensorwire; print(tensorwire.train('mlp', 'digits', strategy=sys.argv[1], workers=2, servers=1, steps=3).summary['workers'])"
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(program)
            file.flush()
            for strategy, processes in (("allreduce", "2"), ("ps", "3")):
                runner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
                command = [sys.executable, *runner, file.name, strategy]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stdout), (0, "2\n"), done.stderr)

    def test_ctrl_c_ends_a_job_behind_a_step_and_keeps_it(self):
        given = "strategy='ps', workers=1, servers=1, threads=1, steps=10**6, checkpoint={'path': sys.argv[1], 'every': 10**6}"
        program = f"import sys, tensorwire; tensorwire.train('mlp', 'digits', on_step=lambda step: print('step', flush=True), {given})"
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", program, folder]
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
                try:
                    self.assertEqual(process.stdout.readline(), "step\n")
                    # as a terminal does: to all processes of the group
                    os.killpg(process.pid, signal.SIGINT)
                    _, said = process.communicate(timeout=60)
                finally:
                    process.kill()
            self.assertIn("interrupted: all end behind step", said)
            self.assertIn("KeyboardInterrupt", said)
            self.assertNotIn("ended at once", said)
            [checkpoint] = [name for name in os.listdir(folder) if name.startswith("step-")]
            self.assertIn(f"behind step {int(checkpoint.removeprefix('step-'))},", said)

    def test_a_job_goes_on_from_a_checkpoint(self):
        net, data = line(), (torch.randn(48, 3), torch.randn(48, 4))
        graph = import_(net, (torch.zeros(4, 3), torch.zeros(4, 4)), loss="mse")
        given = {"strategy": "local", "threads": 1, "learning_rate": 0.1, "momentum": 0.9}
        whole = tensorwire.train(graph, data, steps=6, **given)
        with tempfile.TemporaryDirectory() as folder:
            first = tensorwire.train(graph, data, steps=3, checkpoint=folder, **given)
            rest = tensorwire.train(graph, data, steps=6, checkpoint={"path": folder, "every": 5}, resume=folder, **given)
            self.assertEqual(first.losses + rest.losses, whole.losses)
            torch.testing.assert_close(rest.state_dict, whole.state_dict, rtol=0, atol=0)
            with self.assertRaisesRegex(ValueError, "holds? checkpoints|--resume"):
                tensorwire.train(graph, data, steps=6, checkpoint=folder, **given)
        # the same call begins, with the module's first values, and goes on
        with tempfile.TemporaryDirectory() as folder:
            parts = [tensorwire.train(graph, data, steps=steps, checkpoint=folder, resume="auto", **given) for steps in (3, 6)]
            self.assertEqual(parts[0].losses + parts[1].losses, whole.losses)


def line() -> nn.Module:
    """Returns a layer that is the same every time."""
    torch.manual_seed(5)
    return nn.Linear(3, 4)


class Sorts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(self.layer(x)).values


class Errors(Case):
    def refused(self, f: Callable[[torch.Tensor], torch.Tensor]) -> ModuleImportError:
        with self.assertRaises(ModuleImportError) as caught:
            import_(Lambda(5, f), (torch.randn(6, 5), labels(6, 12)), loss="cross_entropy")
        return caught.exception

    def test_an_operator_that_is_not_known_is_named_with_its_line(self):
        with self.assertRaises(ModuleImportError) as caught:
            import_(Sorts(), (torch.randn(6, 5), labels(6, 12)), loss="cross_entropy")
        error = caught.exception
        self.assertEqual(error.operator, "aten.sort.default")
        self.assertRegex(error.line, r"test_import\.py:\d+: return torch\.sort\(")
        self.assertIn("is not known; take the largest by topk or amax", str(error))

    def test_the_part_of_the_module_is_named(self):
        net = nn.Sequential(nn.Linear(5, 5), nn.Sequential(Sorts(), nn.Linear(12, 12)))
        with self.assertRaises(ModuleImportError) as caught:
            import_(net, (torch.randn(6, 5), labels(6, 12)), loss="cross_entropy")
        self.assertEqual(caught.exception.module, "1.0")

    def test_a_use_that_is_not_known_says_what_is(self):
        pool = lambda x: F.avg_pool2d(x.view(-1, 1, 3, 4), 1, divisor_override=3).flatten(1)  # noqa: E731
        self.assertIn("divisor_override is not known; scale", str(self.refused(pool)))
        self.assertIn("only integers are divided with rounding", str(self.refused(lambda x: x // 2)))

    def test_a_change_in_place_that_a_view_sees_is_refused(self):
        def f(x):
            rows = x[:, :6]
            x.mul_(2)
            return rows

        self.assertIn("is a view of; assign a new tensor", str(self.refused(f)))

    def test_modules_that_are_none(self):
        x = torch.randn(6, 5)
        for module, example, loss, said in [
            (nn.Linear(5, 4), (x,), None, "the module returns no loss"),
            (nn.Linear(5, 4), (x, labels(5)), "cross_entropy", "give every tensor the same number"),
            (nn.Linear(5, 4), (x, 3), "cross_entropy", "is a int; give tensors"),
            (nn.Linear(5, 4), (x, labels(6)), "crossentropy", "there is no loss 'crossentropy'"),
            (nn.Linear(5, 4).half(), (x.half(), labels(6)), "cross_entropy", "have all of torch.float32"),
            (Lambda(5, lambda y: y if y.sum() > 0 else -y), (x, labels(6)), "cross_entropy", "torch.export cannot follow"),
        ]:
            with self.subTest(said), self.assertRaisesRegex(ModuleImportError, said):
                import_(module, example, loss=loss)


class Package(unittest.TestCase):
    def test_pytorch_is_imported_when_it_is_needed(self):
        code = "import sys, tensorwire, tensorwire.torch; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_example_trains(self):
        example = ROOT / "examples/python/import_and_train.py"
        done = subprocess.run([sys.executable, str(example)], check=True, capture_output=True, text=True)
        self.assertRegex(done.stdout, r"^ps: loss 0\.\d+ to 0\.\d+, test accuracy (1\.000|0\.9\d+)")


if __name__ == "__main__":
    unittest.main()
