# Needs python3 (3.10 or later, with venv) and nothing else; every target sets up its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test coverage test-slow conformance validation mutation choice lint format readme docs wheel bench profiles against models hf-kernel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "PYTHON=$(PYTHON): must be Python 3.10 or later; run make PYTHON=python3.12, say" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "PYTHON=$(PYTHON): lacks venv or ensurepip; install them (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "setup: installing nkiconv and its tools into $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq -e '.[dev,plots]'
	@touch $@

demo: $(STAMP) ## run the guided tour; its files go to demo-out/
	@$(BIN)/nkiconv demo --out demo-out

# One BLAS thread for each of the two test processes: more would fight over the same cores.
test: $(STAMP) ## run the tests
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2

# Coverage more than doubles the time, so sweeps over many geometries of what other tests go through are left out.
coverage: $(STAMP) ## print what the tests but for sweeps cover
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not sweep and not slow" --cov=nkiconv --cov-report=term-missing:skip-covered

test-slow: $(STAMP) ## run the tests that take minutes
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m slow

# Needs the packages that nki-library's tests import (README, "Kernels of others").
conformance: $(STAMP) ## run AWS's own kernels in the simulator: make conformance CHECKOUTS="PATH ..."
	@$(BIN)/python tests/conformance $(CHECKOUTS) --out tests/conformance.md

validation: $(STAMP) ## model what others have measured on trn2: make validation CHECKOUTS="PATH ..."
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/validation $(CHECKOUTS) --out profiles/validation.md

mutation: $(STAMP) ## plant faults, count those that the tests notice (an hour or two): tests/mutation.md
	@$(BIN)/python tests/mutation --out tests/mutation.md

COUNT ?= 500
SEED ?= 20
choice: $(STAMP) ## hold the kernels' own choice against plans on random problems (an hour): tests/choice.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/choice --count $(COUNT) --seed $(SEED) --out tests/choice.md

lint: $(STAMP) ## check style, types, import arrows and kernels' Python; print lines per folder
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/nkiconv lint nkiconv/kernels --strict
	@$(BIN)/nkiconv lint nkiconv/kernels --strict --nki 0.7
	@find nkiconv -name '*.py' -exec wc -l {} + | \
	  awk '$$2 != "total" {sub("/[^/]*$$", "", $$2); n[$$2] += $$1} END {for (f in n) printf "%6d %s\n", n[f], f}' | sort -k 2

format: $(STAMP) ## rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

readme: $(STAMP) ## rewrite the generated parts of the README
	@$(BIN)/python -m nkiconv.simulator.coverage README.md
	@$(BIN)/python -m nkiconv.support README.md

docs: $(STAMP) ## write the API pages to build/docs
	@$(BIN)/python docs/pages.py build/docs

wheel: $(STAMP) ## build dist/: the sdist, and the wheel from it
	@$(BIN)/python -m build

bench: $(STAMP) ## time the simulator itself
	@OPENBLAS_NUM_THREADS=1 $(BIN)/nkiconv bench-simulator

profiles: $(STAMP) ## model every headline case again: profiles/ and the README's table (minutes)
	@$(BIN)/nkiconv profiles --csv profiles/modelled_trn2.csv
	@for suite in depthwise conv2d; do \
	  $(BIN)/nkiconv bench --suite $$suite --csv profiles/$${suite}_modelled_trn2.csv --readme README.md \
	    --plot profiles/$${suite}_roofline.png || exit 1; done
	@$(BIN)/nkiconv profile nkl_fs_asr --plot profiles/nkl_fs_asr.png
	@for case in kda_bf16 nkl_n1_c256_w512_s64 decode_step rn50_c4 rn50_stem vae_out_rgb; do \
	  $(BIN)/nkiconv profile $$case --trace profiles/$$case.trace.json || exit 1; done

# Needs a checkout of AWS's nki-library, whose kernel it loads.
against: $(STAMP) ## model AWS's depthwise kernel beside ours: make against CHECKOUT=PATH
	@$(BIN)/nkiconv bench --suite depthwise --against "$(CHECKOUT)" --check --readme README.md \
	  --csv profiles/depthwise_against_nki_library.csv

models: $(STAMP) ## compare models of transformers, with random weights, by nkiconv and by torch
	@OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python examples/compare_models.py

hf-kernel: $(STAMP) ## lay the torch layers out for Hugging Face's kernels, in dist/hf-kernel/
	@$(BIN)/python -m nkiconv.pytorch.hub_package dist/hf-kernel

clean: ## delete .venv, caches and everything generated
	rm -rf $(VENV) build dist demo-out .coverage .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache *.egg-info
	find nkiconv tests -name __pycache__ -prune -exec rm -rf {} +
