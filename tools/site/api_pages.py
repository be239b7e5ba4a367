"""The pages of the Python interface: a page for each module whose `__all__` is meant for users."""

MODULES = {
    "fedceo": "fedceo",
    "accounting": "fedceo.accounting",
    "data": "fedceo.data",
    "models": "fedceo.models",
    "methods": "fedceo.methods",
    "mechanisms": "fedceo.mechanisms.base",
    "tensors": "fedceo.tensors",
    "attacks": "fedceo.attacks",
    "figures": "fedceo.report.figures",
    "flower": "fedceo.deploy.flower",
}
"""File names of pages, and their modules."""


def page(module: str) -> str:
    return (
        f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
    )
