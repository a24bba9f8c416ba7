"""Dense oracle of IMVC-CBG, any views of any sample may be missing.

min over W, C, Z, alpha of sum_v alpha_v^2 ||X_v - (a_v o Z) C'W_v'||^2 + lam ||Z||^2,
W_v'W_v = I (d_v, k), C (k, m) orthonormal, rows of Z on the simplex, sum alpha = 1, a_v (n,) in {0, 1}.
"""

from typing import NamedTuple

import numpy as np
from oracles.common import procrustes, simplex_rows


class Record(NamedTuple):
    """One iteration, after its alpha step."""

    objective: float
    W: list
    C: np.ndarray
    Z: np.ndarray
    alpha: np.ndarray


def masked(X, present):
    """X_v with the rows of absent samples set to zero, and NaN to zero."""
    return [np.where(a[:, None] > 0, np.nan_to_num(x), 0.0) for x, a in zip(X, present.T, strict=True)]


def residuals(X, a, W, C, Z):
    """r (V,), r_v = ||X_v - (a_v o Z) C'W_v'||, not squared."""
    return np.array([np.linalg.norm(x - (a[:, [v]] * Z) @ C.T @ W[v].T) for v, x in enumerate(X)])


def objective(X, a, W, C, Z, alpha, lam):
    """sum_v alpha_v^2 ||X_v - (a_v o Z) C'W_v'||^2 + lam ||Z||^2."""
    return float(np.sum(alpha**2 * residuals(X, a, W, C, Z) ** 2) + lam * np.sum(Z**2))


def w_step(X, a, C, Z):
    """W_v = procrustes(X_v'(a_v o Z) C'), (d_v, k); eye while C is zero."""
    return [procrustes(x.T @ (a[:, [v]] * Z) @ C.T) for v, x in enumerate(X)]


def c_step(X, W, Z, alpha):
    """C = procrustes(sum_v alpha_v^2 W_v'X_v'Z), (k, m); X_v is zero where absent."""
    return procrustes(sum(alpha[v] ** 2 * W[v].T @ x.T @ Z for v, x in enumerate(X)))


def z_step(X, a, W, C, alpha, lam):
    """Z row = simplex(sum_v alpha_v^2 a_v x_v W_v C / (lam + sum_v alpha_v^2 a_v)); exact only for m = k."""
    pull = sum(alpha[v] ** 2 * a[:, [v]] * (x @ W[v] @ C) for v, x in enumerate(X))
    return simplex_rows(pull / (lam + a @ alpha**2)[:, None])


def alpha_step(r, weights):
    """alpha_v over sum alpha, alpha_v = 1/r_v (weights "1/r") or 1/r_v^2 (weights "1/r2")."""
    power = {"1/r": 1, "1/r2": 2}[weights]
    return r**-power / np.sum(r**-power)


def paper_start(n, m):
    """Z_0 = [I_m; 0] (n, m): the first m samples are the anchors."""
    return np.eye(n, m)


def run(X, present, lam, m, k, iterations, start="paper", weights="1/r"):
    """Records of `iterations` iterations in the order W, C, Z, alpha.

    `start` is "paper" (Z_0 = [I_m; 0]) or a Z_0 (n, m); C_0 = 0, so that the first W_v is eye, alpha = 1/V.
    """
    a = np.asarray(present, dtype=np.float64)
    X = masked(X, a)
    printed = isinstance(start, str) and start == "paper"
    Z = paper_start(len(a), m) if printed else np.array(start, dtype=np.float64)
    C = np.zeros((k, m))
    alpha = np.full(len(X), 1.0 / len(X))
    records = []
    for _ in range(iterations):
        W = w_step(X, a, C, Z)
        C = c_step(X, W, Z, alpha)
        Z = z_step(X, a, W, C, alpha, lam)
        alpha = alpha_step(residuals(X, a, W, C, Z), weights)
        records.append(Record(objective(X, a, W, C, Z, alpha, lam), W, C, Z, alpha))
    return records


def stopped(records, tolerance=1e-3):
    """The records up to the first iteration but the first with |o_prev - o| / o_prev < tolerance."""
    o = [record.objective for record in records]
    for t in range(1, len(o)):
        if abs(o[t - 1] - o[t]) / o[t - 1] < tolerance:
            return records[: t + 1]
    return records


def restored_counts(X):
    """X_v with each sample divided by its smallest non-zero entry over all views, rounded to integers."""
    smallest = np.min([np.min(np.where(x > 0, x, np.inf), axis=1) for x in X], axis=0)
    return [np.round(x / smallest[:, None]) for x in X]
