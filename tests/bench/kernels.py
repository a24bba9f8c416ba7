"""Time of the simplex QP against quadprog and SciPy's SLSQP, side by side: python tests/bench/kernels.py [--write]

quadprog is needed for this bench only: pip install quadprog. Times are microseconds of processor time a sample, the
best of interleaved repeats; ratios are what to compare between machines. `--write` writes the section of RESULTS.md.
Run with OMP_NUM_THREADS=1.
"""

import argparse
import platform
import time

import numba
import numpy as np
from harness import write_section
from scipy.optimize import minimize
from sklearn.cluster import KMeans

from aweigh.algorithms.simplex import kkt_residual, project_simplex, simplex_qp, warm_up

try:
    import quadprog
except ImportError as error:
    raise SystemExit("this bench compares with quadprog, which is not installed: pip install quadprog") from error

REPEATS = 7
SAMPLES = {"ours": 2000, "quadprog": 100, "slsqp": 4}


def by_quadprog(Q, F):
    """Z, a call a sample."""
    m = len(Q)
    C = np.hstack([np.ones((m, 1)), np.eye(m)])
    b = np.append(1.0, np.zeros(m))
    return np.array([quadprog.solve_qp(Q, -f, C, b, 1)[0] for f in F])


def by_slsqp(Q, F):
    """Z, a call a sample, with both gradients given and the tightest tolerance."""
    m = len(Q)
    ones = np.ones(m)
    total = {"type": "eq", "fun": lambda z: z.sum() - 1.0, "jac": lambda z: ones}

    def solve(f):
        return minimize(
            lambda z: z @ Q @ z / 2 + f @ z,
            ones / m,
            jac=lambda z: Q @ z + f,
            bounds=[(0.0, 1.0)] * m,
            constraints=[total],
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1000},
        ).x

    return np.array([solve(f) for f in F])


def random_problem(m, condition):
    """Q with eigenvalues from 1 to 1 / condition and F random: supports of a fifth to a half of m."""
    rng = np.random.default_rng(m)
    U, _ = np.linalg.qr(rng.standard_normal((m, m)))
    Q = (U * np.geomspace(1.0, 1.0 / condition, m)) @ U.T
    return (Q + Q.T) / 2, 0.01 * rng.standard_normal((SAMPLES["ours"], m))


def clustered_problem(m, d, clusters, mu):
    """Q and F of samples around cluster centres with k-means anchors, and Z for the anchors a sweep before."""
    rng = np.random.default_rng(m + d)
    centres = rng.standard_normal((clusters, d))
    factors = 0.5 * rng.standard_normal((10, d))
    n = SAMPLES["ours"]
    X = centres[rng.integers(clusters, size=n)] + rng.standard_normal((n, 10)) @ factors
    X += rng.standard_normal((n, d))
    A = KMeans(m, n_init=1, random_state=0).fit(X).cluster_centers_
    B = A + 0.02 * A.std() * rng.standard_normal(A.shape)
    before = simplex_qp(B @ B.T + mu * np.eye(m), -X @ B.T)
    return A @ A.T + mu * np.eye(m), -X @ A.T, before


def measure(solvers):
    """{name: (microseconds a sample, Z)} of {name: (function, samples)}, the repeats interleaved."""
    best = dict.fromkeys(solvers, np.inf)
    results = {}
    for repeat in range(REPEATS):
        for name, (function, samples) in solvers.items():
            if name == "slsqp" and repeat >= 2:
                continue
            begin = time.thread_time()
            results[name] = function()
            best[name] = min(best[name], (time.thread_time() - begin) / samples * 1e6)
    return {name: (best[name], results[name]) for name in solvers}


def against_others(m, condition):
    """A row of the first table."""
    Q, F = random_problem(m, condition)
    few, fewer = F[: SAMPLES["quadprog"]], F[: SAMPLES["slsqp"]]
    got = measure(
        {
            "ours": (lambda: simplex_qp(Q, F), len(F)),
            "quadprog": (lambda: by_quadprog(Q, few), len(few)),
            "slsqp": (lambda: by_slsqp(Q, fewer), len(fewer)),
        }
    )
    ours, Z = got["ours"]
    times = [f"{got[name][0] / ours:.0f} x" for name in ("quadprog", "slsqp")]
    residuals = [
        f"{kkt_residual(Q, f, got[name][1]).max():.0e}"
        for name, f in (("ours", F), ("quadprog", few), ("slsqp", fewer))
    ]
    return [m, f"{condition:.0e}", f"{(Z > 0).sum(1).mean():.1f}", f"{ours:.2f}", *times, *residuals]


def clustered(m, d, clusters, mu):
    """A row of the second table."""
    Q, F, before = clustered_problem(m, d, clusters, mu)
    few = F[: SAMPLES["quadprog"]]
    got = measure(
        {
            "cold": (lambda: simplex_qp(Q, F), len(F)),
            "warm": (lambda: simplex_qp(Q, F, start=before), len(F)),
            "quadprog": (lambda: by_quadprog(Q, few), len(few)),
        }
    )
    (cold, Z), (warm, _) = got["cold"], got["warm"]
    residuals = [
        f"{kkt_residual(Q, f, got[name][1]).max():.0e}" for name, f in (("cold", F), ("warm", F), ("quadprog", few))
    ]
    times = [f"{cold:.2f}", f"{warm:.2f}", f"{got['quadprog'][0] / cold:.0f} x"]
    return [m, d, f"{mu:.0e}", f"{(Z > 0).sum(1).mean():.1f}", *times, *residuals]


def projection(m):
    """A row of the third table."""
    P = np.random.default_rng(m).standard_normal((20000, m)) / 4
    return [m, f"{measure({'ours': (lambda: project_simplex(P), len(P))})['ours'][0]:.3f}"]


def table(columns, rows):
    """Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def report():
    """The section of RESULTS.md."""
    others = [against_others(m, condition) for m in (20, 50, 100) for condition in (1e2, 1e7)]
    sizes = ((20, 64, 10), (50, 256, 10), (50, 832, 20), (100, 832, 20))
    anchors = [clustered(*size, mu) for size in sizes for mu in (1e-4, 1.0, 1e4)]
    columns = ["m", "condition", "support", "ours", "quadprog", "SLSQP", "KKT ours", "quadprog", "SLSQP"]
    more = ["m", "d", "μ", "support", "cold", "warm", "quadprog", "KKT cold", "warm", "quadprog"]
    return "\n\n".join(
        [
            "## Kernels: the simplex QP with a shared Q",
            f"`python tests/bench/kernels.py --write`, Python {platform.python_version()}, numba {numba.__version__},"
            " one run on a shared machine.\nOurs in microseconds of processor time a sample, the others as multiples of"
            " it; largest KKT residuals.  Random Q and f:",
            table(columns, others),
            "Clustered samples with k-means anchors, cold and from the sweep before:",
            table(more, anchors),
            "The projection:",
            table(["m", "ours"], map(projection, (20, 50, 100))),
        ]
    )


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    write = parser.parse_args().write
    warm_up()
    text = report()
    print(text)
    if write:
        write_section("kernels", text)


if __name__ == "__main__":
    main()
