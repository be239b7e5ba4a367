"""A linear layer with its mask and ReLU on kernels.

Under TF32 products with its weights that the library takes long for are kernels of ours: those of the backward pass,
and those of a layer of few units, all of which read only slots that hold records. They are of float16, as inside
convolutions; sums of clipped gradients are not, since a number below float16's range could grow by its rounding.
"""

import torch
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Linear
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.products import Product
from fedceo.training.cuda import product_kernels, row_kernels
from fedceo.training.cuda.convolution import held_times, kept_in

FEW = 64
"""Units of a layer up to which all its products are kernels of ours."""
FORWARD = {"TILE": 16, "TILE_IN": 128, "TILE_OUT": 16, "num_warps": 4, "num_stages": 4}
BACKWARD = {"TILE": 64, "TILE_IN": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 4}
GRADIENTS = {"TILE": 64, "TILE_IN": 32, "TILE_OUT": 16, "num_warps": 2, "num_stages": 1}
MANY = 32
"""Clients from which there are programs enough with larger tiles, which read their factors less often."""
FORWARD_MANY = {"TILE": 32, "TILE_IN": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 4}
GRADIENTS_MANY = {"TILE": 64, "TILE_IN": 64, "TILE_OUT": 64, "num_warps": 4, "num_stages": 1}
SCALE = {"TILE": 32, "TILE_IN": 128, "AT_ONCE": 128, "num_warps": 4}


def fitting(units: int, most: int) -> int:
    """The units that a tile takes of a layer of so many; products have 16 at least."""
    return max(16, min(most, triton.next_power_of_2(units)))


def is_few(units: int) -> bool:
    """Whether all products of a layer of so many units are kernels of ours."""
    return kept_in() == torch.float16 and units <= FEW


class FusedLinearPass:
    """x: (K, B, in), or all records, of which the batch says which; y: (K, B, out).

    `backward` overwrites the gradient that it is given.
    """

    def __init__(self, block: Linear, weights: Weights, x: Tensor, batch: Batch) -> None:
        self.block, self.weight, self.counts = block, weights[block.weight], batch.counts
        self.mask, self.places = batch.mask if block.masked else None, batch.places if x is batch.x else None
        self.shape, self.x = x.shape, x.flatten(1 if self.places else 2)
        clients, size, inputs = self.weight.shape
        slots, self.few = self.places.rows.shape[1] if self.places else x.shape[1], is_few(size)
        bias = weights[block.bias] if block.bias else self.weight
        flags = {"BIAS": block.bias is not None, "MASK": self.mask is not None, "RELU": block.relu}
        if self.few:
            self.y = self.x.new_empty(clients, slots, size)
            tiles = FORWARD_MANY if clients >= MANY else FORWARD
            tiles = tiles | {"TILE_OUT": fitting(size, tiles["TILE_OUT"])}
            grid = (clients, triton.cdiv(size, tiles["TILE_OUT"]), triton.cdiv(slots, tiles["TILE"]))
            product_kernels.linear_forward_kernel[grid](
                self.x, self._rows, self.weight, bias, self._mask, self.y, self.counts, slots, self.weight.stride(0),
                bias.stride(0), INPUTS=inputs, OUT=size, IN_PLACE=self.places is not None, **flags, **tiles,
            )  # fmt: skip
            return
        self.y = torch.bmm(self.x, self.weight.mT)
        if any(flags.values()):
            row_kernels.activate_kernel[(clients * slots, triton.cdiv(size, 512))](
                self.y, bias, self._mask, slots, size, bias.stride(0), **flags, TILE=512
            )

    @property
    def _mask(self) -> Tensor:
        """The mask, or a pointer that the kernels do not read."""
        return self.y if self.mask is None else self.mask

    @property
    def _rows(self) -> Tensor:
        return self.counts if self.places is None else self.places.rows

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, size = self.y.shape
        self.g, self.squares = dy, dy.new_empty(clients, slots)
        row_kernels.linear_backward_kernel[(clients * slots,)](
            self.g, self.y, self._mask, self.places.squares if self.places else self.x, self._rows, self.squares, size,
            self.x.shape[-1], IN_PLACE=self.places is not None, MASK=self.mask is not None,
            RELU=self.block.relu, BIAS=self.block.bias is not None, TILE=512,
        )  # fmt: skip
        if not needs_dx:
            return None
        if kept_in() != torch.float16:
            return torch.bmm(self.g, self.weight).view(self.shape)
        dx, inputs = torch.empty_like(self.x), self.x.shape[2]
        grid = (clients, triton.cdiv(inputs, BACKWARD["TILE_IN"]), triton.cdiv(slots, BACKWARD["TILE"]))
        product_kernels.linear_input_gradients_kernel[grid](
            self.g, self.weight, dx, self.counts, slots, self.weight.stride(0), INPUTS=inputs, OUT=size,
            HELD=held_times(torch.float16), **BACKWARD,
        )  # fmt: skip
        return dx.view(self.shape)

    def squared_norms(self) -> Tensor:
        return self.squares

    def product(self, counts: Tensor) -> Product:
        rows = self.places.rows if self.places else None
        return Product(self.block.weight, self.block.bias, self.g, self.x, counts, rows)

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        (clients, slots, size), inputs = self.y.shape, self.x.shape[-1]
        weight, bias = sums[self.block.weight], sums[self.block.bias] if self.block.bias else self.g
        if self.few and (factors is not None or self.places):
            tiles = GRADIENTS_MANY if clients >= MANY else GRADIENTS
            tiles = tiles | {"TILE_OUT": fitting(size, tiles["TILE_OUT"])}
            grid = (clients, triton.cdiv(inputs, tiles["TILE_IN"]), triton.cdiv(size, tiles["TILE_OUT"]))
            product_kernels.linear_gradients_kernel[grid](
                self.g, self.x, self._rows, self.squares if factors is None else factors, weight, bias, self.counts,
                slots, weight.stride(0), bias.stride(0), INPUTS=inputs, OUT=size, IN_PLACE=self.places is not None,
                FACTORS=factors is not None, BIAS=self.block.bias is not None, **tiles,
            )  # fmt: skip
            return
        if factors is not None:
            parts = max(triton.cdiv(size, SCALE["TILE"]), triton.cdiv(inputs, SCALE["TILE_IN"]))
            row_kernels.scale_rows_kernel[(clients, parts)](
                self.g, self.x, factors, bias, slots, size, inputs, bias.stride(0),
                BIAS=self.block.bias is not None, **SCALE,
            )  # fmt: skip
        elif self.block.bias:
            torch.sum(self.g, 1, out=bias)
        torch.bmm(self.g.mT, self.x, out=weight)
