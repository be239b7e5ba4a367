"""The t-product algebra on third-order tensors with the client axis last.

A tensor W of shape (d, h, K) holds one d x h matrix per client. The discrete Fourier transform over the client axis
turns the t-product of such tensors into K ordinary matrix products, so that every notion of linear algebra (product,
transpose, identity, singular values, nuclear norm) carries over, frequency by frequency.

    t_product, t_transpose, t_identity   the algebra
    tsvd, spectrum, nuclear_norm         the decomposition and what is read off it
    truncated_tsvd                       the proximal operator of the nuclear norm: FedCEO's server step
    truncated_tsvds                      the same of all layers at once, which keeps a GPU busy
    fold, unfold                         models of K clients as such tensors, and back

Everything takes real float32 or float64 tensors, on the CPU or a GPU, and returns the same kind. Symbols and
definitions follow Li et al., "Clients Collaborate" (ICML 2025), sections 2.4 and 3 and appendix A.
"""

from typing import TYPE_CHECKING

from fedceo.lazy import on_first_use

if TYPE_CHECKING:
    from fedceo.tensors.algebra import nuclear_norm, spectrum, t_identity, t_product, t_transpose, tsvd
    from fedceo.tensors.folding import fold, select_layers, unfold
    from fedceo.tensors.truncation import truncated_tsvd, truncated_tsvds

__all__ = [
    "fold",
    "nuclear_norm",
    "select_layers",
    "spectrum",
    "t_identity",
    "t_product",
    "t_transpose",
    "truncated_tsvd",
    "truncated_tsvds",
    "tsvd",
    "unfold",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.tensors.algebra": ("nuclear_norm", "spectrum", "t_identity", "t_product", "t_transpose", "tsvd"),
        "fedceo.tensors.folding": ("fold", "select_layers", "unfold"),
        "fedceo.tensors.truncation": ("truncated_tsvd", "truncated_tsvds"),
    },
)
