"""Dense oracle of ACMVC, a stream of complete batches; the newest round reuses the anchors of the last one.

Round t: min over A, Z, F, V, w of sum_v (1/w_v) ||X_v - Z A_v||^2 + alpha ||Z - F V'||^2
+ beta (sum_v ||A_v - A_v,prev||^2 + ||V - V_prev||^2), A_v (m, d_v) with A_v A_v' = I, F'F = I (n_t, k),
V'V = I (m, k), Z >= 0 (n_t, m), sum w = 1. Round 1 has no beta term.
"""

from typing import NamedTuple

import numpy as np
from oracles.common import polar, procrustes, top_eigenvectors, unit_rows, view_means


class Record(NamedTuple):
    """One iteration of a round, after its w step."""

    objective: float
    A: list
    Z: np.ndarray
    F: np.ndarray
    V: np.ndarray
    w: np.ndarray


def residuals(X, Z, A):
    """d (V,), d_v = ||X_v - Z A_v||, not squared."""
    return np.array([np.linalg.norm(x - Z @ a) for x, a in zip(X, A, strict=True)])


def objective(X, A, Z, F, V, w, alpha, A_prev=None, V_prev=None, beta_a=0.0, beta_v=0.0):
    """sum d_v^2 / w_v + alpha ||Z - FV'||^2 + beta_a sum ||A_v - A_v,prev||^2 + beta_v ||V - V_prev||^2."""
    value = np.sum(residuals(X, Z, A) ** 2 / w) + alpha * np.sum((Z - F @ V.T) ** 2)
    if A_prev is not None:
        value += beta_a * sum(np.sum((a - b) ** 2) for a, b in zip(A, A_prev, strict=True))
        value += beta_v * np.sum((V - V_prev) ** 2)
    return float(value)


def a_step(X, Z, w, A_prev, beta_a):
    """A_v = procrustes(Z'X_v / w_v + beta_a A_v,prev); A_prev None means no term."""
    M = [Z.T @ x / w[v] for v, x in enumerate(X)]
    return [procrustes(M[v] if A_prev is None else M[v] + beta_a * A_prev[v]) for v in range(len(X))]


def z_step(X, A, F, V, w, alpha):
    """Z = max(P, 0), P = (alpha F V' + sum_v X_v A_v'/w_v) / (alpha + sum_v 1/w_v)."""
    P = alpha * F @ V.T + sum(x @ A[v].T / w[v] for v, x in enumerate(X))
    return np.maximum(P / (alpha + np.sum(1.0 / w)), 0.0)


def f_step(Z, V):
    """F = polar(Z V), (n_t, k); eye(n_t, k) where Z V = 0."""
    P = Z @ V
    return polar(P) if P.any() else procrustes(P)


def v_step(Z, F, alpha, V_prev, beta_v):
    """V = procrustes(alpha Z'F + beta_v V_prev), (m, k); V_prev None means no term."""
    M = alpha * Z.T @ F
    return procrustes(M if V_prev is None else M + beta_v * V_prev)


def w_step(d):
    """w_v = d_v / sum d."""
    return d / d.sum()


def paper_anchors(X, m):
    """A_v = eye(m, d_v): the first m raw features."""
    return [np.eye(m, x.shape[1]) for x in X]


def seeded_anchors(X, labels, m):
    """A_v = procrustes of the means of X_v over the labels 0..m-1, the same labels in all views."""
    return [procrustes(a) for a in view_means(X, labels, m)]


def run_round(X, A, V, k, alpha, iterations, first, beta_a=0.0, beta_v=0.0, frozen=False):
    """Records of one round in the order A, Z, F, V, w; iteration 1 keeps the given A.

    `first`: no beta term. V None (first round only): V = top-k eigenvectors of Z'Z after the first Z step.
    A given V of zeros is the paper's start. `frozen` keeps A and V (Eq. 3).
    """
    A_prev, V_prev = (None, None) if first else (A, V)
    w = np.full(len(X), 1.0 / len(X))
    F = np.zeros((len(X[0]), k))
    records = []
    for iteration in range(iterations):
        if iteration > 0 and not frozen:
            A = a_step(X, records[-1].Z, w, A_prev, beta_a)
        Z = z_step(X, A, F, np.zeros((len(A[0]), k)) if V is None else V, w, alpha)
        if V is None:
            V = top_eigenvectors(Z.T @ Z, k)
        F = f_step(Z, V)
        if not frozen:
            V = v_step(Z, F, alpha, V_prev, beta_v)
        w = w_step(residuals(X, Z, A))
        value = objective(X, A, Z, F, V, w, alpha, A_prev, V_prev, beta_a, beta_v)
        records.append(Record(value, A, Z, F, V, w))
    return records


def run(batches, m, k, alpha, beta, iterations, start="paper", anchor_term=True, v_term=True, frozen=False):
    """Records of every round, [round][iteration]; `batches` lists the views of each round, [round][view].

    `start` is "paper" (A = eye, V = 0) or the anchors A_0 of round 1, [view] (m, d_v), V from the first Z.
    Later rounds start at Z = F = 0, V = V_prev, A = A_prev, w = 1/V.
    Ablations of Table 3: anchor_term=False, v_term=False, or frozen=True (later rounds keep A and V, Eq. 3).
    """
    if isinstance(start, str) and start == "paper":
        A, V = paper_anchors(batches[0], m), np.zeros((m, k))
    else:
        A, V = [np.array(a, dtype=np.float64) for a in start], None
    beta_a, beta_v = (beta if anchor_term else 0.0), (beta if v_term else 0.0)
    rounds = []
    for t, X in enumerate(batches):
        rounds.append(run_round(X, A, V, k, alpha, iterations, t == 0, beta_a, beta_v, frozen and t > 0))
        A, V = rounds[-1][-1].A, rounds[-1][-1].V
    return rounds


def embedding(rounds):
    """The final F of all rounds stacked, rows to unit length, zero rows kept."""
    return unit_rows(np.vstack([records[-1].F for records in rounds]))
