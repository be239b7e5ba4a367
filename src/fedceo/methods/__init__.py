"""Federated methods, one file each; `method.py` is the seam they share, `hosted.py` how to bring one of your own."""

from typing import TYPE_CHECKING

from fedceo.lazy import on_first_use

if TYPE_CHECKING:
    from fedceo.mechanisms.base import Mean, Stack, Uploads
    from fedceo.methods.hosted import OwnMethod
    from fedceo.methods.method import Method, State, make_method
    from fedceo.methods.settings import Settings

__all__ = ["Mean", "Method", "OwnMethod", "Settings", "Stack", "State", "Uploads", "make_method"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.mechanisms.base": ("Mean", "Stack", "Uploads"),
        "fedceo.methods.hosted": ("OwnMethod",),
        "fedceo.methods.method": ("Method", "State", "make_method"),
        "fedceo.methods.settings": ("Settings",),
    },
)
