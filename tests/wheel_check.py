"""Run by tests/wheel.sh with the installed wheel: imports, types shipped, one result, and nothing from the tree."""

from pathlib import Path

import torch

import fedceo
from fedceo.experiment.catalogue import demo_experiments
from fedceo.experiment.sections import Train
from fedceo.tensors import truncated_tsvd

package = Path(fedceo.__file__).parent
assert "site-packages" in package.parts, package
assert (package / "py.typed").is_file()
w = torch.ones(3, 2, 4)
assert torch.allclose(truncated_tsvd(w, 0.5), w * (1 - 0.5 / float(w.sum(2).norm())))
assert fedceo.run(demo_experiments()["FedCEO"].model_copy(update={"train": Train(rounds=1)})).finished
print(f"fedceo {fedceo.__version__} works outside its source tree with torch {torch.__version__}")
