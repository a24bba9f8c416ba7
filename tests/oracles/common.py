"""Dense building blocks of the oracles: literal, slow, float64. Rows are samples."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics import rand_score as _rand

EPS = np.finfo(np.float64).eps


# --- orthonormal matrices -------------------------------------------------------------------------


def procrustes(M):
    """argmax tr(G'M) over G with orthonormal rows or columns: U V' of the thin SVD; eye(p, q) of a zero M."""
    M = np.asarray(M, dtype=np.float64)
    if not M.any():
        return np.eye(*M.shape)
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    return U @ Vt


def polar(P, cut=np.sqrt(EPS)):
    """P (P'P)^(-1/2) of a tall P (n, k), from the k x k Gram P'P = Q L Q'.

    Directions whose singular value is at most cut * sqrt(k) times the largest are dropped, so the
    columns of the result span only what is left; a zero P gives zero.
    """
    L, Q = np.linalg.eigh(P.T @ P)
    keep = cut**2 * len(L) * max(L[-1], 0.0) < L
    return P @ (Q[:, keep] / np.sqrt(L[keep])) @ Q[:, keep].T


def left_singular(Z, r):
    """The first r left singular vectors of Z (n, m), (n, r), largest first, from a dense SVD."""
    return np.linalg.svd(Z, full_matrices=False)[0][:, :r]


def top_eigenvectors(S, k):
    """Orthonormal eigenvectors (p, k) of the k largest eigenvalues of a symmetric S, largest first."""
    return np.linalg.eigh((S + S.T) / 2)[1][:, ::-1][:, :k]


def orthonormal_error(M):
    """max |M'M - I| for tall M, max |MM' - I| for wide M."""
    G = M.T @ M if M.shape[0] >= M.shape[1] else M @ M.T
    return np.abs(G - np.eye(len(G))).max()


def random_orthonormal(rng, p, q):
    """A random (p, q) matrix with orthonormal rows or columns."""
    return procrustes(rng.standard_normal((p, q)))


# --- the simplex ----------------------------------------------------------------------------------


def simplex_row(p):
    """argmin ||z - p|| over {z >= 0, sum z = 1}: z = max(p - t, 0), t from the sorted entries of p."""
    u = np.sort(p)[::-1]
    excess = np.cumsum(u) - 1.0
    size = np.arange(1, len(p) + 1)
    r = np.nonzero(u - excess / size > 0)[0][-1]
    return np.maximum(p - excess[r] / (r + 1), 0.0)


def simplex_rows(P):
    """Euclidean projection of each row of P on the unit simplex."""
    return np.array([simplex_row(p) for p in np.asarray(P, dtype=np.float64)])


# --- scalings -------------------------------------------------------------------------------------


def zscore(X):
    """(X - mean) / std per feature with n - 1 in the variance; a constant feature becomes 0."""
    X = np.asarray(X, dtype=np.float64)
    constant = X.max(axis=0) == X.min(axis=0)
    std = X.std(axis=0, ddof=1)
    return np.where(constant, 0.0, (X - X.mean(axis=0)) / np.where(constant, 1.0, std))


def unit_rows(X):
    """Each row over its Euclidean norm; a zero row stays zero."""
    X = np.asarray(X, dtype=np.float64)
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(norm == 0, 1.0, norm)


def tfidf(X):
    """Sublinear tf-idf of integer counts, unit rows: (1 + log x) (log((1 + n)/(1 + df)) + 1) where x > 0."""
    X = np.asarray(X, dtype=np.float64)
    tf = np.where(X > 0, 1.0 + np.log(np.where(X > 0, X, 1.0)), 0.0)
    idf = np.log((1.0 + len(X)) / (1.0 + (X > 0).sum(axis=0))) + 1.0
    return unit_rows(tf * idf)


# --- starts and labels ----------------------------------------------------------------------------


def one_hot(labels, m):
    """The (n, m) indicator matrix of labels 0..m-1."""
    return np.eye(m)[np.asarray(labels)]


def view_means(X, labels, m):
    """A_v (m, d_v) of every view: the mean of the rows with label j; zero for an empty label."""
    H = one_hot(labels, m)
    size = np.maximum(H.sum(axis=0), 1.0)[:, None]
    return [H.T @ x / size for x in X]


def kmeans_labels(X, k, seed=0, n_init=10):
    """Labels of scikit-learn's k-means on the rows of X."""
    return KMeans(k, n_init=n_init, random_state=seed).fit_predict(np.ascontiguousarray(X))


# --- scores ---------------------------------------------------------------------------------------


def contingency(labels, found):
    """C (classes, clusters), the number of samples of each class in each cluster."""
    a = np.unique(labels, return_inverse=True)[1]
    b = np.unique(found, return_inverse=True)[1]
    C = np.zeros((a.max() + 1, b.max() + 1), dtype=int)
    np.add.at(C, (a, b), 1)
    return C


def accuracy(labels, found):
    """Share of samples matched by the best one-to-one map of clusters to classes (Hungarian)."""
    C = contingency(labels, found)
    return C[linear_sum_assignment(C, maximize=True)].sum() / C.sum()


def nmi(labels, found):
    """Normalised mutual information with the arithmetic mean of the entropies."""
    return normalized_mutual_info_score(labels, found, average_method="arithmetic")


def ari(labels, found):
    """Adjusted Rand index."""
    return adjusted_rand_score(labels, found)


def purity(labels, found):
    """Share of samples in the largest class of their cluster."""
    C = contingency(labels, found)
    return C.max(axis=0).sum() / C.sum()


def rand_index(labels, found):
    """Rand index, not adjusted: the share of pairs on which the two labellings agree."""
    return _rand(labels, found)
