"""A method that learns from one seeded half of the rows and embeds them all: what its stability is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aweigh.algorithms import sampling
from aweigh.algorithms.contract import Array, Block, Model, Pass, Rows, Sample, Stats

_PURPOSE = 0x5EED  # so that halves are not cut along the hash that chose the sample


@dataclass(frozen=True)
class Half:
    """The method over the rows of half `part` (0 or 1) of a seed's cut; for methods that carry nothing a row."""

    method: Any
    part: int
    seed: int

    width = 0

    def __post_init__(self) -> None:
        if not halvable(self.method):
            raise ValueError("a method whose rows carry something between sweeps has no halves")

    def _keep(self, positions: Array) -> Array:
        return sampling.position_hash(positions, self.seed + _PURPOSE) % np.uint64(2) == self.part

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.method.clusters)

    @property
    def m(self) -> int:
        """Number of anchors, or of whatever else a step makes columns of."""
        return int(getattr(self.method, "m", self.method.clusters))

    @property
    def missing(self) -> bool:
        """Whether rows may be missing from views."""
        return bool(self.method.missing)

    @property
    def rounds(self) -> bool:
        """Whether batches are learnt one after the other."""
        return bool(self.method.rounds)

    @property
    def records(self) -> tuple[type, ...]:
        """The named tuples of its models and sums."""
        return tuple(self.method.records)

    @property
    def embedding(self) -> int:
        """Columns of the embedding."""
        return int(self.method.embedding)

    @property
    def max_sweeps(self) -> int:
        """Most sweeps."""
        return int(self.method.max_sweeps)

    @property
    def tol(self) -> float:
        """Relative change to stop at."""
        return float(self.method.tol)

    @property
    def prepare(self) -> tuple[Pass, ...]:
        """The method's passes over the half."""
        return tuple(self._halved(p) for p in self.method.prepare)

    @property
    def sweep(self) -> tuple[Pass, ...]:
        """The method's passes over the half."""
        return tuple(self._halved(p) for p in self.method.sweep)

    def _halved(self, whole: Pass) -> Pass:
        return whole._replace(step=HalfStep(self, whole.step))

    def start(self, sample: Sample, rng: np.random.Generator, prior: Model | None = None) -> Model:
        """Return the method's start from the half of the sample, or from all of it where the half is too small."""
        keep = self._keep(sample.positions)
        if keep.sum() >= self.m:
            sample = Sample(tuple(X[keep] for X in sample.views), sample.present[keep], sample.positions[keep])
        return self.method.start(sample, rng, prior)

    def embed(self, model: Model, stats: Stats, block: Block) -> Array:
        """Return the embedding of all rows of a block."""
        return self.method.embed(model, stats, block)  # type: ignore[no-any-return]


def halvable(method: Any) -> bool:
    """Return whether a method's steps see a row by itself: nothing is carried, and no row is compared with another."""
    return method.width == 0 and not getattr(method, "arrays", ())


@dataclass(frozen=True)
class HalfStep:
    """The step over the rows of the half; a block without any adds nothing."""

    half: Half
    step: Any

    def __call__(self, model: Model, block: Block) -> tuple[Stats, Rows]:
        """Return the sums of one block's rows that are in the half."""
        keep = self.half._keep(block.positions)
        chosen = keep if keep.any() else np.arange(len(keep)) == 0
        part = block._replace(
            views=tuple(X[chosen] for X in block.views), present=block.present[chosen],
            positions=block.positions[chosen], within=block.within[chosen], carried=block.carried[chosen],
        )  # fmt: skip
        stats, _ = self.step(model, part)
        return (stats if keep.any() else _nothing(stats)), None


def _nothing(stats: Any) -> Any:
    """Return sums of no rows."""
    if isinstance(stats, tuple):
        parts = map(_nothing, stats)
        return type(stats)(*parts) if hasattr(stats, "_fields") else tuple(parts)
    return stats * 0
