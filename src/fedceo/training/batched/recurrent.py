"""LSTM layers as blocks of a chain, for K clients at once.

What does not wait for the state before is one operation for all tokens: the gates' part from the inputs, the slopes of
the gates, the gradients of inputs and weights. Left for each token are one product with the recurrent weights, forward
and back, and a few operations on (K, B, units). A record's gradient is a sum of outer products over its tokens, like a
convolution's over positions, and its norm comes from the tokens' inner products: none is formed.

Memory, with L tokens and U units; a record's tokens lie B apart, so that those of one step are neighbours:

    gates           (K, L, B, 4U)      after sigmoid and tanh: enter, forget, change, leave, as in torch.nn.LSTM
    cells, states   (K, L + 1, B, U)   zeros, and what the layer holds and gives after each token
    g               (K, L, B, 4U)      gradients with respect to the gates before sigmoid and tanh
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedceo.models.lstm import last_token
from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import scaled, squares_of_sums
from fedceo.training.batched.cohort import Batch

PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class Recurrent:
    """A layer of models/lstm.py -> [its state after the last token of each text]."""

    name: str
    at_last: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{parameter}" for parameter in PARAMETERS)

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "RecurrentPass":
        return RecurrentPass(self, weights, x, batch.x)


class RecurrentPass:
    """x: (K, B, L, width); y: (K, B, L, U), or (K, B, U) at the last token."""

    def __init__(self, block: Recurrent, weights: Weights, x: Tensor, tokens: Tensor) -> None:
        self.parameters = [weights[name] for name in block.names]
        self.block, (given, recurrent, one_bias, other_bias) = block, self.parameters
        clients, slots, length, _ = x.shape
        units = recurrent.shape[2]
        self.x = x.transpose(1, 2).flatten(1, 2)  # (K, L * B, width)
        self.gates = torch.baddbmm((one_bias + other_bias)[:, None], self.x, given.mT).view(
            clients, length, slots, 4 * units
        )
        self.cells, self.states = self.gates.new_zeros(2, clients, length + 1, slots, units)
        self.bounded = torch.empty_like(self.cells[:, 1:])  # tanh of the cells
        self.y = self._run(tokens)

    def _run(self, tokens: Tensor) -> Tensor:
        """Go from token to token; returns the output."""
        recurrent, length = self.parameters[1], self.gates.shape[1]
        units = recurrent.shape[2]
        # views of all tokens at once: between two calls threads that train clients wait for each other
        gates, cells, states, bounded = (each.unbind(1) for each in (self.gates, self.cells, self.states, self.bounded))
        enter, forget, change, leave = (each.unbind(1) for each in self.gates.chunk(4, 3))
        enter_and_forget, turned = self.gates[..., : 2 * units].unbind(1), recurrent.mT
        for t in range(length):
            if t > 0:
                gates[t].baddbmm_(states[t], turned)
            enter_and_forget[t].sigmoid_()
            change[t].tanh_()
            leave[t].sigmoid_()
            torch.mul(forget[t], cells[t], out=cells[t + 1]).addcmul_(enter[t], change[t])
            torch.tanh(cells[t + 1], out=bounded[t])
            torch.mul(leave[t], bounded[t], out=states[t + 1])
        if not self.block.at_last:
            return self.states[:, 1:].transpose(1, 2)
        self.last = last_token(tokens)[:, None, :, None].expand(-1, 1, -1, units)
        return self.states[:, 1:].gather(1, self.last)[:, 0]

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        self.g = g = self._slopes(dy)
        if not needs_dx:
            return None
        return torch.bmm(g.flatten(1, 2), self.parameters[0]).view(*g.shape[:3], -1).transpose(1, 2)

    def _slopes(self, dy: Tensor) -> Tensor:
        """Go back from token to token; returns the gradients with respect to the gates before sigmoid and tanh."""
        recurrent = self.parameters[1]
        enter, forget, change, leave = self.gates.chunk(4, 3)
        if self.block.at_last:
            dstates = torch.zeros_like(self.bounded).scatter_(1, self.last, dy[:, None])
        else:
            dstates = dy.transpose(1, 2)
        slopes = [
            change * enter * (1 - enter),
            self.cells[:, :-1] * forget * (1 - forget),
            enter * (1 - change.square()),
            self.bounded * leave * (1 - leave),
        ]
        g = torch.cat(slopes, 3)
        into_cells = (leave * (1 - self.bounded.square())).unbind(1)
        forgets, gates, of_tokens = forget.unbind(1), g.unbind(1), dstates.unbind(1)
        by_kind = g.unflatten(3, (4, -1))
        others, leaves = by_kind[..., :3, :].unbind(1), by_kind[..., 3, :].unbind(1)
        dcell = torch.zeros_like(self.cells[:, 0])
        of_each = dcell[:, :, None]
        dstate = of_tokens[-1]
        for t in reversed(range(len(gates))):
            if t + 1 < len(gates):
                dstate = torch.baddbmm(of_tokens[t], gates[t + 1], recurrent)
            dcell.addcmul_(dstate, into_cells[t])
            others[t].mul_(of_each)
            leaves[t].mul_(dstate)
            dcell.mul_(forgets[t])
        return g

    @cached_property
    def inputs(self) -> Tensor:
        """(K, L * B, width + U) all that the weights were multiplied by: inputs, and the states before."""
        return torch.cat([self.x, self.states[:, :-1].flatten(1, 2)], 2)

    def squared_norms(self) -> Tensor:
        clients, _, slots, _ = self.g.shape
        u, g = (
            each.view(*self.g.shape[:3], -1).transpose(1, 2).flatten(0, 1).double() for each in (self.inputs, self.g)
        )
        products = torch.bmm(u, u.mT) + 2.0  # for two biases
        squares = squares_of_sums(products, torch.bmm(g, g.mT), torch.finfo(self.g.dtype).eps)
        return squares.to(self.g.dtype).view(clients, slots)

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        g, u, width = self.g.flatten(1, 2), self.inputs, self.x.shape[2]
        if factors is not None:
            each = factors[:, None].expand(self.g.shape[:3]).flatten(1, 2)
            g, u = scaled(g, u, each)
        given, recurrent, *biases = (sums[name] for name in self.block.names)
        total = torch.bmm(g.mT, u)
        given.copy_(total[..., :width])
        recurrent.copy_(total[..., width:])
        for bias in biases:
            torch.sum(g, 1, out=bias)

    def descend(self, dy: Tensor, needs_dx: bool, rate: float) -> Tensor | None:
        """Like `backward`, with a step of plain SGD."""
        dx = self.backward(dy, needs_dx)
        given, recurrent, *biases = self.parameters
        g = self.g.flatten(1, 2)
        for weight, u in ((given, self.x), (recurrent, self.states[:, :-1].flatten(1, 2))):
            torch.baddbmm(weight, g.mT, u, alpha=-rate, out=weight)
        for bias in biases:
            bias.sub_(g.sum(1), alpha=rate)
        return dx
