"""The papers: their printed numbers, their claims, the rules that test them, the verdicts, and their ledger."""

from . import claims, leaderboard, ledger, verdicts
from .tables import PUBLISHED, published

__all__ = ["PUBLISHED", "claims", "leaderboard", "ledger", "published", "verdicts"]
