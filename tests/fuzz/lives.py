"""Random lives with any seed: nothing stops the fold, and neither cuts nor skipped rounds make a difference.

The lives that are recorded have few seeds (see `tests.broker.recorded_lives`).
"""

from random import Random
from typing import NamedTuple

from hypothesis import strategies as st

from tests.broker import other_folds
from tests.broker.random_lives import THEMES, RandomLife
from tests.fuzz.cases import Log, Sent
from tests.fuzz.limits import Finding, limited


class Life(NamedTuple):
    """A life by its theme and seed."""

    theme: str
    seed: int

    def log(self, count: int = 0) -> Log:
        """Its records, up to the one that stops the fold."""
        return [Sent(*record) for record in self._lived()[0].log]

    def judge(self) -> str:
        """The theme. Raises `Finding`."""
        with limited(60) as begin:
            life, error = self._lived()
            if error is not None:
                raise error
            begin("folding it otherwise")
            try:
                other_folds.cut(life.log, life.rows, Random(self.seed))
                other_folds.without_skipping(life.log, life.rows)
            except AssertionError as difference:
                where = str(difference).partition("\n")[0]
                kind = where.rpartition(", ")[2]
                raise Finding(f"a life is another when {kind}", f"{self}: {where}") from difference
        return self.theme

    def _lived(self) -> tuple[RandomLife, Exception | None]:
        life = RandomLife.__new__(RandomLife)
        try:
            life.__init__(f"{self.theme} {self.seed}", THEMES[self.theme])  # type: ignore[misc]
        except Exception as error:
            return life, error
        return life, None


def lives() -> st.SearchStrategy[Life]:
    """Any life."""
    return st.builds(Life, st.sampled_from(sorted(THEMES)), st.integers(100, 2**31))
