"""Chains of known layers, read off a model's own code.

The model is traced once with symbols (torch.fx). If all it does is one chain of linear, convolutional and LSTM layers,
ReLUs, max-pooling and a mask, `read_chain` gives it; any other model goes through torch.func (functional.py). A chain
may begin by what has no parameters: a table of tokens, or another order of axes, as of images with channels last.
"""

import operator
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedceo.models.lstm import AtLast, Embedding, Layer
from fedceo.training.batched.blocks import Block, Linear
from fedceo.training.batched.chain import Chain, Entry
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.convolution import Conv
from fedceo.training.batched.recurrent import Recurrent

RELUS = (F.relu, torch.relu, "relu")
FLATTENS = (torch.flatten, "flatten")
PERMUTES = (torch.permute, "permute")
PRODUCTS = (operator.mul, torch.mul, "mul")
CONVOLUTION = {"groups": 1, "dilation": (1, 1), "padding_mode": "zeros"}
POOLING = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}

Step = tuple[str, str, nn.Module | int | Entry | None]
"""The operation of a node of the trace: kind, name, and the module, size or function that goes with it."""


class NotAChainError(Exception):
    """The model is no chain; the message says why."""


def read_chain(model: nn.Module, shape: tuple[int, ...]) -> Chain:
    """The model as a chain.

    Raises:
        NotAChainError: the model is something else.
    """
    model.train()
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own code raises when run on symbols
        raise NotAChainError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    steps = list(_steps(model, graph))
    entry = steps.pop(0)[2] if steps and steps[0][0] == "entry" else None
    chain = Chain(tuple(_blocks(_Steps(steps))), shape, entry)  # type: ignore[arg-type]
    names = [name for block in chain.blocks for name in block.names]
    if sorted(names) != sorted(name for name, p in model.named_parameters() if p.requires_grad):
        raise NotAChainError("not every trained parameter appears once")
    _check(model, chain, shape)
    return chain


class _Tracer(fx.Tracer):
    """A tracer that does not look into the parts of models/lstm.py, whose blocks know them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Layer | AtLast | Embedding) or super().is_leaf_module(m, module_qualified_name)


def _steps(model: nn.Module, graph: fx.Graph) -> Iterator[Step]:
    """The operations of the trace, if each takes the output of the one before."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    mask = inputs[1] if len(inputs) == 2 and getattr(model, "mask_shape", None) is not None else None
    if len(inputs) > 1 and mask is None:
        raise NotAChainError("more than one input")
    before = inputs[0]
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            if node.args[0] is not before:
                raise NotAChainError("more than one way through")
            return
        takes = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), AtLast):
            takes = [arg for arg in takes if arg is not inputs[0]]  # the tokens, by which it finds the last one
        if before not in takes or any(arg is not before and arg is not mask for arg in takes):
            raise NotAChainError(f"{node.name} takes more than what came before")
        yield _step(model, node, masked=mask in takes)
        before = node


def _step(model: nn.Module, node: fx.Node, masked: bool) -> Step:
    """The operation of one node; masked: whether the mask is among its inputs."""
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    if masked and node.target in PRODUCTS and len(node.args) == 2 and not node.kwargs:
        return "mask", node.name, None
    if masked:
        raise NotAChainError(f"{node.name} uses the mask otherwise than as a factor")
    if isinstance(module, nn.Linear):
        return "linear", str(node.target), module
    if isinstance(module, nn.Conv2d) and _plain(module, CONVOLUTION) and not isinstance(module.padding, str):
        return "conv", str(node.target), module
    if isinstance(module, nn.ReLU) or node.target in RELUS:
        return "relu", node.name, None
    if _flattens(node, module):
        return "flatten", node.name, None
    if isinstance(module, Layer):
        return "lstm", str(node.target), module
    if isinstance(module, AtLast):
        return "last", node.name, None
    if isinstance(module, Embedding):
        return "entry", node.name, module
    if node.target in PERMUTES and (axes := _axes(node)):
        return "entry", node.name, lambda x: x.permute(0, 1, *axes)
    if size := _pooled(node, module):
        return "pool", node.name, size
    raise NotAChainError(
        f"{node.name} is not a linear, convolutional or LSTM layer, ReLU, max-pooling, flatten or mask"
    )


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the node makes all axes but the first one axis."""
    if isinstance(module, nn.Flatten):
        return _plain(module, {"start_dim": 1, "end_dim": -1})
    return node.target in FLATTENS and node.args[1:] in ((1,), (1, -1)) and not node.kwargs


def _axes(node: fx.Node) -> tuple[int, ...]:
    """The order into which a permutation puts a record's axes, counted from 2; none if it moves the batch's axis."""
    given = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
    if node.kwargs or not isinstance(given, tuple | list) or not all(isinstance(axis, int) for axis in given):
        return ()
    axes = tuple(axis % len(given) for axis in given if isinstance(axis, int))
    return tuple(axis + 1 for axis in axes[1:]) if axes[:1] == (0,) else ()


def _pooled(node: fx.Node, module: nn.Module | None) -> int:
    """The side of the squares that a max-pooling takes, without overlap; 0 if the node is something else."""
    size: Any = 0
    usual = False
    if isinstance(module, nn.MaxPool2d):
        size = module.kernel_size
        usual = _plain(module, {**POOLING, "stride": size})
    elif node.target is F.max_pool2d and len(node.args) == 2:
        size = node.args[1]
        usual = {**POOLING, **node.kwargs} in ({**POOLING, "stride": None}, {**POOLING, "stride": size})
    return size if usual and isinstance(size, int) else 0


def _plain(module: nn.Module, usual: dict[str, Any]) -> bool:
    """Whether the module's attributes have the values that the blocks know."""
    return all(getattr(module, name) == value for name, value in usual.items())


class _Steps:
    """The operations of a trace, taken from the front."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def take(self, kind: str) -> bool:
        """Take the next operation if it is of this kind; returns whether it was."""
        found = bool(self.steps) and self.steps[0][0] == kind
        if found:
            self.steps.pop(0)
        return found


def _blocks(steps: _Steps) -> Iterator[Block]:
    """Layers with the operations after them; a ReLU commutes with pooling and with a mask, so either may be first."""
    while steps.steps:
        kind, name, module = steps.steps.pop(0)
        bias = f"{name}.bias" if getattr(module, "bias", None) is not None else None
        if kind == "flatten":
            continue
        if isinstance(module, nn.Linear):
            relu = steps.take("relu")
            masked = steps.take("mask")
            yield Linear(f"{name}.weight", bias, masked, relu or steps.take("relu"))
        elif isinstance(module, Layer):
            yield Recurrent(name, at_last=steps.take("last"))
        elif isinstance(module, nn.Conv2d):
            relu, pool = steps.take("relu"), 1
            if steps.steps and steps.steps[0][0] == "pool":
                pool = int(steps.steps.pop(0)[2])  # type: ignore[arg-type]
            relu = relu or steps.take("relu")
            side, stride, padding = module.kernel_size, module.stride, module.padding
            yield Conv(f"{name}.weight", bias, side, stride, padding, relu, pool)  # type: ignore[arg-type]
        else:
            raise NotAChainError(f"{name} does not follow a layer")


def _check(model: nn.Module, chain: Chain, shape: tuple[int, ...]) -> None:
    """Compare the chain's output with the model's: hooks and wrappers do not show in a trace."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    first = next(iter(weights.values()))
    x = torch.linspace(-1, 1, 2 * prod(shape), dtype=first.dtype, device=first.device).view(2, *shape)
    batch = Batch(x[None], torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2], device=first.device))
    with torch.no_grad():
        expected = model(x)
        try:
            got = chain.forward({name: w[None] for name, w in weights.items()}, batch)[-1].y
        except RuntimeError as error:  # shapes that do not fit, as of a linear layer on images that are not flat
            raise NotAChainError(str(error).splitlines()[0]) from None
    if got[0].shape != expected.shape or not torch.allclose(got[0], expected, rtol=1e-3, atol=1e-4):
        raise NotAChainError("what it gives is not what its code says")
