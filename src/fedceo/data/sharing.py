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
        self._made: dict[tuple[int, Hashable], tuple[ref[Tensor], ref[Tensor], int]] = {}

    def get(self, source: Tensor, about: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` makes of the source, or has made of it for somebody who holds it still.

        A source that was written to since is another one.

        about: all that the answer depends on beside the source.
        """
        key, version = (id(source), about), version_of(source)
        if key in self._made:
            of, made, when = self._made[key]
            found = made()
            if of() is source and found is not None and when == version:  # a number may come again for another tensor
                return found
        fresh = make()
        self._made = {key: pair for key, pair in self._made.items() if pair[1]() is not None}
        self._made[key] = ref(source), ref(fresh), version
        return fresh


def version_of(tensor: Tensor) -> int:
    """How often the tensor was written to, as far as torch knows."""
    return 0 if tensor.is_inference() else tensor._version


DERIVED = Derived()
"""Features of records, and copies of either on a device."""
