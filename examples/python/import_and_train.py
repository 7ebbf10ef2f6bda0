"""A PyTorch module, trained by tensorwire: imported, trained by two workers and two parameter servers, and taken back.

    python examples/python/import_and_train.py [STRATEGY]

The images are drawn here: a bar that stands or lies, in noise.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tensorwire
from tensorwire.torch import import_


class Net(nn.Module):
    """A convolution with a normalisation, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Linear(8 * 4 * 4, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def bars(samples: int) -> TensorDataset:
    """Returns images of 8×8 and which way their bar lies."""
    labels = torch.randint(0, 2, (samples,))
    images = 0.3 * torch.randn(samples, 1, 8, 8)
    for image, label in zip(images, labels, strict=True):
        at = int(torch.randint(0, 8, ()))
        bar = image[0, at, :] if label else image[0, :, at]
        bar += 1.0
    return TensorDataset(images, labels)


def main(strategy: str) -> None:
    torch.manual_seed(1)
    net, train, test = Net(), bars(512), bars(128)
    loader = DataLoader(train, batch_size=32, shuffle=True)

    graph = import_(net, next(iter(loader)), loss="cross_entropy")
    done = tensorwire.train(
        graph, loader, strategy=strategy, workers=2, servers=2, epochs=5, learning_rate=0.05, momentum=0.9
    )
    net.load_state_dict(done.state_dict)

    net.eval()
    images, labels = test.tensors
    right = (net(images).argmax(1) == labels).float().mean().item()
    print(f"{strategy}: loss {done.losses[0]:.3f} to {done.losses[-1]:.3f}, test accuracy {right:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ps")
