"""Learning problems: what a model's outputs are compared with, by which loss, and how well it does by which metrics.

Each task is one file, registered under the name that task.name gives it. Nothing outside this room knows any of them.
"""

from fedceo.tasks.base import Task, make_task
from fedceo.tasks.metrics import Metric, is_measured, main_metric, metric_of, summary_of

__all__ = ["Metric", "Task", "is_measured", "main_metric", "make_task", "metric_of", "summary_of"]
