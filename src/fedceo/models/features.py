"""Models that are a fixed transform of records under a head that is trained.

No training changes the transform, so that whoever trains computes its features once for each record and then works with
the head alone (training.features). The transform has no parameters: nothing noises, smooths or sends it.
"""

from collections import OrderedDict

from torch import Tensor, nn


class OnFeatures(nn.Module):
    """A network of fixed transform -> head.

    Args:
        transform: a module without parameters, from (B, *shape) inputs to (B, features). Where its attribute `version`
            names all that its features depend on but the records, features of published data sets are kept on disk.
        head: a module from features to logits.
    """

    def __init__(self, transform: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.transform, self.head = transform, head

    @property
    def trained(self) -> nn.Module:
        """The head as a model of features; its parameters are those of this model, under the same names."""
        return nn.Sequential(OrderedDict(head=self.head))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, *shape)."""
        return self.head(self.transform(x))
