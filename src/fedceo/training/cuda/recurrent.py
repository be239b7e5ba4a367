"""An LSTM layer whose cell is one kernel for each token, forward and back; torch would take a dozen."""

import torch
import triton
from torch import Tensor

from fedceo.models.lstm import last_token
from fedceo.training.batched.recurrent import RecurrentPass
from fedceo.training.cuda import recurrent_kernels

TILE = {"TILE": 256, "num_warps": 2}


class FusedRecurrentPass(RecurrentPass):
    """x: (K, B, L, width); y: (K, B, L, U), or (K, B, U) at the last token."""

    def _run(self, tokens: Tensor) -> Tensor:
        _, length, slots, _ = self.gates.shape
        recurrent = self.parameters[1]
        units, product = recurrent.shape[2], self.gates
        for t in range(length):
            if t > 0:
                product = torch.bmm(self.states[:, t], recurrent.mT)
            recurrent_kernels.cell_kernel[self._grid](
                self.gates, product, self.cells, self.bounded, self.states, t, length, slots,
                UNITS=units, FIRST=t == 0, **TILE,
            )  # fmt: skip
        if not self.block.at_last:
            return self.states[:, 1:].transpose(1, 2)
        self.last = last_token(tokens).contiguous()
        return self.states[:, 1:].gather(1, self.last[:, None, :, None].expand(-1, 1, -1, units))[:, 0]

    def _slopes(self, dy: Tensor) -> Tensor:
        clients, length, slots, _ = self.gates.shape
        recurrent, at_last = self.parameters[1], self.block.at_last
        g, dcell = torch.empty_like(self.gates), self.gates.new_empty(clients, slots, recurrent.shape[2])
        product, dy = dcell, dy if dy.stride(-1) == 1 else dy.contiguous()
        for t in reversed(range(length)):
            if t + 1 < length:
                product = torch.bmm(g[:, t + 1], recurrent)
            recurrent_kernels.cell_backward_kernel[self._grid](
                self.gates, self.cells, self.bounded, product, dy, self.last if at_last else self.gates, dcell, g,
                t, length, slots, dy.stride(0), dy.stride(1), 0 if at_last else dy.stride(2),
                UNITS=recurrent.shape[2], FIRST=t + 1 == length, AT_LAST=at_last, **TILE,
            )  # fmt: skip
        return g

    @property
    def _grid(self) -> tuple[int, int]:
        clients, _, slots, units = self.bounded.shape
        return clients, triton.cdiv(slots * units, TILE["TILE"])
