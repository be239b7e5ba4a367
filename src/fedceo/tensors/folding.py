"""Models of K clients as (d, h, K) tensors, and back.

A cohort's weights come either as a list of K state dicts or, already stacked, as one mapping from names to tensors
with the client axis first. `fold` takes both and `unfold` gives back the kind it was given.

The layout reverses a parameter's axes and keeps the output axis apart, so that column j of every slice belongs to
output unit j:

    linear weight (out, in)            -> (in, out, K)
    convolution   (out, in, kh, kw)    -> (kw * kh * in, out, K)
    LSTM weight   (4 * hidden, in)     -> (in, 4 * hidden, K)
    bias          (out,)               -> (1, out, K)
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import overload

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights


def fold(models: Sequence[Weights] | Weights, layers: str | Sequence[str] = "all") -> dict[str, Tensor]:
    """Stack the chosen floating-point parameters of K models into one (d, h, K) tensor each.

    Args:
        models: K state dicts of one architecture, or one mapping name -> (K, ...).
        layers: see `select_layers`.
    """
    stacked = models if isinstance(models, Mapping) else _stack(models)
    floating = [name for name, tensor in stacked.items() if tensor.is_floating_point()]
    return {name: _to_tensor(stacked[name]) for name in select_layers(floating, layers)}


@overload
def unfold(tensors: Weights, models: Weights) -> dict[str, Tensor]: ...
@overload
def unfold(tensors: Weights, models: Sequence[Weights]) -> list[dict[str, Tensor]]: ...
def unfold(tensors: Weights, models: Sequence[Weights] | Weights) -> dict[str, Tensor] | list[dict[str, Tensor]]:
    """The models with the folded parameters replaced by `tensors`; the other parameters are unchanged.

    Args:
        tensors: name -> (d, h, K), as `fold` made them.
        models: the models that were folded; they give the shapes, and the parameters that were left out.
    """
    if isinstance(models, Mapping):
        replaced = {name: _from_tensor(name, tensor, models[name].shape) for name, tensor in tensors.items()}
        return {name: replaced.get(name, old) for name, old in models.items()}
    shapes = {name: (len(models), *tensor.shape) for name, tensor in models[0].items()}
    stacks = {name: _from_tensor(name, tensor, torch.Size(shapes[name])) for name, tensor in tensors.items()}
    return [
        {name: stacks[name][k] if name in stacks else old for name, old in model.items()}
        for k, model in enumerate(models)
    ]


def select_layers(names: Iterable[str], layers: str | Sequence[str] = "all") -> list[str]:
    """The names of the parameters that `layers` selects, in the order of `names`.

    Args:
        names: parameter names as in a state dict, "fc1.weight" and so on, in the model's order.
        layers: "all"; "last N" for the N last modules that have parameters; or a list of module names ("fc3") or
            parameter names ("fc3.weight").
    """
    names = list(names)
    modules = list(dict.fromkeys(_module(name) for name in names))
    if layers == "all":
        return names
    if isinstance(layers, str):
        word, _, count = layers.partition(" ")
        if word != "last" or not count.isdecimal() or not 1 <= int(count) <= len(modules):
            raise ValueError(f'layers must be "all", "last 1" to "last {len(modules)}", or a list, got "{layers}"')
        chosen = set(modules[-int(count) :])
        return [name for name in names if _module(name) in chosen]
    for layer in layers:
        if layer not in names and layer not in modules:
            near = get_close_matches(layer, [*modules, *names], n=1)
            hint = f", did you mean {near[0]!r}?" if near else f"; the modules are {', '.join(modules)}"
            raise ValueError(f"layers names {layer!r}, which the model does not have{hint}")
    return [name for name in names if name in layers or _module(name) in layers]


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _stack(models: Sequence[Weights]) -> dict[str, Tensor]:
    if len(models) == 0:
        raise ValueError("models must hold at least one client")
    first = models[0]
    for k, model in enumerate(models):
        if model.keys() != first.keys():
            raise ValueError(f"models[{k}] has other parameters than models[0]: {set(model) ^ set(first)}")
        for name, tensor in model.items():
            if tensor.shape != first[name].shape:
                raise ValueError(
                    f"models[{k}][{name!r}] has shape {tuple(tensor.shape)}, expected {tuple(first[name].shape)}"
                )
    return {name: torch.stack([model[name] for model in models]) for name in first}


def _to_tensor(stack: Tensor) -> Tensor:
    """The stack (K, out, ...) as a tensor (d, h, K), a view where possible."""
    clients, *shape = stack.shape
    out = shape[0] if shape else 1
    return stack.permute(*reversed(range(stack.ndim))).reshape(-1, out, clients)


def _from_tensor(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """The tensor (d, h, K) as a stack (K, out, ...), the inverse of _to_tensor."""
    if tensor.ndim != 3 or tensor.shape[2] != shape[0] or tensor.numel() != shape.numel():
        raise ValueError(f"tensors[{name!r}] of shape {tuple(tensor.shape)} does not unfold to {tuple(shape)}")
    reversed_axes = tensor.reshape(tuple(reversed(shape)))
    return reversed_axes.permute(*reversed(range(len(shape))))
