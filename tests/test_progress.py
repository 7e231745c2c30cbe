"""The loss while it falls, as a notebook and as a terminal show it."""

from types import SimpleNamespace

import pytest

from workbook.training import progress
from workbook.training.progress import Progress


def trained(bar):
    """The calls of a trainer that goes on after the first of four steps, and makes the second."""
    state = SimpleNamespace(
        log_history=[{"step": 0, "measured/sum": 1.0}, {"step": 1, "loss": 3.0}],
        is_world_process_zero=True,
        global_step=1,
        max_steps=4,
    )
    bar.on_train_begin(None, state, None)
    state.global_step = 2
    bar.on_log(None, state, None, {"loss": 1.0})
    bar.on_log(None, state, None, {"train_runtime": 2.0})
    bar.on_train_end(None, state, None)


@pytest.fixture
def notebook(monkeypatch):
    """Turn this process into a notebook; what it displays, in turn."""
    shown = []
    handle = SimpleNamespace(update=lambda html: shown.append(html.data))
    monkeypatch.setattr(progress, "display", lambda html, display_id: shown.append(html.data) or handle)
    monkeypatch.setattr(progress, "get_ipython", lambda: SimpleNamespace(config={"IPKernelApp": {}}))
    return shown


def test_in_a_notebook(notebook, capsys):
    trained(Progress("mntp"))
    first, last = notebook
    assert "mntp: step 1 of 4 <progress value='1' max='4'></progress> loss 3.000<br>" in first
    assert "mntp: step 2 of 4 <progress value='2' max='4'></progress> loss 1.000<br>" in last
    assert "<polyline points='0.0,1.0 100.0,39.0'" in last  # from the top to the bottom, two steps of the four
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "get_ipython", lambda: None)
    trained(Progress("mntp", show=True))
    out, err = capsys.readouterr()
    assert out == ""
    assert "mntp:  25%" in err
    assert "2/4" in err
    assert "loss 1.000 █▁" in err


def test_nothing_where_nobody_looks(notebook, monkeypatch, capsys):
    trained(Progress("mntp", show=False))
    monkeypatch.setattr(progress, "get_ipython", lambda: None)
    trained(Progress("mntp"))  # standard error is no terminal here
    assert notebook == []
    assert capsys.readouterr() == ("", "")
