"""Modules of plain ``torch.nn`` for ``pytorch_survey.py``: layers and losses, several at a time, and what is built of them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from survey_modules import SAMPLES, WORDS, Subject, images, labels, tokens
from torch import Tensor, nn


class Applied(nn.Module):
    """Layers by name, and any function of them."""

    def __init__(self, f: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.f = f

    def forward(self, *given: Tensor) -> Any:
        return self.f(self.layers, *given)


def applied(f: Callable[..., Tensor], batch: Callable[[], Any], loss: Any = F.cross_entropy, draws: bool = False, **layers: Callable) -> Subject:
    def made() -> nn.Module:
        return Applied(f, **{name: layer() for name, layer in layers.items()})

    return Subject(made, batch, loss, draws)


def stack(layers: Callable[[], list[nn.Module]], batch: Callable[[], Any], loss: Any = F.cross_entropy, draws: bool = False) -> Subject:
    return Subject(lambda: nn.Sequential(*layers()), batch, loss, draws)


def volumes() -> Any:
    return torch.randn(SAMPLES, 2, 6, 8, 8), labels()


def sequences() -> Any:
    return torch.randn(SAMPLES, 4, 12), labels()


def vectors(target: Callable[[], Tensor] = labels) -> Callable[[], Any]:
    return lambda: (torch.randn(SAMPLES, 6), target())


def recurrent(cell: Callable[..., nn.Module], **given: Any) -> Subject:
    width = 16 if given.get("bidirectional") else 8
    layers = dict(words=lambda: nn.Embedding(WORDS, 6), cell=lambda: cell(6, 8, batch_first=True, **given), last=lambda: nn.Linear(width, 10))
    return applied(lambda of, ids: of["last"](of["cell"](of["words"](ids))[0][:, -1]), lambda: (tokens(), labels()), **layers)


def functions(x: Tensor) -> Tensor:
    parts = [nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.ELU(), nn.Softplus(2.0), nn.CELU(), nn.SELU(), nn.Hardsigmoid()]
    parts += [nn.LeakyReLU(0.2), nn.Softsign(), nn.Tanhshrink(), nn.LogSigmoid(), nn.ReLU6(), nn.Hardtanh(), nn.Threshold(0.1, 2.0)]
    parts += [nn.Softshrink(), nn.Hardshrink(), torch.sin, torch.cos, torch.erf]
    return sum(part(x) for part in parts)


class Unet(nn.Module):
    def __init__(self, grows: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        block = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))  # noqa: E731
        self.first, self.second, self.last = block(3, 4), block(4, 8), block(8, 4)
        self.grows = grows(8, 4)
        self.output = nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        up = self.grows(self.second(F.max_pool2d(first, 2)))
        return self.output(self.last(torch.cat([first, up], 1)))


class Variational(nn.Module):
    """Kingma and Welling 2013: returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return F.mse_loss(self.decoder(z), x) + 0.1 * divergence


class Diffusion(nn.Module):
    """Ho et al. 2020: a net that is told the time learns the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.first, self.last = nn.Linear(8, 4), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(torch.arange(4, dtype=x.dtype) * -0.7)
        at = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        return self.last(F.silu(self.first(x) + at[:, :, None, None]))


class LowRank(nn.Module):
    """Hu et al. 2021: a matrix that stays, and a product of two that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(6, 10).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + 2.0 * self.up(self.down(x))


def tied() -> nn.Module:
    net = nn.Sequential(nn.Embedding(WORDS, 8), nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, WORDS, bias=False))
    net[4].weight = net[0].weight
    return net


def encoder(of: Any, ids: Tensor) -> Tensor:
    return of["last"](of["encoder"](of["words"](ids), src_key_padding_mask=ids < 10).mean(1))


def translator(of: Any, source: Tensor, target: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    memory = of["encoder"](of["words"](source))
    return of["last"](of["decoder"](of["words"](target), memory, tgt_mask=mask, tgt_is_causal=True)).mean(1)


def attended(of: Any, x: Tensor) -> Tensor:
    x = x.transpose(1, 2)
    y, shares = of["attention"](x, x, x)
    return of["last"](y.mean(1)) + shares.mean()


PLAIN = dict(dropout=0.0, batch_first=True)
WEIGHTS = torch.linspace(0.5, 2.0, 10, dtype=torch.float64)


def loss_of(name: str, f: Callable[..., Tensor], target: Callable[[], Tensor], outputs: int = 10) -> tuple[str, Subject]:
    return name, applied(lambda of, x: of["layer"](x), vectors(target), f, layer=lambda: nn.Linear(6, outputs))


def with_others(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of three parts of the prediction and signs."""
    return lambda y, target: f(y[:, :3], y[:, 3:6], y[:, 6:9], target.sign())


def connectionist(y: Tensor, target: Tensor) -> Tensor:
    shares = y.view(-1, 5, 2).permute(1, 0, 2).log_softmax(2)
    return F.ctc_loss(shares, target[:, None] * 0 + 1, torch.full((SAMPLES,), 5), torch.ones(SAMPLES, dtype=torch.long))


def numbers() -> Tensor:
    return torch.randn(SAMPLES, 10)


def shares() -> Tensor:
    return torch.rand(SAMPLES, 10)


LOSSES = dict(
    loss_of(*given)
    for given in [
        ("CrossEntropyLoss, smoothed", nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=3), labels),
        ("CrossEntropyLoss, weights of classes", nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), labels),
        ("CrossEntropyLoss, shares", nn.CrossEntropyLoss(), lambda: shares().softmax(1)),
        ("CrossEntropyLoss, none", lambda y, t: (F.cross_entropy(y, t, reduction="none") * t).sum() / t.sum(), labels),
        ("NLLLoss", lambda y, t: F.nll_loss(y.log_softmax(1), t, reduction="sum"), labels),
        ("BCELoss", lambda y, t: F.binary_cross_entropy(y.sigmoid(), t), shares),
        ("BCEWithLogitsLoss, weights", nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), shares),
        ("MSELoss", nn.MSELoss(), numbers),
        ("L1Loss", nn.L1Loss(reduction="sum"), numbers),
        ("SmoothL1Loss", nn.SmoothL1Loss(beta=0.5), numbers),
        ("HuberLoss", nn.HuberLoss(delta=0.5), numbers),
        ("KLDivLoss", lambda y, t: F.kl_div(y.log_softmax(1), t, reduction="batchmean"), lambda: shares().softmax(1)),
        ("PoissonNLLLoss", nn.PoissonNLLLoss(), shares),
        ("GaussianNLLLoss", lambda y, t: F.gaussian_nll_loss(y, t, y.exp()), numbers),
        ("TripletMarginLoss", with_others(lambda a, b, c, _: F.triplet_margin_loss(a, b, c)), lambda: torch.randn(SAMPLES)),
        ("CosineEmbeddingLoss", with_others(lambda a, b, _, t: F.cosine_embedding_loss(a, b, t)), lambda: torch.randn(SAMPLES)),
        ("MarginRankingLoss", with_others(lambda a, b, _, t: F.margin_ranking_loss(a[:, 0], b[:, 0], t)), lambda: torch.randn(SAMPLES)),
        ("CTCLoss", connectionist, labels),
        ("log-probabilities by gather", lambda y, t: -y.log_softmax(1).gather(1, t[:, None]).mean(), labels),
    ]
)

LAYERS = {
    "LSTM": recurrent(nn.LSTM, num_layers=2),
    "LSTM, bidirectional": recurrent(nn.LSTM, bidirectional=True),
    "GRU": recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "RNN": recurrent(nn.RNN),
    "MultiheadAttention": applied(
        attended, sequences, attention=lambda: nn.MultiheadAttention(4, 2, batch_first=True), last=lambda: nn.Linear(4, 10)
    ),
    "TransformerEncoder, padded": applied(
        encoder,
        lambda: (tokens(), labels()),
        words=lambda: nn.Embedding(WORDS, 8),
        encoder=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **PLAIN), 2),
        last=lambda: nn.Linear(8, 10),
    ),
    "TransformerDecoder": applied(
        translator,
        lambda: (tokens(), tokens(), labels()),
        words=lambda: nn.Embedding(WORDS, 8),
        encoder=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **PLAIN), 1),
        decoder=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **PLAIN), 1),
        last=lambda: nn.Linear(8, 10),
    ),
    "EmbeddingBag": stack(lambda: [nn.EmbeddingBag(WORDS, 8, mode="mean"), nn.Linear(8, 10)], lambda: (tokens(), labels())),
    "Conv1d, pools": stack(
        lambda: [nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(24, 10)],
        sequences,
    ),
    "Conv3d, pools": stack(
        lambda: [
            nn.Conv3d(2, 4, 3, padding=1, stride=(1, 2, 2)),
            nn.BatchNorm3d(4),
            nn.ReLU(),
            nn.Conv3d(4, 8, 3, groups=2, padding=1),
            nn.MaxPool3d(2),
            nn.ConvTranspose3d(8, 4, 2, stride=2),
            nn.AvgPool3d((1, 2, 2)),
            nn.AdaptiveAvgPool3d((2, 1, 1)),
            nn.Flatten(),
            nn.Linear(8, 10),
        ],
        volumes,
    ),
    "norms": stack(
        lambda: [
            nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect"),
            nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True),
            nn.LocalResponseNorm(3),
            nn.PReLU(),
            nn.AdaptiveAvgPool2d((5, 3)),
            nn.Flatten(),
            nn.LayerNorm(120),
            nn.utils.parametrizations.weight_norm(nn.Linear(120, 10)),
        ],
        images(16),
    ),
    "functions of elements": applied(lambda of, x: functions(of["layer"](x)), vectors(), layer=lambda: nn.Linear(6, 10)),
    "padding": stack(
        lambda: [
            nn.ReflectionPad2d(1),
            nn.Conv2d(3, 2, 3),
            nn.ReplicationPad2d((1, 0, 2, 1)),
            nn.CircularPad2d(1),
            nn.ZeroPad2d(1),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(2, 10),
        ],
        images(12),
    ),
    "Unfold": stack(lambda: [nn.Unfold(3, stride=2, padding=1), nn.Flatten(), nn.Linear(27 * 36, 10)], images(12)),
    "Upsample": stack(
        lambda: [
            nn.Conv2d(3, 4, 3),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Upsample(size=(13, 17)),
            nn.Upsample(scale_factor=1.5, mode="bicubic", align_corners=True),
            nn.PixelShuffle(2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4, 10),
        ],
        images(8),
    ),
    "dropouts": stack(
        lambda: [
            nn.Conv2d(3, 4, 3),
            nn.Dropout2d(0.3),
            nn.Dropout(0.1),
            nn.AlphaDropout(0.2),
            nn.FeatureAlphaDropout(0.2),
            nn.Flatten(),
            nn.Linear(144, 10),
        ],
        images(8),
        draws=True,
    ),
    "stochastic depth": Subject(
        lambda: Applied(lambda of, x: of["last"](drop_path(of["first"](x)) + x), first=nn.Linear(6, 6), last=nn.Linear(6, 10)), vectors(), draws=True
    ),
    "U-Net, transposed": Subject(lambda: Unet(lambda a, b: nn.ConvTranspose2d(a, b, 2, 2)), lambda: (images(16)()[0], labels(5, 16, 16))),
    "U-Net, bilinear": Subject(
        lambda: Unet(lambda a, b: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(a, b, 1))),
        lambda: (images(16)()[0], labels(5, 16, 16)),
    ),
    "autoencoder": stack(
        lambda: [nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Sigmoid()],
        lambda: (images(8)()[0], torch.rand(SAMPLES, 3, 8, 8)),
        F.mse_loss,
    ),
    "variational autoencoder": Subject(Variational, lambda: (torch.randn(SAMPLES, 6),), None, True),
    "DCGAN's generator": stack(
        lambda: [nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()],
        lambda: (torch.randn(SAMPLES, 6, 1, 1), torch.randn(SAMPLES, 3, 8, 8)),
        F.l1_loss,
    ),
    "diffusion": Subject(Diffusion, lambda: (torch.randn(SAMPLES, 3, 8, 8), 100 * torch.rand(SAMPLES), torch.randn(SAMPLES, 3, 8, 8)), F.mse_loss),
    "low-rank adaption": Subject(LowRank, vectors()),
    "tied weights": Subject(tied, lambda: (tokens(3), labels(WORDS))),
    **LOSSES,
}


def drop_path(x: Tensor) -> Tensor:
    from torchvision.ops import stochastic_depth

    return stochastic_depth(x, 0.3, "row")
