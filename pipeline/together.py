"""Many fits in the same passes: each runs as it would alone, and what they ask of a runner is done together.

A fit asks for one thing at a time, a pass or a small solve.  Here each fit lives in a thread of its own, which waits
for its answer; once all of them wait, the passes over the same blocks become one pass: a block is read once and
stepped for every fit, each with its own rows, sums and solve.  So every fit ends with the bits that it has alone, and
stops sweeping when it has converged.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from aweigh.algorithms.contract import Array, Block, Each, Model, Stats
from aweigh.io.archive import Batch
from aweigh.pipeline import task
from aweigh.pipeline.driver import Runner, Solve
from aweigh.pipeline.events import Emit, Note, PassDone, Progress, silent
from aweigh.pipeline.task import RowsSource, Tally, Work

# What is done first when fits wait for different things: passes over the views come once no fit can get nearer to one
# without, so that there are as many as the longest fit has; those over embeddings last, all fits' k-means at once.
SOLVE, ROWS, VIEWS, EMBEDDINGS = range(4)
PHASES = {ROWS: "rows", VIEWS: "views", EMBEDDINGS: "embeddings"}


class Joint(NamedTuple):
    """The statistics of each work and what each of them cost."""

    stats: Each
    tallies: Each


@dataclass(frozen=True)
class Alongside:
    """Blocks that several works need, each read once: sources without their scaling, and the scalings of each."""

    sources: tuple[Any, ...]
    scalings: tuple[tuple[Any, ...], ...]

    @property
    def refs(self) -> Sequence[tuple[Batch, int]]:
        """The blocks, the same of all sources."""
        return self.sources[0].refs  # type: ignore[no-any-return]

    @property
    def most_tasks(self) -> int:
        """The most tasks, the same of all sources."""
        return self.sources[0].most_tasks  # type: ignore[no-any-return]

    def load(self, batch: Batch, block: int) -> tuple[tuple[Any, ...], Array, int]:
        """Return (views, presence) for each source and scaling in order, nothing of note, and the bytes read."""
        found, read = [], 0
        for source, scalings in zip(self.sources, self.scalings, strict=True):
            views, present, size = source.load(batch, block)
            read += size
            for number, chosen in enumerate(scalings, 1):
                raw = views if number == len(scalings) else [X.copy() for X in views]
                found.append((tuple(task.scaled(chosen, list(raw), present)), present))
        return tuple(found), np.ones((0, 0), bool), read


@dataclass(frozen=True)
class Steps:
    """The step of all works over one block; `at` says which of the loaded views each of them steps over."""

    works: tuple[Work, ...]
    at: tuple[int, ...]

    def __call__(self, models: tuple[Model, ...], block: Block) -> tuple[Joint, None]:
        here: Any = block.others
        done = []
        for work, model, at in zip(self.works, models, self.at, strict=True):
            views, present = block.views[at] if work.views else ((), np.ones((0, 0), bool))  # type: ignore[misc]
            done.append(task.step_block(work._replace(model=model), here.batch, here.number, views, present))
        return Joint(*zip(*done, strict=True)), None


@dataclass(frozen=True)
class Solves:
    """The solve of all works."""

    solves: tuple[Solve, ...]

    def __call__(self, models: tuple[Model, ...], joint: Joint) -> tuple[Model, ...]:
        return tuple(s(model, stats) for s, model, stats in zip(self.solves, models, joint.stats, strict=True))


def alongside(works: Sequence[Work]) -> tuple[Alongside, tuple[int, ...]]:
    """Return the one source of several works, and for each of them the number of its views in what that loads."""
    sources: list[Any] = []
    scalings: list[list[Any]] = []
    places = []
    for work in works:
        bare, own = _unscaled(work.source)
        if bare not in sources:
            sources.append(bare)
            scalings.append([])
        row = sources.index(bare)
        if not any(alike(own, other) for other in scalings[row]):
            scalings[row].append(own)
        places.append((row, next(i for i, other in enumerate(scalings[row]) if alike(own, other))))
    before = np.cumsum([0, *map(len, scalings)])
    return Alongside(tuple(sources), tuple(map(tuple, scalings))), tuple(int(before[r]) + i for r, i in places)


def _unscaled(source: Any) -> tuple[Any, tuple[Any, ...]]:
    if not hasattr(source, "scaling"):
        return source, ()
    return replace(source, scaling=()), source.scaling


def alike(one: Any, two: Any) -> bool:
    """Return whether two trees of tuples and arrays, such as scalings or models, are equal value by value."""
    if isinstance(one, tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(alike, one, two))
    return np.array_equal(one, two)


@dataclass
class Asked:
    """What one fit waits for: a pass (`work`, `solve`), or anything else to be done for it."""

    turn: int
    work: Any = None
    solve: Any = None
    do: Callable[[], Any] | None = None
    answer: Any = None
    error: BaseException | None = None
    ready: threading.Event = field(default_factory=threading.Event)


class Stopped(Exception):
    """Raised in the fits that are still at work when another has failed."""


@dataclass
class Member:
    """The runner that one of the fits sees."""

    crew: Crew
    number: int

    solved_on: str = ""

    def run(self, work: Work, solve: Solve, progress: Callable[[int, int], None]) -> tuple[Model, Stats, Tally]:
        """Return the solved model, the statistics and this fit's share of what the pass cost."""
        turn = VIEWS if work.views else ROWS
        turn = EMBEDDINGS if isinstance(work.source, RowsSource) else turn
        answer = self.crew.ask(self.number, Asked(turn, work, solve))
        self.solved_on = self.crew.runner.solved_on
        return answer  # type: ignore[no-any-return]

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args), computed where small solves run."""
        return self._done(lambda: self.crew.runner.call(function, *args))

    def floors(self) -> dict[str, int]:
        """Return each worker's floor, measured once for all fits."""
        return self.crew.floors

    def limit(self) -> int | None:
        """Return the smallest memory limit of the workers."""
        return self._done(self.crew.runner.limit)  # type: ignore[no-any-return]

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what each worker is."""
        return self._done(self.crew.runner.workers)  # type: ignore[no-any-return]

    def restarted(self) -> int:
        """Return how many workers are gone."""
        return self._done(self.crew.runner.restarted) if hasattr(self.crew.runner, "restarted") else 0

    def forget(self) -> None:
        """Keep what other fits may still need: the blocks are given back when all are done."""

    def _done(self, do: Callable[[], Any]) -> Any:
        return self.crew.ask(self.number, Asked(SOLVE, do=do))


class Crew:
    """Fits that go over the data together; `passes` are the joint passes done, as (turn, tally, fits in it)."""

    def __init__(self, runner: Runner, floors: dict[str, int], pin: str = "", emit: Emit = silent) -> None:
        self.runner, self.floors, self.pin, self.emit = runner, floors, pin, emit
        self.passes: list[tuple[int, Tally, int]] = []
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._layouts: list[Alongside] = []
        self._stopped = False

    def run(self, fits: Sequence[Callable[[Runner], Any]]) -> list[Any]:
        """Return the result of every fit, in order; raise the first failure, after all others have stopped."""
        with ThreadPoolExecutor(max(1, len(fits)), thread_name_prefix="fit") as pool:
            futures = [pool.submit(self._live, number, fit) for number, fit in enumerate(fits)]
            waiting: dict[int, Asked] = {}
            try:
                self._serve(len(fits), waiting)
            except BaseException:
                self._stop(futures, waiting)
                raise
            finally:
                self.runner.forget()
        return [future.result() for future in futures]

    def ask(self, number: int, asked: Asked) -> Any:
        """Wait, in a fit's thread, for what it asked for."""
        if self._stopped:
            raise Stopped
        self._inbox.put((number, asked))
        asked.ready.wait()
        if asked.error is not None:
            raise asked.error
        return asked.answer

    def _live(self, number: int, fit: Callable[[Runner], Any]) -> Any:
        try:
            made = fit(Member(self, number))
        except BaseException as error:
            self._inbox.put((number, error))
            raise
        self._inbox.put((number, None))
        return made

    def _serve(self, working: int, waiting: dict[int, Asked]) -> None:
        while True:
            while working:
                number, asked = self._inbox.get()
                working -= 1
                if isinstance(asked, BaseException):
                    raise asked
                if asked is not None:
                    waiting[number] = asked
            if not waiting:
                return
            turn = min(asked.turn for asked in waiting.values())
            chosen = sorted(number for number, asked in waiting.items() if asked.turn == turn)
            self._answer(turn, [waiting[number] for number in chosen])
            for number in chosen:
                waiting.pop(number).ready.set()
            working = len(chosen)

    def _stop(self, futures: list[Future[Any]], waiting: dict[int, Asked]) -> None:
        self._stopped = True
        for asked in waiting.values():
            asked.error = Stopped()
            asked.ready.set()
        while not all(future.done() for future in futures):
            try:
                _, asked = self._inbox.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(asked, Asked):
                asked.error = Stopped()
                asked.ready.set()

    def _answer(self, turn: int, waiting: list[Asked]) -> None:
        """Do what was asked for; an error is the asker's, who knows what it means."""
        groups: dict[Any, list[Asked]] = {}
        for number, asked in enumerate(waiting):
            groups.setdefault(number if turn == SOLVE else _blocks(asked.work), []).append(asked)
        for group in groups.values():
            try:
                answers = [asked.do() for asked in group if asked.do] if turn == SOLVE else self._pass(turn, group)
            except Exception as error:
                for asked in group:
                    asked.error = error
                continue
            for asked, answer in zip(group, answers, strict=True):
                asked.answer = answer

    def _pass(self, turn: int, group: list[Asked]) -> list[tuple[Model, Stats, Tally]]:
        firsts, numbers = _distinct(group)
        works = [asked.work for asked in firsts]
        source, at = alongside(works)
        steps = Steps(tuple(work._replace(model=None) for work in works), at)
        models = tuple(work.model for work in works)
        pin = self._layout(source) if turn == VIEWS and any(work.pin for work in works) else ""
        joint = Work(source, steps, models, views=turn != ROWS, pin=pin)
        phase = f"{PHASES[turn]} for {len(group)}"
        solves = Solves(tuple(asked.solve for asked in firsts))
        solved, stats, tally = self.runner.run(joint, solves, lambda done, of: self.emit(Progress(phase, done, of)))
        tally = _whole(tally, stats.tallies)
        if turn == VIEWS:
            views = sum(done == VIEWS for done, _, _ in self.passes) + 1
            self.emit(Note(f"pass {views} over the views, for {len(group)} fits"))
        self.passes.append((turn, tally, len(group)))
        self.emit(PassDone(phase, tally))
        return [(solved[i], stats.stats[i], _share(stats.tallies[i], tally, len(group))) for i in numbers]

    def _layout(self, source: Alongside) -> str:
        """Return the name that blocks are kept under: one for each set of scalings that a pass reads side by side."""
        for number, other in enumerate(self._layouts):
            if other.sources == source.sources and alike(other.scalings, source.scalings):
                return f"{self.pin}.{number}"
        self._layouts.append(source)
        return f"{self.pin}.{len(self._layouts) - 1}"


def _blocks(work: Work) -> tuple[Any, ...]:
    """Return what works must share to be done in one pass: the same blocks in the same tasks, or the sums differ."""
    source, refs = work.source, work.source.refs
    whole = [(batch.name, batch.digest) for batch in getattr(source, "batches", ())]
    return tuple(whole or ((b.name, b.digest, block) for b, block in refs)), len(
        task.groups(len(refs), source.most_tasks)
    )


def _distinct(group: list[Asked]) -> tuple[list[Asked], list[int]]:
    """Return what was asked for without repeats, and for each fit the number of its own: surveys are all the same."""
    firsts: list[Asked] = []
    numbers = []
    for asked in group:
        number = next((i for i, other in enumerate(firsts) if _same(asked, other)), len(firsts))
        if number == len(firsts):
            firsts.append(asked)
        numbers.append(number)
    return firsts, numbers


def _same(one: Asked, two: Asked) -> bool:
    """Return whether two passes compute the same and write nothing."""
    a, b = one.work, two.work
    if a.rows is not None or b.rows is not None:
        return False
    if any(_function(f) != _function(g) for f, g in ((a.step, b.step), (one.solve, two.solve))):
        return False
    (bare, own), (other, others) = _unscaled(a.source), _unscaled(b.source)
    return bare == other and alike((own, a.model), (others, b.model))


def _function(what: Any) -> Any:
    """Return what makes two functions the same: bound methods are, of objects that are equal."""
    return (what.__func__, what.__self__) if hasattr(what, "__self__") else what


def _whole(tally: Tally, parts: tuple[Tally, ...]) -> Tally:
    """Return what a joint pass cost: what it read for all, and what each work read and wrote for itself."""
    return tally._replace(
        view_bytes=tally.view_bytes + sum(part.view_bytes for part in parts),
        row_bytes=tally.row_bytes + sum(part.row_bytes for part in parts),
        rows_written=tally.rows_written + sum(part.rows_written for part in parts),
    )


def _share(own: Tally, whole: Tally, works: int) -> Tally:
    """Return one work's tally, with an equal share of what was read for all."""
    return own._replace(
        view_bytes=whole.view_bytes // works,
        read_seconds=own.read_seconds + whole.read_seconds / works,
        peak_bytes=whole.peak_bytes,
    )
