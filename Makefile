# Two commands on a fresh machine: `make demo` and `make test`. Both make their own virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   := trtopt-demo

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-long test-all test-export test-browser test-ray docs check house lint-fix clean

help:
	@echo "make demo         build engines for a small trained model, measure them and write a report"
	@echo "make test         run the tests that need neither a GPU nor torch: every feature once from end to end"
	@echo "make test-all     run these and the long ones: fuzzing, kills at every step, long simulations, benchmarks"
	@echo "make test-export  run the tests that export PyTorch models (installs torch)"
	@echo "make test-browser open the report page in a headless Chromium (apt-get install chromium)"
	@echo "make test-ray     run builds and measurements on a Ray cluster of two nodes on this host (installs ray)"
	@echo "make docs         build the documentation site into docs/_build"
	@echo "make check        types, lint and formatting"
	@echo "make house        how large the package is, and what a change to it touches"

# One marker file a set of extras: an install runs again when pyproject.toml changes.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.rtx: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,report]"
	@touch $@

$(VENV)/.test: $(VENV)/.rtx
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,dev]"
	@touch $@

$(VENV)/.export: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,dev,export]"
	@touch $@

$(VENV)/.browser: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,dev,browser]"
	@touch $@

$(VENV)/.ray: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,dev,ray]"
	@touch $@

$(VENV)/.docs: $(VENV)/.rtx
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[rtx,docs]"
	@touch $@

demo: $(VENV)/.rtx
	$(BIN)/trtopt demo
	@echo "trtopt is installed in $(VENV): source $(BIN)/activate"

# Temporary files are in memory, where 4 GB are free and programs may run: trtopt flushes each file that it writes,
# which takes a disk some milliseconds. What `make test-long` writes is large, and on the disk.
IN_MEMORY = $(if $(TMPDIR),,$(shell df -k /dev/shm 2>/dev/null | awk 'END { exit $$4 < 4000000 }' \
  && ! grep -q ' /dev/shm .*noexec' /proc/mounts && echo TMPDIR=/dev/shm))

# On all cores, by as many processes as tests/conftest.py says. A file's tests stay together: they share what
# takes long to make.
test: $(VENV)/.test
	$(IN_MEMORY) $(PYTEST) -m "not long" --junit-xml .pytest_cache/durations.xml -o tmp_path_retention_policy=failed

# What `make test` leaves: what is marked as long, and property tests with many more examples.
test-long: $(VENV)/.test
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile full

test-all: test test-long

test-export: $(VENV)/.export
	$(BIN)/python -m pytest tests/export

test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser

# Ray listens on the host's own address, so its tests run where there is none; elsewhere they are skipped,
# and that is no failure.
test-ray: $(VENV)/.ray
	@if unshare -rn ip link set lo up; then \
	  unshare -rn sh -c 'ip link set lo up; exec "$$0" -m pytest tests/ray' $(BIN)/python; \
	else echo "tests/ray are skipped: 'unshare -rn ip link set lo up' does not work here"; fi

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --quiet docs docs/_build

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Informs, and never fails: the tests hold what must not be.
house: $(VENV)/.test
	$(BIN)/python -m tests.support.house

lint-fix: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) docs/_build
