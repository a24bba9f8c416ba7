"""Dense oracle of EMVGC-LG, complete views.

min over A, Z of sum_v ||X_v - Z A_v||^2 + lam sum_v sum_j s_j ||a_vj||^2 + mu ||Z||^2,
rows of Z on the simplex, s = Z'1.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import helmert


class Record(NamedTuple):
    """One iteration: the objective after its Z step, the Z, and the A that this Z was solved for."""

    objective: float
    Z: np.ndarray
    A: list


def objective(X, Z, A, lam, mu):
    """sum_v ||X_v - Z A_v||^2 + lam sum_v sum_j s_j ||a_vj||^2 + mu ||Z||^2 with s = Z'1."""
    s = Z.sum(axis=0)
    fit = sum(np.sum((x - Z @ a) ** 2) for x, a in zip(X, A, strict=True))
    local = sum(np.sum(s * np.sum(a**2, axis=1)) for a in A)
    return float(fit + lam * local + mu * np.sum(Z**2))


def quadratic(A, mu):
    """Q (m, m) = sum_v A_v A_v' + mu I, shared by all samples."""
    return sum(a @ a.T for a in A) + mu * np.eye(len(A[0]))


def linear(X, A, lam):
    """F (n, m), row i is f = -sum_v A_v x_v + (lam / 2) q with q_j = sum_v ||a_vj||^2."""
    q = sum(np.sum(a**2, axis=1) for a in A)
    return -sum(x @ a.T for x, a in zip(X, A, strict=True)) + lam / 2 * q


def kkt_residual(Q, f, z):
    """Largest violation of the KKT conditions of min 1/2 z'Qz + f'z on the simplex, over max(|Q|, |f|).

    With g = Qz + f and nu = z'g: z >= 0, sum z = 1, g >= nu, z_j (g_j - nu) = 0.
    """
    scale = max(np.abs(Q).max(), np.abs(f).max(), np.finfo(float).tiny)
    g = Q @ z + f
    slack = (g - z @ g) / scale
    return max(-z.min(), abs(z.sum() - 1.0), -slack.min(), np.abs(z * slack).max(), 0.0)


def direction(Q, g, S):
    """(p, bounded): the step on the support S, sum p = 0, to the minimum of the quadratic with gradient g.

    Where the reduced Hessian is singular and the gradient has a slope along its null space, p follows that
    slope, the quadratic falls without bound along it, and `bounded` is False.
    """
    scale = max(np.abs(Q).max(), np.abs(g).max())
    H = helmert(len(S))  # orthonormal rows, all orthogonal to 1
    r = H @ g[S]
    L, U = np.linalg.eigh(H @ Q[np.ix_(S, S)] @ H.T)
    c = U.T @ r
    curved = 1e-14 * len(S) * np.abs(Q).max() < L
    if np.any(np.abs(c[~curved]) > 1e-13 * scale):
        return -H.T @ (U[:, ~curved] @ c[~curved]), False
    return -H.T @ (U[:, curved] @ (c[curved] / L[curved])), True


def minimise_on(Q, f, z, S):
    """(z, S): the minimum of the quadratic over the support S, which shrinks where entries reach zero.

    Each step starts from the current z with a fresh gradient; one full step ends it.
    """
    step = 0.0
    while len(S) > 1 and step != 1.0:
        p, bounded = direction(Q, Q @ z + f, S)
        reach = np.array([-z[j] / p_j if p_j < 0 else np.inf for j, p_j in zip(S, p, strict=True)])
        step = min(1.0, reach.min()) if bounded else reach.min()
        if step == np.inf:
            raise ArithmeticError("no minimum on the simplex: Q is not positive semi-definite")
        z = z.copy()
        z[S] += step * p
        if step == reach.min():
            z[S[int(np.argmin(reach))]] = 0.0
        z[z <= 0] = 0.0
        z /= z.sum()
        S = [j for j in S if z[j] > 0]
    return z, S


def simplex_qp(Q, f):
    """The minimiser z (m,) of 1/2 z'Qz + f'z on {z >= 0, sum z = 1} by a dense primal active-set method.

    Start at the best vertex; minimise over the support; admit the entry with the most negative reduced
    gradient; repeat. None left means that KKT holds. The objective falls at every round, so a support never
    comes back; if it does, only rounding is left and the method ends. A last step refines the solution.
    """
    tolerance = 1e-14 * max(np.abs(Q).max(), np.abs(f).max())
    S = [int(np.argmin(np.diag(Q) / 2 + f))]
    z = np.zeros(len(f))
    z[S] = 1.0
    seen = set()
    while frozenset(S) not in seen:
        seen.add(frozenset(S))
        g = Q @ z + f
        slack = g - z @ g
        slack[S] = 0.0
        j = int(np.argmin(slack))
        if slack[j] >= -tolerance:
            break
        z, S = minimise_on(Q, f, z, [*S, j])
    return minimise_on(Q, f, z, S)[0]


def z_step(X, A, lam, mu, qp_solver=simplex_qp):
    """Z (n, m), row by row argmin 1/2 z'Qz + f'z on the simplex."""
    Q = quadratic(A, mu)
    return np.array([qp_solver(Q, f) for f in linear(X, A, lam)])


def a_step(X, Z, A_old, lam):
    """A_v = (Z'Z + lam diag(s))^+ Z'X_v over the live anchors; a dead one (s_j = 0) keeps its old value.

    For lam > 0 the live system is solved as D (D Z'Z D + lam I)^-1 D with D = diag(s)^(-1/2): the same
    inverse, with a condition number of at most (1 + lam)/lam.
    """
    s = Z.sum(axis=0)
    live = s > 0
    Zl = Z[:, live]
    if lam > 0:
        D = 1.0 / np.sqrt(s[live])
        scaled = D[:, None] * (Zl.T @ Zl) * D + lam * np.eye(live.sum())
        solve = D[:, None] * np.linalg.inv(scaled) * D
    else:
        solve = np.linalg.pinv(Zl.T @ Zl, hermitian=True)
    A = [a.copy() for a in A_old]
    for a, x in zip(A, X, strict=True):
        a[live] = solve @ (Zl.T @ x)
    return A


def run(X, A0, lam, mu, iterations, qp_solver=simplex_qp):
    """Records of `iterations` iterations: A0 -> Z, then A -> Z each time; the objective after each Z step."""
    A = [np.array(a, dtype=np.float64) for a in A0]
    records = []
    for iteration in range(iterations):
        if iteration > 0:
            A = a_step(X, records[-1].Z, A, lam)
        Z = z_step(X, A, lam, mu, qp_solver)
        records.append(Record(objective(X, Z, A, lam, mu), Z, A))
    return records
