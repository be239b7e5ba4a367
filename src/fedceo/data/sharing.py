"""What several runs of one process need alike: made once, and kept only while one of them holds it.

Runs that are trained as one program, and those of a study that follow one another, read the same records, have the same
features of them and the same copies on a GPU. Nothing outlives the last who holds it.
"""

from collections.abc import Callable, Hashable
from weakref import ref

from torch import Tensor


class Derived:
    """Tensors that were made from others, shared by all who ask for the same of the same tensor."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Hashable], tuple[ref[Tensor], ref[Tensor]]] = {}

    def get(self, source: Tensor, about: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` makes of the source, or has made of it for somebody who holds it still.

        about: all that the answer depends on beside the source, which must not change while anybody holds the answer.
        """
        key = id(source), about
        if key in self._made:
            of, made = (each() for each in self._made[key])
            if of is source and made is not None:  # a number may come again once the first tensor is gone
                return made
        fresh = make()
        self._made = {key: pair for key, pair in self._made.items() if pair[1]() is not None}
        self._made[key] = ref(source), ref(fresh)
        return fresh


DERIVED = Derived()
"""Features of records, and copies of either on a device."""
