"""The claims ledger: for every claim of the five papers, what a run measured, and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from .. import figures
from ..errors import MissingDataError
from ..files import atomic_file, data_path
from . import claims, rules
from .verdicts import CONTRADICTED, INCONCLUSIVE, NOT_TESTED, SUPPORTED, Claim, Finding, Verdict

FIGURE = "claims"
"""Name of the ledger's figure in a run folder."""
NOT_RUN = "not run"
VERDICTS = tuple(figures.VERDICTS)
"""Verdicts in the ledger, from the most to the least informative."""
WORDS = ["claim", "paper", "published", "here", "items and seeds", "could have seen", "verdict", "why"]
"""Columns of a table in words, see `readable`."""


def table(folder: str | Path) -> pd.DataFrame:
    """Every clause of every claim with the findings of a run's notebooks.

    If several notebooks judged a claim, the table has the one that tested it; of several the weakest verdict. A verdict
    that can't be read, contradicts its own numbers or follows an earlier rule counts as not tested, with the reason.

    Args:
        folder: A run folder, with the ``claims.json`` that its notebooks wrote.

    Returns:
        The rows of `effects`, paper by paper, for all claims: those that no notebook judged are ``not run``.

    Raises:
        MissingDataError: The folder holds no verdicts.
        DamagedFileError: The file of verdicts is not a JSON list.
    """
    known, found = _known(), _verdicts(Path(folder))
    rows = pd.concat([effects([found[name]]) if name in found else _not_run(*item) for name, item in known.items()])
    papers = list(rows["paper"].unique())
    return rows.sort_values("paper", key=lambda names: names.map(papers.index), kind="stable", ignore_index=True)


def effects(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """The effects of verdicts, one row per clause.

    Returns:
        ``paper``, ``claim`` (its id), ``place``, ``statement``, ``clause``, ``label`` (the clause in words),
        ``unit``, ``effect``, ``low`` and ``high`` (95 % interval), ``detectable`` (the smallest effect to be seen with
        80 % power), ``threshold`` and ``upper`` (where the claimed side begins, and ends if it does), ``paper_low`` and
        ``paper_high`` (the effect in the paper, over its models), ``models`` (their number), ``inside`` (whether all
        of these lie in our interval: yes, no, or some), ``items``, ``seeds``, ``scale``, ``notebook``, ``found``
        (verdict on the clause), ``verdict`` (on the claim) and ``why``. Numbers that are not known are NaN, words
        empty.
    """
    rows = [
        _row(verdict.claim, clause, found)
        | {"scale": verdict.scale, "notebook": verdict.notebook, "verdict": verdict.verdict}
        | {"why": found.why or verdict.why()}
        for verdict in verdicts
        for clause, found in verdict.findings.items()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Number of claims by paper (rows) and verdict (columns), with their sums, from rows of `table`."""
    rows = rows.drop_duplicates("claim")
    found = pd.crosstab(rows["paper"], rows["verdict"], margins=True, margins_name="all")
    return found.reindex(index=[*rows["paper"].unique(), "all"], columns=[*VERDICTS, "all"], fill_value=0)


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `table` or `effects` as text for readers, one row per claim; clauses are lines of a cell.

    ``+2.1 [0.4, 3.8]`` is an effect with its interval, ``+0.5 to +1.3 (3 models)`` the range in the paper.

    Returns:
        The columns ``WORDS``.
    """
    found = [_words(group) for _, group in rows.groupby("claim", sort=False)]
    return pd.DataFrame(found, columns=WORDS)


def figure(rows: pd.DataFrame) -> Figure:
    """A figure with a strip per paper and a tile for each of its claims, from rows of `table`."""
    rows = rows.drop_duplicates("claim")
    return figures.tiles(rows, "paper", "verdict", kinds=figures.VERDICTS, title="Claims by paper and verdict")


def write(folder: str | Path) -> pd.DataFrame:
    """Write ``ledger.json``, ``ledger.csv`` and the figure ``claims`` into a run folder.

    The JSON holds every claim as in the data, with the verdict on it; the CSV is that of `table`.

    Args:
        folder: A run folder.

    Returns:
        The rows of `table`.

    Raises:
        MissingDataError, DamagedFileError: As `table`; then nothing is written.
        OutputError: The folder can't be written.
    """
    folder = Path(folder)
    rows, found = table(folder), _verdicts(folder)
    words = rows.drop_duplicates("claim").set_index("claim")["verdict"]
    entries = [
        claim.model_dump(mode="json")
        | {"verdict": words[name]}
        | ({"findings": found[name].model_dump(mode="json")["findings"]} if name in found else {})
        for name, (claim, _) in _known().items()
    ]
    with atomic_file(folder / "ledger.json") as temporary:
        temporary.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with atomic_file(folder / "ledger.csv") as temporary:
        rows.to_csv(temporary, index=False, lineterminator="\n")
    figures.save(figure(rows), FIGURE, rows.drop_duplicates("claim")[["paper", "claim", "verdict"]], folder / "figures")
    return rows


_COLUMNS = [
    *("paper", "claim", "place", "statement", "clause", "label", "unit", "effect", "low", "high", "detectable"),
    *("threshold", "upper", "paper_low", "paper_high", "models", "inside", "items", "seeds", "scale", "notebook"),
    *("found", "verdict", "why"),
]


def _known() -> dict[str, tuple[Claim, str]]:
    """Every claim of the project's file, with what is wrong with it, if something is."""
    return {
        name: (claim, "") if isinstance(claim, Claim) else (_unusable(name), str(claim))
        for name, claim in claims.read_claims().items()
    }


def _unusable(name: str) -> Claim:
    return Claim(id=name, paper="-", place="", statement="A claim that can't be used.", rule=("x > 0",), scale="quick")


def _verdicts(folder: Path) -> dict[str, Verdict]:
    """The verdict on each claim that was judged; one that can't be used is not tested, and says why."""
    path = folder / "claims.json"
    if not path.exists():
        raise MissingDataError(
            f"Expected the verdicts of a run in {path}, found none. Run the notebooks into this folder first, "
            "or name the folder of another run."
        )
    verdicts, problems = claims.read(path)
    for name, (claim, problem) in _known().items():
        if why := problem or problems.get(name, ""):
            findings = {clause: Finding(verdict=NOT_TESTED, why=why) for clause in claim.rule}
            verdicts.append(Verdict(claim=claim, scale=claim.scale, verdict=NOT_TESTED, findings=findings))
    strength = (NOT_TESTED, SUPPORTED, INCONCLUSIVE, CONTRADICTED)  # what tested the claim counts, then the weakest
    chosen: dict[str, Verdict] = {}
    for verdict in verdicts:
        before = chosen.get(verdict.id)
        if before is None or strength.index(verdict.verdict) > strength.index(before.verdict):
            chosen[verdict.id] = verdict
    return chosen


def _not_run(claim: Claim, _: str) -> pd.DataFrame:
    rows = [
        _row(claim, clause, Finding(verdict=NOT_TESTED))
        | {"scale": claim.scale, "notebook": "", "verdict": NOT_RUN, "why": ""}
        for clause in claim.rule
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _row(claim: Claim, clause: str, found: Finding) -> dict[str, Any]:
    comparison, effect = claim.clauses()[clause], found.effect
    printed = list(claim.published_effects(clause).values())
    known = effect is not None and bool(effect.error)  # an exact number has no interval to lie in
    inside = sum(effect.low <= number <= effect.high for number in printed) if known else 0
    marks = {0: "no", len(printed): "yes"} if known and printed else {inside: ""}
    bounds = [bound for bound in (comparison.above, comparison.below) if math.isfinite(bound)]
    return {
        "paper": claim.paper,
        "claim": claim.id,
        "place": claim.place,
        "statement": claim.statement,
        "clause": clause,
        "label": label(comparison.weights, comparison.suite),
        "unit": claim.unit,
        "effect": effect.value if effect else math.nan,
        "low": effect.low if effect else math.nan,
        "high": effect.high if effect else math.nan,
        "detectable": effect.detectable if effect and effect.error else math.nan,
        "threshold": bounds[0],
        "upper": bounds[1] if len(bounds) > 1 else math.nan,
        "paper_low": min(printed, default=math.nan),
        "paper_high": max(printed, default=math.nan),
        "models": len(printed),
        "inside": marks.get(inside, "some"),
        "items": effect.items if effect else 0,
        "seeds": effect.seeds if effect else 0,
        "found": found.verdict,
    }


def label(weights: Mapping[str, float], suite: str = "") -> str:
    """An effect in words: ``docs: mean - last token``.

    Args:
        weights: Weight of each quantity, by its name in a rule; ``data/quantities.csv`` says what figures call it.
        suite: The suite that it is measured on, if any.
    """
    named = _quantities()
    terms = sorted(weights.items(), key=lambda item: item[1] < 0)  # what is claimed to be more comes first
    words = ""
    for name, weight in terms:
        factor = "" if abs(weight) == 1 else f"{abs(weight):g} x "
        sign = (" - " if weight < 0 else " + ") if words else ("-" if weight < 0 else "")
        words += sign + factor + named.get(name, name.replace("_", " "))
    return f"{suite}: {words}" if suite else words


@lru_cache
def _quantities() -> dict[str, str]:
    """Words for quantities by name, where they are not the name itself; this project's data, so read once."""
    return pd.read_csv(data_path("quantities.csv")).set_index("quantity")["words"].to_dict()


def _words(clauses: pd.DataFrame) -> dict[str, str]:
    """One claim in words: a line per clause where it has several."""
    first = clauses.iloc[0]
    names = [f"{one}: " if len(clauses) > 1 else "" for one in clauses["label"]]
    lines = {
        "published": [_published(row) for _, row in clauses.iterrows()],
        "here": [name + _here(row, len(clauses) > 1) for name, (_, row) in zip(names, clauses.iterrows(), strict=True)],
        "items and seeds": [f"{row['items']} x {row['seeds']}" * bool(row["items"]) for _, row in clauses.iterrows()],
        "could have seen": [_number(row["detectable"], "") for _, row in clauses.iterrows()],
    }
    # A line a clause, so that the columns can be read across, but where one line says it for all.
    joined = {
        column: "\n".join(cell or "-" for cell in (cells if column == "here" or len({*cells}) > 1 else cells[:1]))
        for column, cells in lines.items()
    }
    place = f"{first['paper']}, {first['place']}".rstrip(", ")
    why = " ".join(dict.fromkeys(filter(None, clauses["why"])))
    return {"claim": first["statement"], "paper": place, "verdict": first["verdict"], "why": why or "-"} | joined


def _here(row: pd.Series, several: bool) -> str:
    """An effect with its interval and, where it is not zero, the side that is claimed."""
    if math.isnan(row["effect"]):
        return row["found"] if several else "-"
    text = _number(row["effect"], "+" if row["threshold"] == 0 or not math.isnan(row["upper"]) else "")
    if not math.isnan(row["low"]) and row["low"] < row["high"]:
        text += f" [{_number(row['low'], '')}, {_number(row['high'], '')}]"
    if not math.isnan(row["upper"]):
        text += f", claimed between {row['threshold']:g} and {row['upper']:g}"
    elif row["threshold"]:
        side = "over" if math.isfinite(rules.read(row["clause"], row["claim"]).above) else "under"
        text += f", claimed {side} {row['threshold']:g}"
    text += "" if row["unit"] == "points" or several else f" ({row['unit']})"
    return f"{text} ({row['found']})" if several else text


def _published(row: pd.Series) -> str:
    """The effect in the paper over its models, and whether it lies in our interval."""
    if not row["models"]:
        return ""
    low, high = (_number(row[end], "+" if row["threshold"] == 0 else "") for end in ("paper_low", "paper_high"))
    text = low if low == high else f"{low} to {high} ({row['models']} models)"
    inside = {"yes": ", inside our interval", "no": ", outside our interval", "some": ", partly inside"}
    return text + inside.get(row["inside"], "")


def _number(value: float, sign: str) -> str:
    if math.isnan(value):
        return ""
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.3g}"
