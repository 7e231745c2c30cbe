"""The papers: their printed numbers, their claims, the rules that test them, and the ledger of verdicts."""

from . import claims, leaderboard, ledger
from .tables import PUBLISHED, published

__all__ = ["PUBLISHED", "claims", "leaderboard", "ledger", "published"]
