"""SGD of models whose first layer is linear, in coordinates of each client's records; with the noise of DP-SGD or none.

A client reads its first layer only along the n directions that its records span, and gradients lie nowhere else. So
its steps can be taken on records that are n numbers long, by a layer of n columns. Gaussian noise is the same in every
orthonormal basis: a step draws it for n columns, and what all steps add along the other directions, of which nothing
that the client does depends, is drawn once, in the end, with the variance that momentum and pull leave of it. The model
that comes out has the law that it has step by step (docs/derivations.md, D21).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedceo.data.sharing import version_of
from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Linear
from fedceo.training.batched.chain import Chain, trains
from fedceo.training.batched.cohort import Call, Share
from fedceo.training.context import TrainingContext
from fedceo.training.noise import RecordNoise, left_of_a_way, left_of_noise
from fedceo.training.work import Work

MOST_BASIS_BYTES = 2**30
"""Memory that the bases of all clients may take."""
LEAST_PASSES = 2
"""Passes over a client's records from which the ways into a basis and back are worth it."""
WIDE = 32
"""Outputs of the first layer from which they are worth it for the noise of one pass alone."""
ROOM = 1000
"""How far the length of a record must be from the largest number, since a basis adds up some such lengths."""
LEAST_NARROWING = 2
"""How many features there must be to each record of the client who has most."""


class Basis(NamedTuple):
    """The directions of a client's records.

    Attributes:
        rows: (n, D) orthonormal rows that span the records, D features and one for a bias.
        records: (n, n) the records in these directions.
        sound: (n,) whether a record has a length that can be reckoned with; those without have no part in the basis,
            which one of them would ruin for all.
    """

    rows: Tensor
    records: Tensor
    sound: Tensor


@dataclass
class Rotation:
    """Local training of a chain on the clients of one federation, whose first block is a linear layer."""

    chain: Chain
    context: TrainingContext

    @staticmethod
    def of(chain: Chain, context: TrainingContext) -> "Rotation | None":
        """The rotation of a chain that begins with a linear layer, where the bases of all clients fit in memory."""
        sizes, features = context.federation.sizes.double(), context.federation.x[0].numel()
        fit = float((sizes * (sizes + features)).sum()) * context.dtype.itemsize <= MOST_BASIS_BYTES
        narrow = LEAST_NARROWING * float(sizes.max()) <= features
        return Rotation(chain, context) if chain.first_linear and fit and narrow else None

    @property
    def linear(self) -> Linear:
        assert self.chain.first_linear
        return self.chain.first_linear

    def knows(self, work: Work) -> bool:
        """Whether the steps of a work, which trains whole layers, are the same here."""
        return work.is_rotatable and trains(self.linear, work.only)

    def pays(self, work: Work) -> bool:
        """Whether they are quicker here."""
        least = 1 if work.record and self._outputs >= WIDE else LEAST_PASSES
        return work.passes(self._most) >= least

    @property
    def bytes_of_a_client(self) -> int:
        """Memory that a client's steps go through: its records, and some eight copies of a model."""
        features = self.context.federation.x[0].numel()
        model = sum(p.numel() for p in self.context.model.parameters()) - self._outputs * (features - self._most)
        return (self._most**2 + 8 * model) * self.context.dtype.itemsize

    @property
    def _most(self) -> int:
        """The records of the client of all who has most: no client's noise depends on who else is trained with it."""
        return int(self.context.federation.sizes.max())

    @property
    def _outputs(self) -> int:
        return self.context.model.get_parameter(self.linear.weight).shape[0]

    def turn(self, call: Call, share: Share, read: TrainingContext, noise: RecordNoise | None) -> "Turned":
        """The clients of a call in coordinates of their records.

        Args:
            share: the clients with all that they train by, in coordinates of the data.
            noise: of which that along all directions is drawn first, and then that of every step.
        """
        assert noise is None or noise.keys is None, "two draws of a first step would be one, if keys gave them"
        own, most = [self.context.federation.train[client] for client in call.clients], self._most
        bases = [self._basis(mine, read) for mine in own]
        records = torch.zeros(len(own) * most + 1, most, dtype=read.dtype)  # the last is the filling of batches
        indices = torch.full((len(own), most), read.blank)
        place = torch.full((read.blank + 1,), -1)  # an index of -1 leads to the last
        batches = []
        for k, (mine, basis, given) in enumerate(zip(own, bases, share.batches, strict=True)):
            own_records = records[k * most : k * most + len(mine)]
            own_records[:, : len(mine)] = basis.records
            own_records[~basis.sound] = torch.nan  # so that no gradient comes of them that counts
            indices[k, : len(mine)] = mine
            place[mine] = k * most + torch.arange(len(mine))
            batches.append(place[given])
        labels = self.context.labels[indices.flatten()]
        data = replace(self.context.federation, x=records[:-1], y=labels, train=[], mean=(0.0,), std=(1.0,))
        shape = self._outputs, bases[0].rows.shape[1]
        drawn = None if noise is None else noise.draw(0, shape[0] * shape[1]).view(-1, *shape)
        starts, of_noise = self._into(bases, call.starts, drawn)
        anchor = None if call.work.anchor is None else self._into(bases, call.work.anchor)[0]
        turned = replace(share, work=replace(call.work, anchor=anchor), starts=starts, batches=batches)
        chain = replace(self.chain, blocks=(replace(self.linear, bias=None), *self.chain.blocks[1:]), shape=(most,))
        context = replace(read, federation=data, ready=records)
        return Turned(call, self.linear, chain, context, turned, bases, drawn, of_noise)

    def _into(
        self, bases: Sequence[Basis], models: Weights, drawn: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Models, name -> (K, ...), and drawn numbers, (K, outputs, D), in their clients' bases.

        Returns:
            The models with first layers of (K, outputs, most), and the numbers, (K, outputs, most), or none of them.
        """
        outputs, sets = self._outputs, 1 if drawn is None else 2
        found = torch.zeros(len(bases), sets * outputs, self._most, dtype=self.context.dtype)
        for k, basis in enumerate(bases):
            rows = whole(self.linear, models, k).to(found)
            rows = rows if drawn is None else torch.cat([rows, drawn[k]])  # a basis is read from memory once for both
            torch.mm(rows, basis.rows.T, out=found[k, :, : len(basis.rows)])
        others = {name: w for name, w in models.items() if name not in self.linear.names}
        return {self.linear.weight: found[:, :outputs], **others}, found[:, outputs:]

    def _basis(self, mine: Tensor, read: TrainingContext) -> Basis:
        """The basis of the client with these records, which all runs share that have them."""
        data = self.context.federation
        about = version_of(data.x), read.dtype, data.mean, data.std, self.linear.bias is None, mine.numpy().tobytes()
        kept = KEPT.setdefault(data.x, Kept())
        found = kept.get(about)
        if found is None:
            x = read.inputs_of(mine).flatten(1)
            x = x if self.linear.bias is None else torch.cat([x, x.new_ones(len(x), 1)], 1)
            sound = x.double().norm(dim=1) < torch.finfo(x.dtype).max / ROOM
            x = torch.where(sound[:, None], x, 0.0)
            q, r = torch.linalg.qr(x.T)  # Householder's reflections: orthonormal for records that are alike, too
            found = Basis(q.T.contiguous(), r.T.contiguous(), sound)
            kept.put(about, found)
        return found


@dataclass(frozen=True)
class Turned:
    """Clients in coordinates of their records, ready to be trained, and their way back.

    Attributes:
        call: the clients as they came.
        linear: the first layer.
        chain, context, share: what trains them.
        bases: their bases.
        drawn: (K, outputs, D) standard normals for the directions that no record looks along, or None.
        of_noise: (K, outputs, most) these numbers in the bases.
    """

    call: Call
    linear: Linear
    chain: Chain
    context: TrainingContext
    share: Share
    bases: Sequence[Basis]
    drawn: Tensor | None
    of_noise: Tensor

    def end(self, trained: Weights, out: Weights) -> None:
        """Write the trained models to `out` in coordinates of the data."""
        weight, starts, turned = self.linear.weight, self.call.starts, self.share.starts[self.linear.weight]
        anchor, of_anchor = self.call.work.anchor, self.share.work.anchor
        for name in out.keys() - {*self.linear.names}:
            out[name].copy_(trained[name][: len(self.bases)])
        for k, basis in enumerate(self.bases):
            way, deviation = self._left(k)
            ended, here = whole(self.linear, starts, k).to(turned, copy=True), turned[k].clone()
            if anchor is not None and of_anchor is not None:
                ended = torch.lerp(whole(self.linear, anchor, k).to(ended), ended, way)
                here = torch.lerp(of_anchor[weight][k], here, way)
            if self.drawn is not None:
                ended.add_(self.drawn[k], alpha=deviation)
                here.add_(self.of_noise[k], alpha=deviation)
            moved = trained[weight][k] - here
            ended.addmm_(moved[:, : len(basis.rows)], basis.rows)
            columns = out[weight][k].flatten(1).shape[1]
            out[weight][k] = ended[:, :columns].view_as(out[weight][k])
            if self.linear.bias is not None:
                out[self.linear.bias][k] = ended[:, -1]

    def _left(self, k: int) -> tuple[float, float]:
        """What is left along other directions of the way from the anchor, and the deviation of the noise there."""
        steps, work = len(self.share.batches[k]), self.call.work
        pull = work.learning_rate * work.proximal
        way = left_of_a_way(steps, work.momentum, pull)
        if work.record is None:
            return way, 0.0
        of_a_step = work.learning_rate * work.record.noise_multiplier * work.record.clip / self.share.divisors[k]
        return way, of_a_step * left_of_noise(steps, work.momentum, pull) ** 0.5


def whole(linear: Linear, models: Weights, k: int) -> Tensor:
    """(outputs, D) a client's first layer, its bias the last column if it has one."""
    weight = models[linear.weight][k].flatten(1)
    return weight if linear.bias is None else torch.cat([weight, models[linear.bias][k][:, None]], 1)


class Kept:
    """The bases of clients, the latest of them within MOST_BASIS_BYTES; threads may ask for them."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Basis] = OrderedDict()
        self._bytes, self._lock = 0, Lock()

    def get(self, about: Any) -> Basis | None:
        with self._lock:
            if about in self._found:
                self._found.move_to_end(about)
            return self._found.get(about)

    def put(self, about: Any, basis: Basis) -> None:
        with self._lock:
            if about not in self._found:
                self._found[about] = basis
                self._bytes += _size(basis)
            while self._bytes > MOST_BASIS_BYTES:
                self._bytes -= _size(self._found.popitem(last=False)[1])


def _size(basis: Basis) -> int:
    return sum(each.nbytes for each in basis)


KEPT: Any = WeakTensorKeyDictionary()
"""Records -> the bases of clients that hold some of them, for as long as anybody holds the records."""
