"""What the scheduler costs: sweeps of tasks that do nothing, through a real scheduler and stub workers.

    python tests/bench/scheduler.py [--workers 2] [--seconds-a-block 0.02] [--tasks 100000] [--write]

First one pass by the driver's own way for each number of blocks from 10^3 to 4.5 x 10^5, grouped into tasks by
`task.groups`; the share is what it costs of a sweep whose blocks take --seconds-a-block of one worker each, all workers
busy.  Then --tasks tasks at once, one block each: what no grouping would cost.  Workers are threads of this process.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from importlib.metadata import version

from harness import write_section

from aweigh.pipeline import bench, cluster, task
from aweigh.pipeline.task import Work

BLOCKS = (1_000, 10_000, 100_000, 450_000)


def one_pass(client: object, blocks: int) -> tuple[float, int]:
    """Return the seconds and the messages of one pass over so many blocks that hold nothing."""
    work = Work(bench.Numbers(blocks), bench.unused, None)
    runner = cluster.DaskRunner(client, fold=bench.nothing)
    before, began = bench.messages(client), time.perf_counter()
    runner.run(work, bench.same, lambda done, of: None)
    return time.perf_counter() - began, bench.messages(client) - before


def row(name: str, blocks: int, tasks: int, took: float, sent: int, seconds: float) -> str:
    """Return a line of the table; workers go through the tasks in rounds, and the scheduler's part comes on top."""
    shares = []
    for workers in (2, 16, 256):
        sweep = math.ceil(tasks / workers) * blocks / tasks * seconds
        shares.append(f"{took / (took + sweep):.2%}" if tasks >= workers else "-")
    each = f"{took:.2f} | {took / tasks * 1e3:.2f} | {sent / tasks:.1f}"
    return f"| {name} | {tasks} | {each} | {' | '.join(shares)} |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds-a-block", type=float, default=0.02, help="what a block of 12 MiB takes one worker")
    parser.add_argument("--tasks", type=lambda text: int(float(text)), default=100_000)
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = parser.parse_args()
    lines = []
    with cluster.embedded(given.workers, 0, processes=False) as client:
        one_pass(client, 1000)
        for blocks in BLOCKS:
            took, sent = min(one_pass(client, blocks) for _ in range(3))
            lines.append(row(f"{blocks:,}", blocks, len(task.groups(blocks)), took, sent, given.seconds_a_block))
            print(lines[-1], file=sys.stderr, flush=True)
        whole, groups = given.tasks, task.groups
        task.groups = lambda blocks, most_tasks=0: [range(i, i + 1) for i in range(blocks)]
        try:
            took, sent = one_pass(client, whole)
        finally:
            task.groups = groups
    lines.append(row(f"{whole:,}, not grouped", whole, whole, took, sent, given.seconds_a_block))
    text = "\n".join(
        [
            "## Scheduler: a pass of tasks that do nothing",
            "",
            f"`python tests/bench/scheduler.py --tasks {whole}`, Python {platform.python_version()}, distributed "
            f"{version('distributed')}, {given.workers} stub workers in the scheduler's process.  The share is of a",
            f"sweep whose blocks take {given.seconds_a_block * 1e3:.0f} ms of a worker each, on 2, 16 and 256 workers.",
            "",
            "| blocks | tasks | seconds | ms a task | messages a task | share, 2 workers | 16 | 256 |",
            "|---|---|---|---|---|---|---|---|",
            *lines,
        ]
    )
    print(text)
    if given.write:
        write_section("scheduler", text)


if __name__ == "__main__":
    main()
