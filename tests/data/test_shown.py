"""Data show themselves in a few words and a small chart, whatever is learnt from them."""

import re

import numpy as np
import pytest

import fedceo
from fedceo.data import Federation, Source, federate
from fedceo.data.shown import MOST, as_html
from fedceo.experiment.sections import Data


def heights(html: str) -> list[float]:
    return [float(each) for each in re.findall(r' height="([\d.]+)"/>', html)]


def of_labels(**more: object) -> Source:
    labels = np.repeat([0, 1, 2], [50, 100, 200])
    return fedceo.from_arrays(np.zeros((350, 4), np.float32), labels, **more)  # type: ignore[arg-type]


def test_a_source_shows_its_classes() -> None:
    source = of_labels()
    html = source._repr_html_()
    assert "3 classes" in html and "<Source" not in html and len(html) < 1000
    counts = np.bincount(source.y.numpy())
    assert heights(html) == pytest.approx(60 * counts / counts.max(), abs=0.05)


def test_a_source_with_natural_clients_shows_these() -> None:
    html = of_labels(client=np.repeat([7, 8, 9, 4], [200, 50, 60, 40]))._repr_html_()
    assert "of 4 natural clients" in html
    assert heights(html) == pytest.approx([60, 18, 15, 12], abs=0.05)


def test_a_federation_shows_its_clients() -> None:
    federation: Federation = federate(of_labels(), Data(name="digits", clients=5, partition="iid"), 0)
    html = federation._repr_html_()
    assert "5 clients" in html and len(heights(html)) == 5


def test_numbers_to_predict_are_not_called_classes() -> None:
    source = fedceo.from_arrays(np.zeros((30, 4), np.float32), np.zeros((30, 1), np.float32))
    assert "1 number to predict" in repr(source) and "classes" not in repr(source)
    assert "<svg" not in source._repr_html_(), "there is nothing to count"


def test_many_bars_are_merged_and_names_are_only_text() -> None:
    html = as_html("<a <b> & c>", [1.0] * 12345, "records")
    assert len(heights(html)) == MOST and set(heights(html)) == {60.0}
    assert "<div>a &lt;b&gt; &amp; c</div>" in html
