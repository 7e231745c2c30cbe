"""What the papers say, and what of it held: their printed numbers, their claims, the rules, the ledger."""

from . import claims, leaderboard, ledger
from .tables import PUBLISHED, published

__all__ = ["PUBLISHED", "claims", "leaderboard", "ledger", "published"]
