"""Distributed deep learning in which a remote machine is just a device.

``torch.distributed.init_process_group("tensorwire")`` needs no import of this package.
``tensorwire.torch.import_`` makes a graph of a PyTorch module, and ``tensorwire.train`` trains it.
"""

from typing import TYPE_CHECKING, Any

from tensorwire._native import __version__

if TYPE_CHECKING:
    from tensorwire.training import JobFailed, Trained, train

__all__ = ["JobFailed", "Trained", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """Returns what needs PyTorch, which is imported when it is asked for and not before."""
    if name not in __all__:
        raise AttributeError(f"module 'tensorwire' has no attribute '{name}'")
    from tensorwire import training

    return getattr(training, name)
