"""One clustering out of several: the unit-row embeddings of fitted methods side by side, for one k-means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from aweigh.algorithms import linalg
from aweigh.algorithms.contract import Array, Block, Model, Pass, Stats


@dataclass(frozen=True)
class Consensus:
    """Methods that have been fitted already; its model, point and stats are tuples of theirs."""

    clusters: int
    members: tuple[Any, ...]

    rounds = False
    width = 0
    prepare: ClassVar[tuple[Pass, ...]] = ()
    sweep: ClassVar[tuple[Pass, ...]] = ()
    max_sweeps = 0
    tol = 0.0

    @property
    def missing(self) -> bool:
        """Whether rows may be missing from views."""
        return all(member.missing for member in self.members)

    @property
    def records(self) -> tuple[type, ...]:
        """The named tuples of all members' models and sums."""
        return tuple(dict.fromkeys(kind for member in self.members for kind in member.records))

    @property
    def embedding(self) -> int:
        """Columns of all members' embeddings."""
        return int(sum(member.embedding for member in self.members))

    def place(self, model: tuple[Model, ...], stats: tuple[Stats, ...], block: Block) -> Array:
        """Return the members' embeddings of rows that were in no fit, side by side."""
        found = []
        for member, own, sums in zip(self.members, model, stats, strict=True):
            carried = np.zeros((len(block.positions), member.width))
            found.append(member.place(own, sums, block._replace(carried=carried)))
        return side_by_side(tuple(found))


def side_by_side(embeddings: tuple[Array, ...]) -> Array:
    """Return the rows of several embeddings (rows, Σ columns), each member's of unit length."""
    return np.hstack([linalg.unit_rows(E) for E in embeddings])
