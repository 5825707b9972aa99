"""Checking rows one after the other."""

from mapl.errors import LedgerCorruptedError
from mapl.ledger.files import GENESIS
from mapl.ledger.store import Row, Store


class ChainVerifier:
    """Checks row after row: no gap, an unbroken chain, totals that add up."""

    def __init__(self, store: Store, start: int = 0) -> None:
        self.store, self.seq, self.mac = store, start, GENESIS
        self.totals: dict[str, tuple[int, ...]] = {}
        self.whole = start == 0

    def check(self, row: Row) -> None:
        """Check the next row."""
        name, totals = row["dataset"], self._totals(row)
        known = self.totals.get(name, (0, 0, 0) if self.whole else None)
        adds_up = known is None or totals == (
            known[0] + 1,
            known[1] + row["loss"],
            known[2] + row["delta"],
        )
        if (
            row["seq"] != self.seq + 1
            or self.store.mac(row, self.mac) != row["mac"]
            or not adds_up
        ):
            raise LedgerCorruptedError(
                f"{self.store.url} is damaged at row {self.seq + 1}: rows are "
                "missing or not what was written. Restore the newest backup that "
                "verifies."
            )
        self.seq, self.mac, self.totals[name] = row["seq"], bytes(row["mac"]), totals

    @staticmethod
    def _totals(row: Row) -> tuple[int, ...]:
        return row["number"], row["loss_spent"], row["delta_spent"]
