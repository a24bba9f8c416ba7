# Needs Python 3.11 or later (with venv and pip), make and git; everything else goes into $(VENV).
# make PYTHON=/path/to/python3 chooses the Python, make VENV=.venv-other the environment's folder.

PYTHON :=
VENV := .venv
EXTRAS ?= test
ARGS :=
PYTHONS = $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 "$$HOME"/.pyenv/versions/3.1[1-9]*/bin/python3)
RUN = $(VENV)/bin/python -P -m
READY = $(VENV)/ready

# What the caller's environment says about other Pythons must not reach this one.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONNOUSERSITE = 1

.PHONY: help demo test lint clean

help:
	@echo 'make demo    import, cluster and score the bundled sample'
	@echo 'make test    run the test suite; make test ARGS="-k archive" runs a part of it'
	@echo 'make lint    ruff and mypy'
	@echo 'make clean   remove the environment and what was built; archives stay'

demo: $(READY)
	@$(VENV)/bin/aweigh demo demo

test: $(READY)
	@$(RUN) pytest -n auto $(ARGS)

# mypy sees the three folders as the package that they are installed as; from the root, io/ would hide Python's own.
lint: $(READY)
	@$(RUN) ruff check .
	@mkdir -p build/view/aweigh
	@for part in pipeline algorithms io; do ln -sfn "../../../$$part" "build/view/aweigh/$$part"; done
	@python="$$PWD/$(VENV)/bin/python"; cd build/view && "$$python" -P -m mypy --config-file ../../pyproject.toml -p aweigh

clean:
	rm -rf $(VENV) build dist aweigh.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Besides a changed pyproject.toml, a checkout that was moved or a Python that is gone makes the environment stale.
STALE := $(shell $(VENV)/bin/python -I -c 'import os; assert open("$(READY)", "rb").read() == os.getcwdb()' 2>/dev/null || echo yes)
ifeq ($(STALE),yes)
.PHONY: $(READY)
endif

$(READY): pyproject.toml
	@for python in $(PYTHONS); do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'aweigh needs Python 3.11 or later with its venv and ensurepip modules, and none was found.' >&2; \
	  echo 'Install one (on Debian and Ubuntu also python3-venv), or say where it is: make PYTHON=/path/to/python3' >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$python" --version); this is done once and takes a minute or two" >&2; \
	"$$python" -m venv --clear $(VENV)
	@$(RUN) pip install -qq --no-input --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@$(VENV)/bin/python -I -c 'import os; open("$(READY)", "wb").write(os.getcwdb())'
