# Needs python3 (3.10 or later, with venv) and nothing else; every target first sets up what it needs in .venv.
PYTHON ?= python3
# Pinned, so that the reference's results do not move under the tests; pyproject.toml says which others can be asked for.
TORCH ?= 2.13.0
VENV := .venv
BIN := $(VENV)/bin
# One stamp for what runs kernels and draws, one for what tests them too: each says that .venv has all of it.
RUN := $(VENV)/.run
ALL := $(VENV)/.all-torch-$(TORCH)
# The zoo's packages stand beside those of .venv: tests/zoo/packages.py says why.
ZOO := $(VENV)/zoo/.torch-$(TORCH)
PIP := $(BIN)/python -m pip install -qq
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start a hundred processes; each would compile all of nkiconv where the shell's setting keeps it from being kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all coverage conformance peers validation calibration limits mutation choice crossover zoo plans nets golden ablate chains lint format readme docs wheel \
  bench profiles deepbench against models training hf-kernel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "durations in brackets are of two cores, without set-up"
	@echo
	@echo "PYTHON=python3.12   makes .venv of that Python (now: $(PYTHON)); make clean first to change it"
	@echo "TORCH=2.14.1        installs that torch into .venv (now: $(TORCH)), as in make test TORCH=2.14.1"

setup: $(ALL) ## make .venv with everything that the other targets need

# Seconds since `began`, and what .venv has become.
TOOK = echo "setup: took $$(($$(date +%s) - began)) s; $(VENV) has $$(du -sm $(VENV) | cut -f 1) MB"

$(RUN): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "PYTHON=$(PYTHON): must be Python 3.10 or later; run make PYTHON=python3.12, say" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "PYTHON=$(PYTHON): lacks venv or ensurepip; install them (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "setup: installing nkiconv, NumPy and matplotlib into $(VENV) (50 MB to download, 230 MB on disk, once)"
	@began=$$(date +%s); $(PYTHON) -m venv $(VENV) && $(PIP) -e '.[plots]' && $(TOOK)
	@touch $@

# Of torch the build without CUDA, where the package index at hand has it: a tenth of the other's size.
$(ALL): $(RUN)
	@echo "setup: installing torch $(TORCH), transformers, pytest and other tools of the tests into $(VENV)" \
	  "(300 MB to download, 1.4 GB on disk, once)"
	@began=$$(date +%s); rm -f $(VENV)/.all-*; \
	  $(PIP) torch==$(TORCH)+cpu 2>/dev/null || { \
	    echo "setup: pip finds no torch $(TORCH)+cpu and takes torch $(TORCH), on Linux with CUDA: 2.7 GB to download," \
	      "not 0.2; PIP_EXTRA_INDEX_URL can name an index that has builds for CPUs"; \
	    $(PIP) torch==$(TORCH); } && \
	  $(PIP) -e '.[dev]' && $(TOOK)
	@touch $@

demo: $(RUN) ## run the guided tour; its files go to demo-out/ (half a minute)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/nkiconv demo --out demo-out

# One BLAS thread for each of the two test processes: more would fight over the same cores.
test: $(ALL) ## run the tests, of tables as many rows as have every value (two minutes)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2

test-all: $(ALL) ## run all tests, whole tables and sweeps too (hours)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -m ""

coverage: $(ALL) ## print which lines of nkiconv `make test` does not run (twice as long)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --cov=nkiconv --cov-report=term-missing:skip-covered

# Needs the packages that nki-library's tests import (docs/kernels.md, "Kernels of others").
conformance: $(ALL) ## run AWS's own kernels in the simulator: make conformance CHECKOUTS="PATH ..."
	@$(BIN)/python tests/conformance $(CHECKOUTS) --out tests/conformance.md

peers: $(ALL) ## run causal-conv1d's own tests on nkiconv's functions: make peers CHECKOUTS="PATH" OPTIONS="--help"
	@$(BIN)/python tests/conformance $(CHECKOUTS) --seconds 300 $(OPTIONS)

validation: $(ALL) ## model what others have measured on trn2: make validation CHECKOUTS="PATH ..."
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/validation $(CHECKOUTS) --out profiles/validation.md

SEEDS ?= 20
limits: $(ALL) ## the hardware's limit over modelled times of convolutions that models have (three minutes): tests/limits.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/limits --out tests/limits.md

calibration: $(ALL) ## say which constants `nkiconv calibrate` finds that it cannot see (a quarter of an hour): tests/calibration.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/calibration --seeds $(SEEDS) --out tests/calibration.md

mutation: $(ALL) ## plant faults, count those that the tests notice (an hour or two): tests/mutation.md
	@$(BIN)/python tests/mutation --out tests/mutation.md

COUNT ?= 500
SEED ?= 47
choice: $(ALL) ## hold estimates against plans on random problems (ten minutes): tests/choice.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/choice --count $(COUNT) --seed $(SEED) --out tests/choice.md

$(ZOO): $(ALL) pyproject.toml
	@echo "setup: installing diffusers, timm, torchvision and torchaudio into $(VENV)/zoo (20 MB to download, once)"
	@rm -rf $(VENV)/zoo; $(PIP) --no-deps --target $(VENV)/zoo $$($(BIN)/python tests/zoo/packages.py pyproject.toml)
	@touch $@

zoo: $(ZOO) ## say which share of convolutions nkiconv takes, over 138 models (six minutes): tests/zoo.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/zoo --out tests/zoo.md $(OPTIONS)
	@cat tests/zoo.md

plans: $(ZOO) ## search for plans of the zoo's convolutions that nkiconv does not ship yet (hours): nkiconv/planner/shipped.tsv
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/zoo/plans.py $(OPTIONS)

nets: $(ZOO) ## sum up modelled times of the convolutions of six whole nets (five minutes): profiles/nets.md
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/zoo/nets.py --out profiles/nets.md $(OPTIONS)
	@cat profiles/nets.md

golden: $(ALL) ## say which kernels have changed since tests/golden/golden.csv, and which are slower (a quarter of an hour)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/golden $(OPTIONS)

ablate: $(ALL) ## say what each setting of each algorithm buys over the golden table's plans (ten minutes)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/ablate $(OPTIONS)

lint: $(ALL) ## check style, types, import arrows and kernels' Python; print lines per folder (a minute)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/nkiconv lint nkiconv/kernels nkiconv/tools/calibrate/kernels --strict
	@find nkiconv -name '*.py' -exec wc -l {} + | \
	  awk '$$2 != "total" {sub("/[^/]*$$", "", $$2); n[$$2] += $$1} END {for (f in n) printf "%6d %s\n", n[f], f}' | sort -k 2

format: $(ALL) ## rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

readme: $(ALL) ## rewrite the generated parts of the README and of the pages in docs/ (three minutes)
	@echo "the front page, coverage and rules (seconds)"
	@$(BIN)/python -m nkiconv.tools.tables.front README.md profiles
	@$(BIN)/python -m nkiconv.simulator.coverage docs/kernels.md
	@$(BIN)/python -m nkiconv.tools.tables.rules docs/rules.md
	@$(BIN)/python -m nkiconv.tools.tables.settings docs/settings.md
	@echo "what the commands of first_kernel.md print (half a minute)"
	@$(BIN)/python -m nkiconv.tools.tables.console docs/first_kernel.md
	@echo "the kernels of tensor_engine.md and their times (half a minute)"
	@$(BIN)/python -m nkiconv.tools.tables.console docs/tensor_engine.md
	@$(BIN)/python examples/conv2d/compare.py docs/tensor_engine.md
	@echo "what is supported, asked of the code (a minute or more)"
	@$(BIN)/python -m nkiconv.tools.tables.support docs/support.md

crossover: $(ALL) ## write the tables of docs/algorithms.md again (ten minutes)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m nkiconv.tools.tables.console docs/algorithms.md

docs: $(ALL) ## write the site of docs/ and of the docstrings to build/docs; warnings are errors (half a minute)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "wrote build/docs/index.html"

wheel: $(ALL) ## build dist/: the sdist, and the wheel from it
	@$(BIN)/python -m build

bench: $(RUN) ## time the simulator itself (a minute)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/nkiconv bench-simulator

profiles: $(RUN) ## model every headline case again: profiles/ and its tables (ten minutes)
	@$(BIN)/nkiconv profiles --csv profiles/modelled_trn2.csv --force
	@for suite in depthwise conv2d conv3d conv_transpose; do \
	  $(BIN)/nkiconv bench --suite $$suite --csv profiles/$${suite}_modelled_trn2.csv --force --readme docs/performance.md \
	    --plot profiles/$${suite}_roofline.png || exit 1; done
	@$(BIN)/python -m nkiconv.tools.tables.front README.md profiles
	@$(BIN)/nkiconv profile nkl_fs_asr --plot profiles/nkl_fs_asr.png --force
	@for case in kda_bf16 nkl_n1_c256_w512_s64 decode_step rn50_c4 rn50_stem vae_out_rgb; do \
	  $(BIN)/nkiconv profile $$case --trace profiles/$$case.trace.json --force || exit 1; done

deepbench: $(RUN) ## plan DeepBench's training list in three directions and both layouts, beside a V100 (half an hour)
	@for layout in NHWC NCHW; do \
	  $(BIN)/nkiconv bench --suite deepbench --layout $$layout --readme docs/deepbench.md --force \
	    --csv profiles/deepbench_$$(echo $$layout | tr A-Z a-z)_modelled_trn2.csv || exit 1; done

chains: $(RUN) ## model every fused chain beside separate launches: docs/fused.md (ten minutes)
	@$(BIN)/python -m nkiconv.tools.tables.chains docs/fused.md --csv profiles/chains_modelled_trn2.csv

# Needs a checkout of AWS's nki-library, whose kernel it loads.
against: $(RUN) ## model AWS's depthwise kernel and ours: make against CHECKOUT=PATH (minutes)
	@$(BIN)/nkiconv bench --suite depthwise --against "$(CHECKOUT)" --check --readme docs/performance.md \
	  --csv profiles/depthwise_against_nki_library.csv --force

models: $(ALL) ## compare models of transformers, with random weights, by nkiconv and by torch (minutes)
	@OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python examples/compare_models.py

training: $(ALL) ## train five small networks by kernels and by torch (one to two minutes): profiles/training.png
	@OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python examples/train_small.py --plot profiles/training.png

hf-kernel: $(ALL) ## lay the torch layers out for Hugging Face's kernels, in dist/hf-kernel/
	@$(BIN)/python -m nkiconv.pytorch.hub_package dist/hf-kernel

clean: ## delete .venv, caches and everything generated
	rm -rf $(VENV) build dist demo-out .coverage .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache *.egg-info
	find nkiconv tests -name __pycache__ -prune -exec rm -rf {} +
