"""tensorwire for PyTorch: a backend of ``torch.distributed``, memory in which it copies nothing, and modules that become graphs.

``torch.distributed.init_process_group("tensorwire")`` needs no import of this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorwire.torch.backend import Options, adopt, empty, register, stats
    from tensorwire.torch.importing import ImportedModule, ModuleImportError, import_, operators

__all__ = [
    "ImportedModule",
    "ModuleImportError",
    "Options",
    "adopt",
    "empty",
    "import_",
    "operators",
    "register",
    "stats",
]

_OF_BACKEND = ("Options", "adopt", "empty", "register", "stats")


def __getattr__(name: str) -> Any:
    """Returns what needs PyTorch, which is imported when it is asked for and not before."""
    if name not in __all__:
        raise AttributeError(f"module 'tensorwire.torch' has no attribute '{name}'")
    module = "backend" if name in _OF_BACKEND else "importing"
    return getattr(import_module(f"tensorwire.torch.{module}"), name)
