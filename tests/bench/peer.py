"""One of the programs that `peers.py` compares with, alone in a process: zarr, NumPy and it, nothing of aweigh.

python tests/bench/peer.py NAME ARCHIVE -k K --out LABELS.npy [--rows N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import zarr


def arrays(archive: str) -> list[zarr.Array]:
    """Return the views of the archive's batch."""
    with open(f"{archive}/manifest.json", encoding="utf-8") as file:
        batch = json.load(file)["batches"][0]
    group = zarr.open_group(archive, path=f"batches/{batch['name']}", mode="r")
    names = sorted(name for name in group.array_keys() if name.startswith("v"))
    return [group[name] for name in names]


def side_by_side(archive: str) -> np.ndarray:
    """Return the views side by side in memory, read into their place."""
    views = arrays(archive)
    X = np.empty((views[0].shape[0], sum(v.shape[1] for v in views)), views[0].dtype)
    first = 0
    for view in views:
        step = view.chunks[0]
        for row in range(0, len(X), step):
            X[row : row + step, first : first + view.shape[1]] = view[row : row + step]
        first += view.shape[1]
    return X


def sklearn_kmeans(archive: str, k: int, rows: int) -> tuple[np.ndarray, int, float]:
    """scikit-learn's KMeans with its defaults."""
    from sklearn.cluster import KMeans

    X = side_by_side(archive)
    began = time.perf_counter()
    found = KMeans(k, random_state=0).fit(X)
    return found.labels_, found.n_iter_, time.perf_counter() - began


def sklearn_minibatch(archive: str, k: int, rows: int) -> tuple[np.ndarray, int, float]:
    """scikit-learn's MiniBatchKMeans with its defaults."""
    from sklearn.cluster import MiniBatchKMeans

    X = side_by_side(archive)
    began = time.perf_counter()
    found = MiniBatchKMeans(k, random_state=0).fit(X)
    return found.labels_, found.n_iter_, time.perf_counter() - began


def dask_ml(archive: str, k: int, rows: int) -> tuple[np.ndarray, int, float]:
    """dask-ml's KMeans with its defaults on the Zarr arrays, in the threads of this process."""
    import dask.array as da
    from dask_ml.cluster import KMeans

    began = time.perf_counter()
    X = da.concatenate([da.from_array(v, chunks=v.chunks) for v in arrays(archive)], axis=1).rechunk({1: -1})
    found = KMeans(k, random_state=0).fit(X)
    return np.asarray(found.labels_), int(found.n_iter_), time.perf_counter() - began


def dask_ml_processes(archive: str, k: int, rows: int) -> tuple[np.ndarray, int, float]:
    """The same on two worker processes."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        return dask_ml(archive, k, rows)


def polyview(archive: str, k: int, rows: int) -> tuple[np.ndarray, int, float]:
    """polyview's MultiViewKMeans, one start, on the first rows: it makes arrays of rows x k x features."""
    from polyview.cluster.mv_kmeans import MultiViewKMeans

    views = [view[:rows] for view in arrays(archive)]
    began = time.perf_counter()
    found = MultiViewKMeans(k, n_init=1, max_iter=3, random_state=0).fit(views)
    return found.labels_, found.n_iter_, time.perf_counter() - began


PEERS: dict[str, Callable[[str, int, int], tuple[np.ndarray, int, float]]] = {
    "scikit-learn KMeans": sklearn_kmeans,
    "scikit-learn MiniBatchKMeans": sklearn_minibatch,
    "dask-ml KMeans, threads": dask_ml,
    "dask-ml KMeans, 2 processes": dask_ml_processes,
    "polyview MultiViewKMeans": polyview,
}


def main() -> None:
    """Run the command: labels to a file, iterations and seconds of the fit alone as JSON on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("archive")
    parser.add_argument("-k", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    given = parser.parse_args()
    found, iterations, seconds = PEERS[given.name](given.archive, given.k, given.rows)
    np.save(given.out, found)
    print(json.dumps({"iterations": int(iterations), "seconds": seconds}))


if __name__ == "__main__":
    main()
