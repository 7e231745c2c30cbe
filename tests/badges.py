"""The badges of the README, from what they state; ``python tests/badges.py`` writes them."""

import pandas as pd
from anybadge import Badge
from test_environment import PROJECT, pins

from workbook.files import ROOT

FOLDER = ROOT / "figures" / "badges"


def stated():
    """What each badge states, by its file name: label and value."""
    verdicts = pd.read_csv(ROOT / "figures" / "07_claims.csv").drop_duplicates("claim")["verdict"]
    tested = [words.rpartition(" :: ")[2] for words in PROJECT["classifiers"] if "Python" in words]
    return {
        "python": ("python", " | ".join(tested)),
        "transformers": ("transformers", pins()["transformers"]),
        "claims": ("claims supported", f"{(verdicts == 'supported').sum()} of {len(verdicts)}"),
    }


def drawn():
    """The drawing of each badge, by its file name."""
    return {name: Badge(label, value, default_color="navy").badge_svg_text for name, (label, value) in stated().items()}


if __name__ == "__main__":
    for name, svg in drawn().items():
        (FOLDER / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")
