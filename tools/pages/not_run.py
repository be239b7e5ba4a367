"""What the paper's tables lack, and what it would cost: the blocks of tools/measure_paper.py beside results/."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from paper_blocks import BLOCKS, Block
from runs_found import Found, cells_in

CANNOT_BE_HAD = {"paper/table1/emnist-mlp": "EMNIST letters cannot be had where this was run"}


def lacking(table: str, cells: Mapping[str, Found]) -> str:
    """A sentence on the cells of a table without runs, and the command that would run them; "" if all have some."""
    names = [name for name in cells_in(table) if name not in cells or not cells[name].runs]
    if table in CANNOT_BE_HAD:
        return f"Not run ({len(names)} cells): {CANNOT_BE_HAD[table]}.\n" if names else ""
    blocks = {block.name: cost for block in BLOCKS if block.table == table and (cost := _cost(block, names))}
    if not names:
        return ""
    minutes = sum(blocks.values()) / 60
    command = f"python tools/measure_paper.py --blocks {','.join(blocks)}"
    return f"Not run ({len(names)} cells): about {minutes:.0f} GPU minutes on an H200, `{command}`.\n"


def _cost(block: Block, names: list[str]) -> float:
    """The GPU seconds of the block for those of its cells that have no runs; its other seeds come later."""
    cells = (name.removeprefix(f"{block.table}/") for name in names)
    chosen = [cell for cell in cells if not block.kind and any(fnmatchcase(cell, pattern) for pattern in block.cells)]
    return sum(block.seconds(cell, block.seeds, is_tuned=0 not in block.seeds) for cell in chosen)
