"""Hypothesis without deadlines (a test never asserts a time); in CI the same examples every time. Data sets that a test
reads are kept in a folder that goes with the session."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCEO_CACHE", folder)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for pages of ours; without one the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with playwright.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files in a published layout have no published checksum."""
    from fedceo.data import DATASETS

    for data_set in DATASETS.values():
        monkeypatch.setattr(data_set, "published", {})
