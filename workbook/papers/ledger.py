"""The claims ledger: for every claim of the five papers, what a run measured, and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from .. import figures
from ..errors import DamagedFileError, MissingDataError, UnknownNameError, WorkbookError
from ..files import atomic_file
from . import claims
from .claims import Claim, Verdict

FIGURE = "claims"
"""Name of the ledger's figure in a run folder."""
NOT_RUN = "not run"
VERDICTS = (
    claims.REPRODUCED,
    claims.PARTLY,
    claims.NOT_REPRODUCED,
    claims.NO_INTERVAL,
    claims.NOT_TESTED,
    NOT_RUN,
)
"""Verdicts in the ledger, from the most to the least informative."""
_LOOKS = {
    claims.REPRODUCED: figures.VERDICTS["supported"],
    claims.PARTLY: figures.VERDICTS["inconclusive"],
    claims.NOT_REPRODUCED: figures.VERDICTS["contradicted"],
    claims.NO_INTERVAL: figures.VERDICTS["not tested"],
    claims.NOT_TESTED: figures.VERDICTS["not tested"],
    NOT_RUN: figures.VERDICTS["not run"],
}
_TESTED = VERDICTS[:3]
_OUTCOMES = ("fails", "no interval", "overlaps", "holds")


def table(folder: str | Path) -> pd.DataFrame:
    """Every claim with the findings of a run's notebooks.

    An effect is the margin by which a comparison of the rule holds, see `claims.effect`. Of several comparisons, and of
    several notebooks that judged the claim, the table has the one that holds the least: one that fails before one whose
    interval reaches zero. If a notebook tested a claim, those that could not don't count.

    Args:
        folder: A run folder, with the ``claims.json`` that its notebooks wrote.

    Returns:
        One row per claim, paper by paper: ``paper``, ``claim`` (its id), ``place``, ``statement``, ``comparison``,
        ``published_low`` and ``published_high`` (its effect in the paper, over ``models`` models), ``effect``, ``low``
        and ``high`` (of the run, with its interval, or NaN), ``scale`` (of the run's numbers; without numbers the
        smallest that can test the claim), ``notebook`` (those that judged it, or empty), ``verdict`` (one of
        ``VERDICTS``; partly if notebooks differ) and ``did_not_learn`` (models because of which it was not tested).

    Raises:
        MissingDataError: The folder holds no verdicts.
        DamagedFileError: The verdicts can't be read, or follow another rule than the claim's.
        UnknownNameError: A verdict on a claim that does not exist.
    """
    found = _verdicts(Path(folder))
    rows = pd.DataFrame([_row(claim, found[claim.id]) for claim in claims.load().values()])
    papers = list(rows["paper"].unique())
    return rows.sort_values("paper", key=lambda names: names.map(papers.index), kind="stable", ignore_index=True)


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Number of claims by paper (rows) and verdict (columns), with their sums, from rows of `table`."""
    found = pd.crosstab(rows["paper"], rows["verdict"], margins=True, margins_name="all")
    return found.reindex(index=[*rows["paper"].unique(), "all"], columns=[*VERDICTS, "all"], fill_value=0)


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `table` as text for readers: claim, verdict, measured, published, scale and place.

    Effects have three digits and a sign; ``+2.1 [0.4, 3.8]`` is one with its interval, ``+0.5 to +1.3 (3)`` the range
    over three models.
    """
    effects, printed = rows[["effect", "low", "high"]], rows[["published_low", "published_high", "models"]]
    measured = pd.Series([_measured(*numbers) for numbers in effects.itertuples(index=False)], index=rows.index)
    return rows[["claim", "verdict"]].assign(
        measured=measured.where(rows["did_not_learn"] == "", "did not learn: " + rows["did_not_learn"]),
        published=[_published(*numbers) for numbers in printed.itertuples(index=False)],
        scale=rows["scale"],
        place=rows["place"],
    )


def figure(rows: pd.DataFrame) -> Figure:
    """A figure with a strip per paper and a tile for each of its claims, from rows of `table`."""
    return figures.tiles(rows, "paper", "verdict", kinds=_LOOKS, title="Claims by paper and verdict")


def write(folder: str | Path) -> pd.DataFrame:
    """Write ``ledger.json``, ``ledger.csv`` and the figure ``claims`` into a run folder.

    The JSON holds every claim as in the data, with all verdicts on it; the CSV is that of `table`.

    Args:
        folder: A run folder.

    Returns:
        The rows of `table`.

    Raises:
        MissingDataError, DamagedFileError, UnknownNameError: As `table`; then nothing is written.
        OutputError: The folder can't be written.
    """
    folder = Path(folder)
    rows, known, found = table(folder), claims.load(), _verdicts(folder)
    entries = [
        known[name].model_dump(mode="json")
        | {"verdict": verdict, "verdicts": [one.model_dump(mode="json") for one in found[name]]}
        for name, verdict in rows[["claim", "verdict"]].itertuples(index=False)
    ]
    with atomic_file(folder / "ledger.json") as temporary:
        temporary.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with atomic_file(folder / "ledger.csv") as temporary:
        rows.to_csv(temporary, index=False, lineterminator="\n")
    figures.save(figure(rows), FIGURE, rows[["paper", "claim", "verdict"]], folder / "figures")
    return rows


def _verdicts(folder: Path) -> dict[str, list[Verdict]]:
    """The verdicts of a run by claim; one that follows another rule than the claim's is refused."""
    path = folder / "claims.json"
    if not path.exists():
        raise MissingDataError(
            f"Expected the verdicts of a run in {path}, found none. Run the notebooks into this folder first, "
            "or name the folder of another run."
        )
    known = claims.load()
    found: dict[str, list[Verdict]] = {name: [] for name in known}
    for verdict in claims.read(path):
        again = f"Run notebook {verdict.notebook or 'that wrote it'} again, or delete the file."
        if verdict.id not in known:
            raise UnknownNameError(f"claim in {path}", verdict.id, known, again)
        claim = known[verdict.id]
        try:
            due = claims.judge(claim, verdict.measured, scale=verdict.scale, did_not_learn=verdict.did_not_learn)
        except WorkbookError:  # of another rule with other quantities
            due = None
        if due is None or (due.verdict, due.clauses) != (verdict.verdict, verdict.clauses):
            raise DamagedFileError(
                f"{path}: expected a verdict on claim {verdict.id!r} by its rule {list(claim.rule)} at scale "
                f"{verdict.scale}, got {verdict.verdict!r} by {list(verdict.clauses)}. {again}"
            )
        found[verdict.id].append(verdict)
    return found


def _row(claim: Claim, verdicts: Sequence[Verdict]) -> dict[str, object]:
    tested = [verdict for verdict in verdicts if verdict.verdict in _TESTED]
    counted = tested or verdicts
    words = {verdict.verdict for verdict in counted} or {NOT_RUN}
    effects = [
        (_OUTCOMES.index(verdict.clauses[clause]), effect.value, clause, effect)
        for verdict in counted
        for clause, effect in verdict.effects().items()
    ]
    published = {clause: list(claim.published_effects(clause).values()) for clause in claim.rule}
    *_, comparison, effect = min(effects, key=lambda item: item[:2], default=(None, None))
    if effect is None:
        comparison = min(published, key=lambda clause: min(published[clause], default=math.inf))
    return {
        "paper": claim.paper,
        "claim": claim.id,
        "place": claim.place,
        "statement": claim.statement,
        "comparison": comparison,
        "published_low": min(published[comparison], default=math.nan),
        "published_high": max(published[comparison], default=math.nan),
        "models": len(published[comparison]),
        "effect": math.nan if effect is None else effect.value,
        "low": math.nan if effect is None or effect.low is None else effect.low,
        "high": math.nan if effect is None or effect.high is None else effect.high,
        "scale": ", ".join(dict.fromkeys(verdict.scale for verdict in counted)) or claim.scale,
        "notebook": ", ".join(verdict.notebook for verdict in verdicts),
        "verdict": claims.PARTLY if tested and len(words) > 1 else min(words, key=VERDICTS.index),
        "did_not_learn": ", ".join(dict.fromkeys(name for verdict in counted for name in verdict.did_not_learn)),
    }


def _measured(effect: float, low: float, high: float) -> str:
    if math.isnan(effect):
        return "-"
    return claims.Estimate.of((effect, low, high)).format("+")


def _published(low: float, high: float, models: int) -> str:
    if not models:
        return "-"
    return f"{low:+.3g}" if low == high else f"{low:+.3g} to {high:+.3g} ({models})"
