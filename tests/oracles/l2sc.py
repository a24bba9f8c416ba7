"""Dense oracle of L2SC, tasks arrive one by one; spectral clustering with a knowledge library.

max (1/T) sum_t [tr((E_t B)'K_t E_t B) + lam tr(L'Xh_t'E_t B)] + mu ||L||_{2,1},
B'B = I (k, k), L'L = I (d, k), E_t'E_t = I (n_t, k);
K_t = D^(-1/2) W D^(-1/2), Xh_t = D2^(-1/2) X_t D1^(-1/2).
"""

from typing import NamedTuple

import numpy as np
from oracles.common import polar, procrustes, top_eigenvectors, unit_rows

GUARD = 1e-8


class Library(NamedTuple):
    """What outlives a task: B (k, k), L (d, k), and per task its records E'KE (k, k) and lam Xh'E (d, k)."""

    B: np.ndarray
    L: np.ndarray
    records: dict


class Sweep(NamedTuple):
    """One sweep over E, B, L, after its L step."""

    objective: float
    E: np.ndarray
    B: np.ndarray
    L: np.ndarray


# --- one task's matrices --------------------------------------------------------------------------


def squared_distances(X):
    """D (n, n), D_ij = ||x_i - x_j||^2 on unit rows, |x_i|^2 + |x_j|^2 - 2 x_i'x_j with |x|^2 1 or 0."""
    U = unit_rows(X)
    s = U.any(axis=1).astype(float)
    return np.maximum(s[:, None] + s - 2.0 * (U @ U.T), 0.0)


def neighbours(D, K):
    """(n, K) the K nearest other samples of each sample, nearest first, ties by the lower index."""
    D = D.copy()
    np.fill_diagonal(D, np.inf)
    return np.argsort(D, axis=1, kind="stable")[:, :K]


def affinity(X, K=10):
    """W (n, n), W_ij = exp(-||x_i - x_j||^2 / (2 sigma^2)) if either is among the K nearest of the other.

    On unit rows, self excluded; sigma^2 = median squared distance over the n K directed neighbour pairs.
    """
    D = squared_distances(X)
    near = neighbours(D, min(K, len(D) - 1))
    directed = np.take_along_axis(D, near, axis=1)
    variance = np.median(directed)
    linked = np.zeros(D.shape, dtype=bool)
    np.put_along_axis(linked, near, True, axis=1)
    return np.where(linked | linked.T, np.exp(-D / (2.0 * (variance if variance > 0 else 1.0))), 0.0)


def inverse_root(x):
    """x^(-1/2) where x > 0, 0 elsewhere."""
    return np.where(x > 0, 1.0 / np.sqrt(np.where(x > 0, x, 1.0)), 0.0)


def normalised(W):
    """K = D^(-1/2) W D^(-1/2), D the row sums of W."""
    h = inverse_root(W.sum(axis=1))
    return h[:, None] * W * h


def co_cluster(X):
    """Xh = D2^(-1/2) X D1^(-1/2), D1 the feature sums and D2 the sample sums; refuses negative values."""
    if np.min(X) < 0:
        raise ValueError("L2SC needs X >= 0")
    return inverse_root(X.sum(axis=1))[:, None] * X * inverse_root(X.sum(axis=0))


# --- steps ----------------------------------------------------------------------------------------


def start(K, k):
    """E_0 (n, k): eigenvectors of the k largest eigenvalues of K, each with its largest entry positive."""
    E = top_eigenvectors(K, k)
    return E * np.sign(E[np.argmax(np.abs(E), axis=0), np.arange(k)])


def e_steps(E, K, Xh, B, L, lam, eta, steps):
    """E = polar(E + eta (2 K E + lam Xh L B')), `steps` times."""
    for _ in range(steps):
        E = polar(E + eta * (2.0 * K @ E + lam * Xh @ L @ B.T))
    return E


def b_step(M, C, B, L, T, option):
    """B = procrustes(C'L), or for "eigen" the eigenvectors of the symmetric part of (M + B L'C)/T.

    The latter by descending eigenvalue, each with its largest entry positive. B = I while L = 0.
    """
    if not L.any():
        return np.eye(len(B))
    return procrustes(C.T @ L) if option == "procrustes" else start((M + B @ L.T @ C) / T, len(B))


def l_step(C, B, L, T, mu):
    """L = procrustes(C B / T + mu R L), R = diag(2 max(||l_i||, 1e-8))."""
    R = 2.0 * np.maximum(np.linalg.norm(L, axis=1), GUARD)
    return procrustes(C @ B / T + mu * R[:, None] * L)


def objective(M, C, B, L, T, mu):
    """(tr(B'M B) + tr(L'C B)) / T + mu ||L||_{2,1}, lam inside C."""
    return float((np.trace(B.T @ M @ B) + np.trace(L.T @ C @ B)) / T + mu * np.linalg.norm(L, axis=1).sum())


# --- the stream -----------------------------------------------------------------------------------


def empty(d, k):
    """The library before the first task: B = I, L = 0, no records."""
    return Library(np.eye(k), np.zeros((d, k)), {})


def learn(library, task, K, Xh, lam, mu, eta=1.0, b="procrustes", sweeps=10, steps=10, tolerance=1e-5, E0=None):
    """(library, sweeps): a task's E with the library refined by it.

    A sweep is `steps` E steps, then B, then L; at most `sweeps`, ended by a relative change of the objective
    of at most `tolerance`. M = M_prev + E'KE and C = C_prev + lam Xh'E: a revisited task's old records are
    left out of M_prev and C_prev, the new ones are committed once, from the final E. T counts tasks seen.
    E_0 is `start(K, k)` unless given.
    """
    B, L = library.B, library.L
    old = {t: r for t, r in library.records.items() if t != task}
    M_prev = sum((m for m, _ in old.values()), np.zeros_like(B))
    C_prev = sum((c for _, c in old.values()), np.zeros_like(L))
    T = len(old) + 1
    E = start(K, len(B)) if E0 is None else E0
    done = []
    while len(done) < sweeps:
        E = e_steps(E, K, Xh, B, L, lam, eta, steps)
        own = (E.T @ K @ E, lam * Xh.T @ E)
        M, C = M_prev + own[0], C_prev + own[1]
        B = b_step(M, C, B, L, T, b)
        L = l_step(C, B, L, T, mu)
        done.append(Sweep(objective(M, C, B, L, T, mu), E, B, L))
        o = [sweep.objective for sweep in done]
        if len(o) > 1 and abs(o[-1] - o[-2]) <= tolerance * abs(o[-2]):
            break
    return Library(B, L, old | {task: own}), done


def encode(library, K, Xh, lam, eta=1.0, steps=100, E0=None):
    """E of a task for a fixed library, `steps` E steps: re-encodes old tasks with the newest B and L."""
    E = start(K, len(library.B)) if E0 is None else E0
    return e_steps(E, K, Xh, library.B, library.L, lam, eta, steps)


def embedding(E, B):
    """Unit rows of E B: what k-means labels."""
    return unit_rows(E @ B)


def run(tasks, k, lam, mu, eta=1.0, b="procrustes", sweeps=10, steps=10, tolerance=1e-5):
    """(library, [sweeps of each visit], {task: re-encoded E}) of a stream of (task, K, Xh), with revisits."""
    library = empty(tasks[0][2].shape[1], k)
    visits = []
    for task, K, Xh in tasks:
        library, done = learn(library, task, K, Xh, lam, mu, eta, b, sweeps, steps, tolerance)
        visits.append(done)
    again = {task: encode(library, K, Xh, lam, eta) for task, K, Xh in tasks}
    return library, visits, again
