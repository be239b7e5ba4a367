"""Client optimisers beside SGD: Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019), as torch.optim has them.

Under DP-SGD they are given the noised gradient. Moments, decay and steps are then functions of noised gradients and of
the model that training started from, which is post-processing: they cost no privacy, and no row of the accountant
depends on them.
"""

from torch import Tensor

BETAS = (0.9, 0.999)
"""Parts of the first and second moments that stay in a step."""
EPSILON = 1e-8


def adam_direction(gradient: Tensor, first: Tensor, second: Tensor, step: Tensor | int) -> Tensor:
    """The direction of a step of Adam, of the gradient's shape; the moments are moved on in place.

    Args:
        first, second: the moments so far, zero before the first step of a round.
        step: the number of this step, counted from 1.
    """
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    unbiased, squares = first / (1 - BETAS[0] ** step), second / (1 - BETAS[1] ** step)
    return unbiased / squares.sqrt_().add_(EPSILON)
