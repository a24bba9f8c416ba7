"""Small dense solves: k x k, m x m and k x d.  `numpy.linalg` throughout: SciPy's svd holds the GIL."""

from __future__ import annotations

import numpy as np

from aweigh.algorithms.contract import Array

VECTORS = ("soft", "k", "all")  # which left singular vectors of an anchor graph are an embedding


def procrustes(M: Array) -> Array:
    """Return U V' of the thin SVD M = U S V': the maximiser of tr(G'M) over orthonormal rows or columns.

    Of an all-zero (p, q) matrix it is eye(p, q), which the published programs rely on.
    """
    if not M.any():
        return np.eye(*M.shape)
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    return U @ Vt


def inverse_root(G: Array) -> Array:
    """Return G^(-1/2) of a symmetric positive semi-definite (k, k) Gram matrix, lost directions dropped."""
    lam, Q = np.linalg.eigh((G + G.T) / 2)
    return (Q * _reciprocal_roots(lam)) @ Q.T


def left_singular_map(G: Array, count: int) -> Array:
    """Return W (m, count) such that Z W are the first `count` left singular vectors of Z, given G = Z'Z (m, m).

    Z'Z = Q L Q', U = Z Q L^(-1/2).  Lost directions come back as zero columns.
    """
    lam, Q = _descending(G)
    return (Q * _reciprocal_roots(lam))[:, :count]


def soft_singular_map(G: Array, k: int) -> Array:
    """Return W (m, m) such that column j of Z W is σ_j³ / (σ_j³ + σ_k³) times left singular vector j of Z, G = Z'Z.

    The first k vectors alone lose what lies just beyond the k-th, all m of them weigh noise like signal; this cuts off
    softly at the k-th singular value σ_k.  Lost directions come back as zero columns.
    """
    lam, Q = _descending(G)
    cubes = (np.maximum(lam, 0.0) / max(lam[0], 1e-300)) ** 1.5  # σ³, relative to the largest
    return Q * (_reciprocal_roots(lam) * cubes / np.maximum(cubes + cubes[k - 1], 1e-300))


def embedding_map(G: Array, k: int, vectors: str) -> Array:
    """Return the map from Z to the left singular vectors that `vectors` (one of `VECTORS`) names, given G = Z'Z."""
    if vectors == "soft":
        return soft_singular_map(G, k)
    return left_singular_map(G, k if vectors == "k" else len(G))


def top_eigenvectors(G: Array, count: int) -> Array:
    """Return the eigenvectors (m, count) of the largest eigenvalues of a symmetric G (m, m)."""
    return _descending(G)[1][:, :count]


def _descending(G: Array) -> tuple[Array, Array]:
    """Eigenvalues from the largest, and vectors whose entry of largest magnitude is positive: one sign a Gram."""
    lam, Q = np.linalg.eigh((G + G.T) / 2)
    lam, Q = lam[::-1], Q[:, ::-1]
    largest = Q[np.abs(Q).argmax(axis=0), np.arange(Q.shape[1])]
    return lam, Q * np.where(largest < 0, -1.0, 1.0)


def _reciprocal_roots(lam: Array) -> Array:
    """1/sqrt of the eigenvalues of a Gram matrix; 0 where squaring has lost them (singular value < 1e-7 of the top)."""
    keep = lam > 1e-14 * max(lam.max(initial=0.0), 0.0)
    return np.where(keep, 1.0 / np.sqrt(np.where(keep, lam, 1.0)), 0.0)


def unit_rows(X: Array) -> Array:
    """Return X with every row divided by its Euclidean norm; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    return X * np.where(norms > 0, 1.0 / np.where(norms > 0, norms, 1.0), 0.0).astype(X.dtype)[:, None]


def squared_sum(X: Array) -> float:
    """Return ‖X‖² with a float64 sum over the rows, whatever the dtype of X."""
    return float(np.einsum("ij,ij->i", X, X).sum(dtype=np.float64))
