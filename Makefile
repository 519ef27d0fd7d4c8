PYTHON ?= python3
# A private cache works with a read-only home and beside another user's cache.
export UV_CACHE_DIR ?= $(CURDIR)/.uv/cache
export UV_PYTHON_DOWNLOADS := never
# Compile bytecode once instead of in each process that starts: it takes two thirds of a worker's start.
export UV_COMPILE_BYTECODE := 1
export PYTHONDONTWRITEBYTECODE :=
UV := .uv/bin/uv
BIN := .venv/bin
BROWSERS := chromium chromium-browser google-chrome
# Install a Chromium for the browser tests if JIM_CHROMIUM is not set and the machine has none.
# “true”: “command -v” exits with 127 for an unknown name, and make would print the output of the shell.
CHROMIUM := $(if $(JIM_CHROMIUM)$(shell for name in $(BROWSERS); do command -v $$name; done; true),,node_modules/.chromium)
SUITES := test-sqlite test-postgres
LONG_SUITES := test-sqlite-long test-postgres-long

.PHONY: help run test test-all chaos mutants lint format lock venv clean fuzz bench bench-peers bench-pages screenshots $(SUITES) $(LONG_SUITES)

help:
	@echo "make run      start JIM on http://127.0.0.1:8000 (JIM_PORT and JIM_DATA_DIR for a second instance)"
	@echo "make test     run the test suite on SQLite and on PostgreSQL (tests/README.md)"
	@echo "make test-all run also the long tests: random kills, load, accessibility, fuzzing"
	@echo "make chaos    kill, freeze, disconnect and restart everything for ten minutes per database (SECONDS=60, CHAOS_SEED=…)"
	@echo "make mutants  break the rules of the engine one at a time, and check that tests notice (ONLY=\"fence overlap\")"
	@echo "make bench    measure JIM on SQLite and on PostgreSQL (QUICK=1; see bench/README.md)"
	@echo "make bench-peers  measure JIM and other systems, with ratios; about half an hour (REPS=2: 20 minutes)"
	@echo "make bench-pages  measure every page and list with 1,000,000 activities (PostgreSQL)"
	@echo "make screenshots  save every page, light and dark, wide and phone, in screenshots/ (ONLY=\"home queue\")"
	@echo "make fuzz     send many thousand requests to the API with schemathesis, as two roles (EXAMPLES=30, OPTIONS=…)"
	@echo "make lint     run ruff, djlint, mypy, import-linter and Django's checks"
	@echo "make format   format the code with ruff and the templates with djlint, and apply safe fixes"
	@echo "make lock     lock the dependencies of pyproject.toml (UPGRADE=1: upgrade them)"
	@echo "make venv     create .venv with everything for development"
	@echo "make clean    remove .venv, .uv and caches; keep data/"

run: .venv/.run
	@exec $(BIN)/python manage.py up

# Run every suite even if another one failed; the exit code is 0 only if all passed and selected tests.
# Run them side by side: while one suite waits for a process or a browser, the other one uses the processors.
EACH := --no-print-directory --keep-going --output-sync=target
test: .venv/.dev $(CHROMIUM)
	@$(MAKE) $(EACH) -j2 $(SUITES)

test-all: .venv/.dev $(CHROMIUM)
	@$(MAKE) $(EACH) -j2 $(SUITES) $(LONG_SUITES)

PYTEST := $(BIN)/pytest -q --durations 10 -n 2
test-sqlite test-postgres: test-%: .venv/.dev $(CHROMIUM)
	JIM_TEST_DB=$* $(PYTEST) -m "not long"

test-sqlite-long test-postgres-long: test-%-long: .venv/.dev $(CHROMIUM)
	JIM_TEST_DB=$* $(PYTEST) -m long
# Run these tests alone: they stop and freeze the server that the tests of a session share.
	$(if $(filter postgres,$*),JIM_TEST_DB=postgres $(BIN)/pytest -q tests/chaos/test_outage.py tests/chaos/test_storm.py)

fuzz: .venv/.dev
	FUZZ_EXAMPLES=$(or $(EXAMPLES),30) FUZZ_OPTIONS="$(OPTIONS)" JIM_TEST_DB=sqlite $(BIN)/pytest -q -s --timeout 3600 tests/api/test_fuzz.py

# Run one database after the other: each storm needs the whole machine.
chaos: .venv/.dev
	JIM_TEST_DB=sqlite CHAOS_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -q -s tests/chaos/test_storm.py
	JIM_TEST_DB=postgres CHAOS_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -q -s tests/chaos/test_storm.py

mutants: .venv/.dev
	@$(BIN)/python -m tests.mutants $(ONLY)

MEASURED = $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(REPS),--repetitions $(REPS)) $(if $(JSON),--json $(JSON))
bench: .venv/.dev
	@$(BIN)/python -m bench $(MEASURED) $(if $(DATABASE),--database $(DATABASE)) $(if $(N),--n $(N))

bench-peers: .venv/.dev
	@$(BIN)/python -m bench.peers $(MEASURED) $(if $(PEERS),--peers $(PEERS)) $(if $(FULL),--full)

bench-pages: .venv/.dev
	@$(BIN)/python -m bench.pages $(if $(REPS),--repetitions $(REPS)) $(if $(SMALLER),--smaller $(SMALLER))

screenshots: .venv/.dev $(CHROMIUM)
	@$(BIN)/python -m tests.browser.photographs $(ONLY)

# Use a separate data folder: checks must not create or change the one in use.
lint: export JIM_DATA_DIR := $(CURDIR)/.venv/lint-data
lint: export DATABASE_URL :=
lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/djlint --lint --check --quiet templates
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --fail-level WARNING

format: .venv/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/djlint --reformat --quiet --warn templates

COMPILE = $(UV) pip compile -q $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes --no-header
lock: $(UV)
	$(COMPILE) -o requirements-uv.lock --group uv
	$(COMPILE) -o requirements.lock pyproject.toml
	$(COMPILE) -o requirements-dev.lock -c requirements.lock --group dev pyproject.toml

venv: .venv/.dev

clean:
	rm -rf .venv .uv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache node_modules
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

.venv/.run: requirements.lock | $(UV)
	@test -x $(BIN)/python || $(UV) venv -q --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	$(UV) pip install -q --python .venv --require-hashes -r requirements.lock
	@touch $@

.venv/.dev: requirements-dev.lock .venv/.run
	$(UV) pip sync -q --python .venv --require-hashes requirements-dev.lock
	@touch $@

# With AWS_LAMBDA_JS_RUNTIME set, the package also unpacks the libraries that a bare machine lacks.
node_modules/.chromium: package-lock.json
	npm ci --silent
	@mkdir -p $@
	TMPDIR=$(CURDIR)/$@ AWS_LAMBDA_JS_RUNTIME=nodejs22.x node tests/browser/unpack.mjs
	@chmod -R a+rX $@ && touch $@

# pip --target needs neither ensurepip nor write access to the system's packages.
$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "JIM needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m pip install -q --disable-pip-version-check --root-user-action=ignore --target .uv --require-hashes -r requirements-uv.lock
