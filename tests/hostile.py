"""Test helper: an archive whose path, ids and labels are not to be trusted."""

import numpy as np
from arrays import Rows, blobs

from aweigh.io.batches import import_batch
from aweigh.pipeline.driver import SerialRunner
from aweigh.pipeline.run import fit

NAMES = (
    "<script>document.title='broken'</script>", "</script><img src=x onerror=alert(1)>", "\"><b onclick='x'>\"",
    "two\nlines\r\nand\ttab", "שלום עולם", "\u202egnp.exe", "a & b &lt; c", "{{ 7 * 7 }}", "bell\x07", "x" * 3000,
)  # fmt: skip


def fitted_archive(folder):
    """The path of the archive, clustered twice: runs `one` and `two`."""
    X, classes = blobs(240, (5, 4), 3, spread=3.0)
    ids = np.array([f"{NAMES[i % len(NAMES)]}{i}" for i in range(240)], np.dtypes.StringDType())
    labels = np.array(NAMES, np.dtypes.StringDType())[classes]
    path = str(folder / "<b>it's\"&.zarr")
    import_batch(path, {f"v{i}": Rows(x) for i, x in enumerate(X)}, ids=ids, labels=labels, block_rows=100)
    for run, seed in (("one", 1), ("two", 2)):
        fit(path, 3, "imvc-cbg", run=run, seed=seed, runner=SerialRunner())
    return path
