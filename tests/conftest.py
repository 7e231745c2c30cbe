"""Shared fixtures: everything offline, the real backbone loaded once."""

import gc
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are shared by the workers
    gc.disable()  # while everything is imported

import pytest


def pytest_collection_modifyitems(items):
    """The cells of notebooks are journeys."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("journey")


def pytest_collection_finish():
    """What is imported stays: each training collects garbage, and would look through it all for half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def smollm2_folder():
    from workbook import backbones

    return backbones.resolve("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2():
    """The default backbone in float32, mean pooling. Tests that switch its attention set it before they use it."""
    import workbook

    return workbook.build("mean", dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def docs():
    """The docs corpus of the pinned packages, from the cache or built."""
    from workbook.corpora.docs import load_docs

    return load_docs()


@pytest.fixture(scope="session")
def corpora(docs):
    """What the cache holds of corpora and models, to be linked into an empty one: to build it again takes minutes."""
    from workbook.files import cache_path

    return [path for path in cache_path().iterdir() if path.name not in ("locks", "mteb", "stages", "training")]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Small training data by objective, an empty cache beside them, and one thread: what is repeated adds up alike."""
    import torch
    from training_tools import write_data

    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield write_data(tmp_path)
    torch.set_num_threads(threads)


@pytest.fixture
def place():
    """A folder that everybody may enter; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
