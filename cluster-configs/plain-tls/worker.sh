#!/usr/bin/env bash
# worker.sh tls://SCHEDULER:8786 [options of dask worker, such as --nworkers 8 --memory-limit 4GiB]
set -euo pipefail
export DASK_CONFIG=${DASK_CONFIG:-/etc/aweigh/dask}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
export MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_ARENA_MAX=1
exec dask worker --nthreads 1 --memory-limit 4GiB "$@"
