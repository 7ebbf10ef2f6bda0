"""PyTorch modules as graphs: what ``torch.export`` gives of one, undecomposed, described for crate ``import``.

The graph is ours: it is differentiated, placed and trained by tensorwire, and PyTorch is not asked again. What is computed of
constants alone (positions, masks) is computed here, once.
"""

import contextlib
import functools
import itertools
import json
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions
from torch._guards import detect_fake_mode
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx

from tensorwire import _native
from tensorwire.torch import _tensors, formulas

Loss = str | nn.Module | Callable[..., Tensor]

_LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
    "l1": nn.functional.l1_loss,
    "binary_cross_entropy_with_logits": nn.functional.binary_cross_entropy_with_logits,
}
_FLOATS = {torch.float32: "f32", torch.float64: "f64"}
_DTYPES = {
    **_FLOATS,
    torch.int64: "i32",
    torch.int32: "i32",
    torch.int16: "i32",
    torch.int8: "i32",
    torch.uint8: "u8",
    torch.bool: "u8",
}
#: Operators that give a view of their first argument.
_VIEWS = re.compile(
    r"aten\.(view|reshape|flatten|unflatten|transpose|permute|t|mT|slice|select|narrow|expand|expand_as|squeeze|"
    r"unsqueeze|split|split_with_sizes|chunk|unbind|alias|detach|movedim|contiguous|to|diagonal)\."
)
#: Operators that make a tensor of another one's size alone.
_SHAPED = re.compile(r"aten\.(zeros_like|ones_like|full_like|empty_like|new_zeros|new_ones|new_full|new_empty)\.")
#: Operators that make a tensor of anything.
_EMPTY = re.compile(r"aten\.(empty|new_empty|empty_like)\.")
#: Views through which their whole is written.
_WRITTEN = re.compile(r"aten\.(slice|select|transpose|view|reshape|flatten|unflatten|squeeze|unsqueeze|alias|contiguous)\.")
#: Operators that fill a tensor with what they draw.
_DRAWN = re.compile(r"aten\.(bernoulli_\.float|uniform_|normal_)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')
_PYTORCH = torch.__file__.rsplit("/", 1)[0] + "/"
#: What ``torch.export`` raises where a value decides what is computed.
_BY_VALUE = ("DataDependent", "DynamicOutputShape")


class ModuleImportError(ValueError):
    """A module cannot be imported. Says which operator it is, which part of the module, and which line of its source."""

    def __init__(self, message: str, operator: str = "", module: str = "", line: str = "") -> None:
        super().__init__(message)
        self.operator = operator
        self.module = module
        self.line = line


def _not_followed(error: Exception) -> ModuleImportError:
    """Returns what is said of an error of ``torch.export``: the line of the module, and what to do."""
    said = str(error).strip().split("\n")[0].rstrip(".")
    frames = traceback.extract_tb(error.__traceback__)
    # of those that are not PyTorch's, ours or generated, the last is the module's
    other = ("<", _PYTORCH, __file__)
    own = [frame for frame in frames if not frame.filename.startswith(other)]
    line = f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""
    if any(name in type(error).__name__ for name in _BY_VALUE):
        mend = "rewrite it so that no value decides what is computed"
    else:
        mend = "the module and its loss are to run on the example, which has the inputs first, then what the loss takes"
    return ModuleImportError(f"torch.export cannot follow the module: {said}{line and f' ({line})'}; {mend}", line=line)


@dataclass(frozen=True)
class ImportedModule:
    """A PyTorch module as a graph, for batches of one size."""

    module: nn.Module
    #: One batch, as the data bring it.
    example: Any
    loss: Loss | None
    #: Samples of a batch.
    batch: int
    #: What crate ``import`` makes a graph of, as JSON has it.
    description: dict[str, Any] = field(repr=False)
    #: Tensors that never change, by the names that nodes have for them.
    constants: dict[str, Tensor] = field(repr=False)
    #: First values of what is learned and averaged, by the keys of ``state_dict``.
    first: dict[str, Tensor] = field(repr=False)
    #: What each buffer that counts steps grows by in one.
    counters: dict[str, int] = field(repr=False)
    dtype: str

    @property
    def inputs(self) -> list[str]:
        """The names of all tensors of a batch, in their order."""
        return list(_leaves(self.example))

    @property
    def operators(self) -> set[str]:
        """The operators that it is made of."""
        return {node["operator"] for node in self.description["nodes"]}

    def of_batch(self, samples: int) -> "ImportedModule":
        """Returns the module for batches of so many samples."""
        if samples == self.batch:
            return self
        rows = torch.arange(samples) % self.batch
        example = _mapped(self.example, lambda tensor: tensor[rows])
        return import_(self.module, example, loss=self.loss)

    def state_dict(self, trained: Mapping[str, Tensor], steps: int) -> dict[str, Tensor]:
        """Returns all that the module's ``load_state_dict`` takes, with the values that so many steps have trained."""
        state = {key: value.detach().clone() for key, value in self.module.state_dict().items()}
        same = _first_names(self.module)
        for key, value in state.items():
            found = trained.get(same.get(key, key))
            if found is not None:
                value.copy_(found)
            elif key in self.counters:
                value += self.counters[key] * steps
        return state


def import_(module: nn.Module, example: Any, loss: Loss | None = None) -> ImportedModule:
    """Returns a module as a graph that tensorwire trains, with the module's own weights as first values.

    ``example`` is a batch as a DataLoader gives it: tensors in a tuple or list, or in a mapping by the names of
    ``forward``'s arguments. Its first dimension is that of samples. Values do not matter, shapes and types do.

    With a ``loss`` (``"cross_entropy"``, ``"mse"``, ``"l1"``, ``"binary_cross_entropy_with_logits"``, a module or a
    function of prediction and target) the last tensor of the batch, or the one called ``labels``, is the target, and
    ``forward`` takes the others. Without one the module takes the whole batch and returns its loss: a number, or something
    that has it as ``loss``, as the models of Hugging Face do.

    The module is imported as it is: call ``module.train()`` before, for dropout and normalisation by batches. What is
    dropped is drawn by tensorwire; parameters that take no gradient stay as they are.

    Raises ModuleImportError where an operator is not known. It names the operator and the line, and says what to do.
    """
    leaves = _leaves(example)
    batch = _batch_of(leaves)
    wrapped = _WithLoss(module, _loss_of(loss), isinstance(example, Mapping))
    # a tensor that is given twice is two inputs
    arguments = {name: tensor.clone() for name, tensor in leaves.items()}
    # what it logs is the error once more
    chatter = logging.getLogger("torch._subclasses.fake_tensor")
    level = chatter.level
    chatter.setLevel(logging.CRITICAL)
    try:
        if wrapped.is_mapping:
            program = torch.export.export(wrapped, (), arguments, strict=False)
        else:
            program = torch.export.export(wrapped, tuple(arguments.values()), strict=False)
    except Exception as error:
        raise _not_followed(error) from error
    finally:
        chatter.setLevel(level)
    walk = _Walk(module, program, list(leaves), batch)
    described = walk.described(type(module).__name__)
    imported = ImportedModule(
        module, example, loss, batch, described, walk.used_constants(), walk.first(), walk.counters, walk.dtype
    )
    try:
        _native.check_module(json.dumps(described), _tensors.dumped(imported.constants), walk.dtype)
    except _native.ImportFailed as failed:
        raise ModuleImportError(*failed.args) from None
    return imported


def operators() -> list[str]:
    """Returns the names of the operators that can be imported, perhaps not in every use."""
    return sorted({*_native.operators(), *formulas.MAKERS})


class _WithLoss(nn.Module):
    """A module that takes a whole batch and returns its loss."""

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor] | None, is_mapping: bool) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self.is_mapping = is_mapping
        # the parts are as they were; this one decides nothing
        self.training = module.training

    def forward(self, *batch: Tensor, **named: Tensor) -> Tensor:
        if self.loss is None:
            return _value(self.module(*batch, **named))
        if self.is_mapping:
            target = named.pop("labels")
            return self.loss(self.module(**named), target)
        return self.loss(self.module(*batch[:-1]), batch[-1])


def _value(output: Any) -> Tensor:
    """Returns the loss among what a module returns."""
    if not isinstance(output, Tensor):
        output = getattr(output, "loss", None) if not isinstance(output, (tuple, list)) else output[0]
    if not isinstance(output, Tensor) or output.dim() != 0:
        raise ModuleImportError(
            "the module returns no loss; give import_ a loss, or return one number, or something that has it as 'loss'"
        )
    return output


def _loss_of(loss: Loss | None) -> Callable[..., Tensor] | None:
    if not isinstance(loss, str):
        return loss
    if loss not in _LOSSES:
        raise ModuleImportError(f"there is no loss '{loss}'; there are {', '.join(_LOSSES)}, or give a function")
    return _LOSSES[loss]


def _leaves(batch: Any) -> dict[str, Tensor]:
    """Returns the tensors of a batch by name, in their order."""
    if isinstance(batch, Mapping):
        named = dict(batch)
    elif isinstance(batch, (tuple, list)):
        named = {f"input_{place}": tensor for place, tensor in enumerate(batch)}
    else:
        named = {"input_0": batch}
    for name, tensor in named.items():
        if name == "step":
            raise ModuleImportError("'step' of the batch is what the graph counts steps by; call the argument otherwise")
        if not isinstance(tensor, Tensor):
            raise ModuleImportError(f"'{name}' of the batch is a {type(tensor).__name__}; give tensors, in a tuple or a mapping")
    return named


def _mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    changed = {name: change(tensor) for name, tensor in _leaves(batch).items()}
    return changed if isinstance(batch, Mapping) else tuple(changed.values())


def _batch_of(leaves: Mapping[str, Tensor]) -> int:
    """Returns how many samples a batch has."""
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in leaves.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ModuleImportError(f"the first dimensions of the batch are {sizes}; give every tensor the same number of samples")
    return next(iter(sizes.values()))


def _first_names(module: nn.Module) -> dict[str, str]:
    """Returns for each name of a parameter the first that the same parameter has: tied weights are one."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


@dataclass(frozen=True)
class _Made:
    """A tensor of the graph that is being described."""

    name: str
    output: int = 0


@dataclass(frozen=True)
class _Constant:
    name: str
    kept: Tensor
    #: The tensor itself, so that no other gets its id.
    origin: Tensor


class _Walk:
    """The nodes of an exported program, one by one, as a description."""

    def __init__(self, module: nn.Module, program: Any, inputs: list[str], batch: int) -> None:
        self.batch = batch
        self.program = program
        self.nodes: list[dict[str, Any]] = []
        #: The names that the loss depends on, once it is described.
        self.needed: set[str] = set()
        self.counters: dict[str, int] = {}
        self.inputs: list[dict[str, Any]] = []
        #: Names of parameters and buffers in the graph, and their keys.
        self.parameters: dict[str, str] = {}
        self.buffers: dict[str, str] = {}
        self.averages: set[str] = set()
        self._constants: dict[tuple[int, int], _Constant] = {}
        self._values: dict[fx.Node, Any] = {}
        #: The node whose memory a node's value is a part of.
        self._roots: dict[fx.Node, fx.Node] = {}
        self._tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
        self._owned = {tensor.data_ptr() for tensor in self._tensors.values()}
        self._same = _first_names(module)
        self.dtype = self._floating(module)
        self._enter(inputs)
        self._walk(program.graph_module, "")
        (loss,) = program.graph.output_node().args[0]
        self.loss = self._values[loss]
        if not isinstance(self.loss, _Made):
            raise ModuleImportError("the loss does not depend on the batch or on a parameter; there is nothing to train")

    @staticmethod
    def _floating(module: nn.Module) -> str:
        found = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
        if len(found) != 1 or not found <= _FLOATS.keys():
            names = ", ".join(sorted(str(dtype) for dtype in found)) or "missing"
            raise ModuleImportError(f"the parameters are {names}; have all of torch.float32 or all of torch.float64")
        return _FLOATS[found.pop()]

    def described(self, name: str) -> dict[str, Any]:
        """Returns the description of what the loss depends on."""
        needed, kept = {self.loss.name}, []
        for node in reversed(self.nodes):
            if node["name"] in needed:
                kept.append(node)
                needed |= set(_named(list(node["arguments"].values())))
        self.nodes = kept[::-1]
        self.needed = needed
        return {
            "name": name,
            "batch": self.batch,
            "inputs": [given for given in self.inputs if given["name"] in needed],
            "parameters": [self._state(at, key) for at, key in self._learned().items()],
            "averages": [self._state(at, self.buffers[at]) for at in sorted(self.averages & needed)],
            "nodes": self.nodes,
            "loss": {"tensor": self.loss.name, "output": self.loss.output},
        }

    def _learned(self) -> dict[str, str]:
        return {name: key for name, key in self.parameters.items() if name in self.needed}

    def _state(self, name: str, key: str) -> dict[str, Any]:
        return {"name": name, "key": key, "dims": list(self._tensors[key].shape)}

    def used_constants(self) -> dict[str, Tensor]:
        """Returns the constants of the description."""
        return {one.name: one.kept for one in self._constants.values() if one.name in self.needed}

    def first(self) -> dict[str, Tensor]:
        """Returns the first values of what is learned and averaged, by key."""
        keys = [*self._learned().values(), *(self.buffers[at] for at in self.averages & self.needed)]
        return {key: self._tensors[key].detach() for key in keys}

    def _enter(self, inputs: list[str]) -> None:
        """Takes in what the graph begins with."""
        given = iter(inputs)
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.find_nodes(op="placeholder"):
            spec = specs[node.name]
            if spec.kind == InputKind.USER_INPUT:
                self._input(node, next(given))
                continue
            key = (spec.target or "").removeprefix("module.")
            if spec.kind == InputKind.PARAMETER and key in self._tensors and self._tensors[key].requires_grad:
                key = self._same[key]
                at = next((name for name, known in self.parameters.items() if known == key), node.name)
                self.parameters[at] = key
                self._values[node] = _Made(at)
            elif spec.kind == InputKind.PARAMETER and key not in self._tensors:
                raise ModuleImportError(f"the loss has a parameter, '{key}'; make it part of the module that is trained")
            else:
                # what takes no gradient is a constant; what a normalisation changes is found out there
                value = self.program.state_dict.get(spec.target)
                value = self.program.constants[spec.target] if value is None else value
                self._values[node] = value.detach()
                if key in self._tensors:
                    self.buffers[node.name] = key

    def _input(self, node: fx.Node, name: str) -> None:
        tensor = node.meta["val"]
        if tensor.dtype not in _DTYPES:
            raise ModuleImportError(f"'{name}' of the batch is of {tensor.dtype}; give torch.float32, torch.int64 or torch.bool")
        self.inputs.append({"name": name, "dtype": _DTYPES[tensor.dtype], "dims": list(tensor.shape)})
        self._values[node] = _Made(name)

    def _walk(self, module: fx.GraphModule, prefix: str) -> None:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._values[node] = getattr(module, node.target)
            elif node.op == "call_function":
                self._values[node] = self._call(node, prefix)

    def _call(self, node: fx.Node, prefix: str) -> Any:
        """Returns what a node gives: a tensor of the graph, a constant, or several of them."""
        name = getattr(node.target, "__name__", str(node.target))
        if name == "getitem":
            return self._value(node.args[0])[node.args[1]]
        if name == "wrap_with_set_grad_enabled":
            return self._inlined(node, prefix)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise self._refused(node, str(node.target), "this is no operator; rewrite it without")
        operator = str(node.target)
        if operator.startswith(("aten._assert", "aten.sym_constrain")):
            return None
        if operator == "aten.batch_norm.default" and node.args[5]:
            self._averaged(node)
        given = self._arguments(node)
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        changed = _changed(node)
        if changed is not None and self._counts(node, changed, given):
            return None
        if _VIEWS.match(operator) and isinstance(node.args[0], fx.Node) and not _copies(node, operator):
            self._roots[node] = self._root(node.args[0])
        if not is_random and not _has_made(given):
            made = self._computed(node)
            if changed is not None and self._is_own(changed):
                # all views of it are of the same memory
                return made
        elif _SHAPED.match(operator) and not _has_made([*given.values()][1:]):
            made = self._computed(node)
        elif (inner := self._apart(node, operator, is_random)) is not None:
            made = self._part(inner, node, prefix)
        else:
            made = self._emitted(node, operator, given, prefix)
        if changed is not None:
            self._check_views(node, changed)
            self._change(changed, made, prefix)
        return made

    def _apart(self, node: fx.Node, operator: str, is_random: bool) -> fx.GraphModule | None:
        """Returns a graph of others that a node is computed by, if there is no operator of ours, or not in this use."""

        def seen(argument: fx.Node) -> Any:
            value = self._values[argument]
            return value if isinstance(value, Tensor) else argument.meta["val"]

        made_by = str(node.args[0].target) if node.args and isinstance(node.args[0], fx.Node) else ""
        found = formulas.formula(operator, lambda: self._arguments(node, seen) | {"made_by": made_by})
        if found is None:
            # what is drawn inside would not be ours
            return None if is_random or _is_known(operator) else _decomposed(node)
        try:
            return _traced(node, found)
        except Exception as error:
            raise self._refused(node, operator, f"not in this use: {error}") from error

    def _is_own(self, node: fx.Node) -> bool:
        """True if the memory of a constant was made while the graph was walked, and is nobody else's."""
        return self._root(node).op == "call_function"

    def _computed(self, node: fx.Node) -> Any:
        """Returns what an operator gives of constants, or of the size of a tensor."""
        arguments = list(fx.map_arg(node.args, self._value))
        if arguments and isinstance(arguments[0], _Made):
            of = node.args[0].meta["val"]
            arguments[0] = torch.empty((), dtype=of.dtype).expand(of.shape)
        changed = _changed(node)
        if changed is not None and not self._is_own(changed):
            # the module's own stays as it is
            arguments[0] = arguments[0].clone()
        with torch.no_grad():
            made = node.target(*arguments, **fx.map_arg(node.kwargs, self._value))
            return made.zero_() if _EMPTY.match(str(node.target)) else made

    def _change(self, changed: fx.Node, made: Any, prefix: str) -> None:
        """Gives a node that is changed in place its new value, and those that it is a view of."""
        self._values[changed] = made
        for view, whole in itertools.pairwise(self._through(changed)):
            self._values[whole] = self._written(view, prefix)

    def _through(self, changed: fx.Node) -> list[fx.Node]:
        """Returns a node that is changed in place, what it is a view of, and so on, as far as it is known how to write there."""
        through = [changed]
        while self._root(through[-1]) is not through[-1] and _WRITTEN.match(str(through[-1].target)):
            through.append(through[-1].args[0])
        return through

    def _written(self, view: fx.Node, prefix: str) -> _Made:
        """Returns what a view is of, with the view's new value in it."""
        operator, shape = str(view.target), _shape(view.args[0].meta["val"])
        given = self._arguments(view)
        name = operator.split(".")[1]
        if name in ("slice", "select"):
            operator = f"aten.{name}_scatter.default"
            arguments = {**given, "src": self._values[view]}
        elif name == "transpose":
            arguments = {**given, "self": self._values[view]}
        else:
            operator = "aten.view.default"
            arguments = {"self": self._values[view], "size": shape["dims"]}
        name = f"{prefix}{view.name}.whole_{len(self.nodes)}"
        encoded = {at: self._encoded(view, at, value) for at, value in arguments.items()}
        self.nodes.append({"name": name, "operator": operator, "arguments": encoded, "outputs": [shape], "place": _place(view)})
        return _Made(name)

    def _inlined(self, node: fx.Node, prefix: str) -> Any:
        """Returns what a part of the graph gives that is computed with or without gradients."""
        enabled, target, *given = node.args
        inner = self._values[target]
        if not _has_made([self._value(found) for found in given]):
            with torch.no_grad():
                return inner(*[self._value(found) for found in given])
        for placeholder, found in zip(inner.graph.find_nodes(op="placeholder"), given, strict=True):
            self._values[placeholder] = self._value(found)
        self._walk(inner, f"{prefix}{node.name}.")
        results = [self._value(found) for found in inner.graph.output_node().args[0]]
        return results if enabled else [self._detached(made, f"{prefix}{node.name}.{at}") for at, made in enumerate(results)]

    def _part(self, inner: fx.GraphModule, node: fx.Node, prefix: str) -> Any:
        """Returns what a node gives, computed by a graph that takes the tensors among its arguments."""
        for placeholder, found in zip(inner.graph.find_nodes(op="placeholder"), _nodes(node), strict=True):
            self._values[placeholder] = self._value(found)
        self._walk(inner, f"{prefix}{node.name}.")
        result = inner.graph.output_node().args[0]
        return [self._value(found) for found in result] if isinstance(result, (tuple, list)) else self._value(result)

    def _detached(self, made: Any, name: str) -> Any:
        if not isinstance(made, _Made):
            return made
        arguments = {"self": {"tensor": made.name, "output": made.output}}
        self.nodes.append({"name": name, "operator": "aten.detach.default", "arguments": arguments, "outputs": [None]})
        return _Made(name)

    def _emitted(self, node: fx.Node, operator: str, given: dict[str, Any], prefix: str) -> Any:
        """Adds a node to the description; returns what it makes."""
        if operator == "aten.scaled_dot_product_attention.default":
            given = _plain_mask(given)
        if _DRAWN.match(operator):
            given = {**given, "self": None}
        made = node.meta["val"]
        outputs = list(made) if isinstance(made, (tuple, list)) else [made]
        name = f"{prefix}{node.name}"
        self.nodes.append(
            {
                "name": name,
                "operator": operator,
                "arguments": {at: self._encoded(node, at, value) for at, value in given.items()},
                "outputs": [_shape(output) for output in outputs],
                "place": _place(node),
            }
        )
        if isinstance(made, (tuple, list)):
            return [_Made(name, output) for output in range(len(outputs))]
        return _Made(name)

    def _averaged(self, node: fx.Node) -> None:
        """Takes the running statistics of a normalisation for moving averages."""
        if node.args[6] is None:
            raise self._refused(node, str(node.target), "momentum=None is not known; give a number")
        for buffer in node.args[3:5]:
            if isinstance(buffer, fx.Node) and buffer.name in self.buffers:
                self.averages.add(buffer.name)
                self._values[buffer] = _Made(buffer.name)

    def _arguments(self, node: fx.Node, of: Callable[[fx.Node], Any] | None = None) -> dict[str, Any]:
        """Returns the arguments by the names that the operator's schema has for them, with what ``of`` gives of nodes."""
        found, of = {}, of or self._value
        for place, argument in enumerate(node.target._schema.arguments):
            if place < len(node.args):
                value = node.args[place]
            else:
                value = node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
            found[argument.name] = fx.map_arg(value, of) if _has_nodes(value) else value
        return found

    def _value(self, node: Any) -> Any:
        return self._values[node] if isinstance(node, fx.Node) else node

    def _root(self, node: fx.Node) -> fx.Node:
        return self._roots.get(node, node)

    def _counts(self, node: fx.Node, changed: fx.Node, given: dict[str, Any]) -> bool:
        """True if a node adds a number to a buffer, which is then counted. Anything else that changes a buffer is refused."""
        if changed.name not in self.buffers:
            return False
        by = given.get("other")
        if str(node.target) != "aten.add_.Tensor" or not isinstance(by, int):
            raise self._refused(
                node, str(node.target), f"it changes the buffer '{self.buffers[changed.name]}'; only batch norms and counters may"
            )
        self.counters[self.buffers[changed.name]] = by
        return True

    def _check_views(self, node: fx.Node, changed: fx.Node) -> None:
        """Refuses a change in place that other views of the same memory would see, but for those that it is written through."""
        root, through = self._root(changed), self._through(changed)
        order = {other: place for place, other in enumerate(node.graph.nodes)}
        for other in order:
            is_other = other not in through and self._root(other) is root and other in self._values
            if is_other and any(order[user] > order[node] for user in other.users):
                raise self._refused(
                    node, str(node.target), f"it changes '{changed.name}' in place, which '{other.name}' is a view of; assign a new tensor"
                )

    def _encoded(self, node: fx.Node, at: str, value: Any) -> Any:
        """Returns an argument as JSON has it."""
        if isinstance(value, _Made):
            return {"tensor": value.name, "output": value.output}
        if isinstance(value, Tensor):
            if value.dim() == 0 and at in ("other", "self", "value", "exponent"):
                return self._encoded(node, at, value.item())
            return {"tensor": self._constant(node, value), "output": 0}
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return {"number": str(value)}
        if isinstance(value, (list, tuple)):
            return [self._encoded(node, at, each) for each in value]
        return value if isinstance(value, (bool, int, float, str)) else None

    def _constant(self, node: fx.Node, tensor: Tensor) -> str:
        # what is changed in place is another one from there on
        key = (id(tensor), tensor._version)
        if key not in self._constants:
            if tensor.dtype not in _DTYPES:
                raise self._refused(node, str(node.target), f"it takes a constant of {tensor.dtype}; use torch.float32")
            as_ours = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "u8": torch.uint8}
            kept = tensor.detach().to(as_ours[_DTYPES[tensor.dtype]]).contiguous()
            if kept.data_ptr() == tensor.data_ptr() and tensor.data_ptr() not in self._owned:
                kept = kept.clone()
            self._constants[key] = _Constant(f"constant_{len(self._constants)}", kept, tensor)
        return self._constants[key].name

    def _refused(self, node: fx.Node, operator: str, reason: str) -> ModuleImportError:
        place = _place(node)
        said = ", ".join(part for part in (place["module"], place["line"]) if part)
        return ModuleImportError(f"{operator} ({said}): {reason}", operator, place["module"], place["line"])


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(_native.operators())


def _is_known(operator: str) -> bool:
    # what works in place means the same
    return operator in _known() or operator.replace("_.", ".", 1) in _known()


def _nodes(node: fx.Node) -> list[fx.Node]:
    """Returns the nodes among a node's arguments, each once."""
    found: dict[fx.Node, None] = {}
    fx.map_arg((node.args, node.kwargs), lambda argument: found.setdefault(argument))
    return list(found)


def _traced(node: fx.Node, by: Callable[..., Any], **options: Any) -> fx.GraphModule:
    """Returns what a function gives for a node's arguments, as a graph of the tensors among them."""
    nodes = _nodes(node)

    def computed(*tensors: Tensor) -> Any:
        given = dict(zip(nodes, tensors, strict=True))
        return by(*fx.map_arg(node.args, given.__getitem__), **fx.map_arg(node.kwargs, given.__getitem__))

    examples = [argument.meta["val"] for argument in nodes]
    # layers stay whole unless they are to come apart; what the function makes has sizes alone, as the examples
    options = options or {"pre_dispatch": True}
    with detect_fake_mode(examples) or contextlib.nullcontext():
        inner = make_fx(computed, **options)(*examples)
    for made in inner.graph.nodes:
        made.meta |= {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
    return inner


def _decomposed(node: fx.Node) -> fx.GraphModule | None:
    """Returns what PyTorch computes an operator by, as a graph of the tensors among its arguments; None if by nothing else."""
    # what is a formula of others comes apart by itself, and some of the rest by PyTorch's table
    for table in ({}, get_decompositions([node.target])):
        try:
            inner = _traced(node, node.target, decomposition_table=table)
        except Exception:
            # it depends on values; that the operator is not known says enough
            return None
        if all(made.target is not node.target for made in inner.graph.nodes):
            return inner
    return None


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _flat(each)]
    return [value]


def _has_made(value: Any) -> bool:
    return any(isinstance(leaf, _Made) for leaf in _flat(value))


def _has_nodes(value: Any) -> bool:
    return any(isinstance(leaf, fx.Node) for leaf in _flat(value))


def _named(arguments: list[Any]) -> list[str]:
    """Returns the names of all tensors among arguments."""
    names = []
    for argument in arguments:
        if isinstance(argument, dict) and "tensor" in argument:
            names.append(argument["tensor"])
        elif isinstance(argument, list):
            names += _named(argument)
    return names


def _copies(node: fx.Node, operator: str) -> bool:
    """True if what may be a view of its first argument is a copy of it here."""
    of, made = node.args[0].meta["val"], node.meta["val"]
    if operator.startswith("aten.contiguous."):
        return not of.is_contiguous(memory_format=node.kwargs.get("memory_format", torch.contiguous_format))
    if not operator.startswith(("aten.reshape.", "aten.flatten.")):
        return False
    try:
        of.view(made.shape)
    except (RuntimeError, ValueError):
        return True
    return False


def _changed(node: fx.Node) -> fx.Node | None:
    """Returns the node whose value this one changes in place."""
    schema = node.target._schema
    if not schema.is_mutable or not schema.arguments or not schema.arguments[0].is_write:
        return None
    return node.args[0] if isinstance(node.args[0], fx.Node) else None


def _shape(output: Any) -> dict[str, Any] | None:
    if not isinstance(output, Tensor) or output.dtype not in _DTYPES:
        return None
    return {"dtype": _DTYPES[output.dtype], "dims": list(output.shape)}


def _plain_mask(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an attention without a mask that says nothing, or what is_causal says."""
    mask = given.get("attn_mask")
    if not isinstance(mask, Tensor):
        return given
    # what is only repeated is one
    for axis in range(mask.dim() - 2):
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    if mask.dtype == torch.bool:
        if bool(mask.all()):
            return {**given, "attn_mask": None}
        rows, columns = mask.shape[-2:]
        if rows == columns and bool((mask == torch.ones(rows, columns, dtype=torch.bool).tril()).all()):
            return {**given, "attn_mask": None, "is_causal": True}
    return {**given, "attn_mask": mask}


def _place(node: fx.Node) -> dict[str, str]:
    """Returns the part of the module that a node is of, and the last line of its source, PyTorch's own if there is no other."""
    stack = node.meta.get("nn_module_stack") or {}
    parts = [path for path, _ in stack.values()]
    module = parts[-1] if parts else ""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if frame[0] != __file__]
    own = [frame for frame in frames if not frame[0].startswith(_PYTORCH)] or frames
    line = ""
    if own:
        file, number, text = own[-1]
        line = f"{file}:{number}: {text.strip()}"
    return {"module": module.removeprefix("module").removeprefix("."), "line": line}

