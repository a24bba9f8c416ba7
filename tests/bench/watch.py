"""A command as its own process tree: its seconds, and the memory of all its processes together while it ran."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

PERIOD = 0.1


@dataclass
class Watched:
    """What a command did: exit code, stdout, stderr lines with the seconds they came at, memory in bytes.

    `peaks` are the most bytes resident of each process; `rss` and `pss` the most that all held at one moment (sampled;
    pss counts a shared page once).
    """

    code: int = 0
    out: str = ""
    lines: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    peaks: dict[int, int] = field(default_factory=dict)
    rss: int = 0
    pss: int = 0


def watch(command: list[str], **options: Any) -> Watched:
    """Return what a command did, once it has ended."""
    found, began = Watched(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    ended = threading.Event()
    sampler = threading.Thread(target=_sample, args=(psutil.Process(process.pid), ended, found))
    reader = threading.Thread(target=_read, args=(process.stderr, began, found))
    for thread in (sampler, reader):
        thread.start()
    found.out = process.stdout.read()  # type: ignore[union-attr]
    found.code = process.wait()
    found.seconds = time.perf_counter() - began
    ended.set()
    for thread in (sampler, reader):
        thread.join()
    return found


def _read(stream: Any, began: float, found: Watched) -> None:
    for line in stream:
        found.lines.append((time.perf_counter() - began, line.rstrip()))


def _sample(root: psutil.Process, ended: threading.Event, found: Watched) -> None:
    while not ended.wait(PERIOD):
        rss = pss = 0
        with contextlib.suppress(psutil.Error):
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, OSError, ValueError):
                    held = _memory(process.pid)
                    rss, pss = rss + held["VmRSS"], pss + held["Pss"]
                    found.peaks[process.pid] = max(found.peaks.get(process.pid, 0), held["VmHWM"])
        found.rss, found.pss = max(found.rss, rss), max(found.pss, pss)


def _memory(pid: int) -> dict[str, int]:
    """Return resident, peak and proportional bytes of a process; KeyError's cousin ValueError where it is a zombie."""
    held = {}
    for name in ("status", "smaps_rollup"):
        with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as file:
            held |= {
                line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.startswith(("Vm", "Pss:"))
            }
    if "VmRSS" not in held:
        raise ValueError(f"process {pid} has ended")
    return held
