"""``pytest --nbval notebooks`` runs every committed notebook and compares its outputs, offline."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # kernels inherit it
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are shared by the workers


def pytest_collectstart(collector):
    """Leave warnings out: they depend on the machine, and a committed notebook holds none."""
    if collector.nodeid.endswith(".ipynb"):
        collector.skip_compare += ("stderr",)
