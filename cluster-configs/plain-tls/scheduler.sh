#!/usr/bin/env bash
# scheduler.sh --host ADDRESS [options of dask scheduler]
set -euo pipefail
export DASK_CONFIG=${DASK_CONFIG:-/etc/aweigh/dask}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
export MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_ARENA_MAX=1
exec dask scheduler --protocol tls --port 8786 --dashboard-address 127.0.0.1:8787 "$@"
