"""Averages of the released global models, which is post-processing: whoever has the models can average them.

Noise differs from round to round while the model moves little in the last rounds, so that an average has less of it.
"""

from dataclasses import dataclass
from typing import Any

from fedceo.experiment.file import Experiment
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.metric_evaluation import MetricEvaluator
from fedceo.tensors.weights import Weights


@dataclass(frozen=True)
class Average:
    """An average of global models.

    Attributes:
        weights: name -> (...), the average.
        models: the number of models in it.
    """

    weights: Weights
    models: int

    def placed_like(self, weights: Weights) -> "Average":
        """The same average on that model's device, with its order of names."""
        return Average({name: self.weights[name].to(w.device) for name, w in weights.items()}, self.models)


def measure_released(evaluator: Evaluator | MetricEvaluator, model: Weights, average: Average | None) -> dict[str, Any]:
    """The metrics of a global model, and those of the average under the same names after "average_"."""
    found = evaluator.measure(model)
    if average is not None:
        found |= {f"average_{name}": value for name, value in evaluator.measure(average.weights).items()}
    return found


def with_model(average: Average | None, model: Weights, t: int, experiment: Experiment) -> Average | None:
    """The average with the model released in round t, as `[release]` says; None where it has no models yet.

    A tail weighs its models equally. In an exponential average the i-th last of n models has the weight decay^i, over
    the sum of these weights, so that the model before the first round has none.
    """
    release = experiment.release
    is_before_tail = release.average == "tail" and t <= experiment.train.rounds - release.length
    if release.average == "none" or is_before_tail:
        return None
    if average is None:
        return Average({name: w.clone() for name, w in model.items()}, 1)
    models = average.models + 1
    share = 1 / models if release.average == "tail" else (1 - release.decay) / (1 - release.decay**models)
    return Average({name: a.lerp(model[name], share) for name, a in average.weights.items()}, models)
