# Five commands. Each sets up what it needs; a second run starts at once.
#   make demo     local AWS, a real stream, the job killed half way, and the proof that nothing is lost or twice
#   make test     the tests; those that need Spark on both supported versions
#   make lint     ruff, mypy, import-linter; zizmor and the schema for workflows; the documentation as a site, without a warning
#   make synth    the infrastructure as Terraform JSON, in cdktf.out
#   make bench    the benchmarks, as one table; AGAINST=REV compares with the library of a commit or tag
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
VENV40 := .venv-spark40
VENV_CDKTN := .venv-cdktn
VENV_PIPELINE := .venv-pipeline
# The lock of checkov and its packages.
CHECKOV := packages/kinesis-efo-infra/kinesis_efo_infra/gate/checkov/uv.lock
LOCK := pyproject.toml packages/kinesis-efo-infra/pyproject.toml uv.lock scripts/setup
PYTHON := $(VENV)/bin/python
TEST = -m pytest -n $(1) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)
# The theme warns of its end of life, in May 2027.
SITE = NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
# Java is looked for when a recipe runs: it may have been installed just before.
RUN := env -u SPARK_HOME -u VIRTUAL_ENV -u KINESIS_EFO_CDK -u PYTHONDONTWRITEBYTECODE JAVA_HOME="$$(scripts/setup java-home)"

# A company's proxy has its certificate in the system's store, where uv does not look by itself.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= true
endif

.PHONY: help demo test long core sdk cluster upgrade lint synth bench soak seeds mutants docs site fuzz fuzz-core sanitize dist java ip faketime clean

help:
	@sed -n '2,6s/^# *//p' Makefile

# The demo needs neither the infrastructure's packages nor the linters.
$(VENV)/.demo: $(LOCK)
	@scripts/setup venv $(VENV) --inexact --no-default-groups --group spark43 --extra local
	@touch $@

$(VENV)/.full: $(LOCK)
	@scripts/setup venv $(VENV) --all-extras
	@touch $@ $(VENV)/.demo

$(VENV40)/.full: $(LOCK)
	@scripts/setup venv $(VENV40) --all-extras --no-default-groups --group test --group spark40
	@touch $@

# What decodes records faster than Python, for programs of this checkout and the tests that compare both. Without Rust, it says so.
$(VENV)/.core: $(VENV)/.full $(wildcard $(addprefix packages/kinesis-efo-core/,Cargo.* pyproject.toml src/*.rs))
	@scripts/setup core $(VENV)
	@touch $@

# CDK Terrain in place of CDKTF: an environment has one engine. Its bindings are compiled when they are first used.
$(VENV_CDKTN)/.full: $(LOCK)
	@scripts/setup venv $(VENV_CDKTN) --no-compile-bytecode --no-default-groups --group cdktn --extra local
	@touch $@

# What holds the keys of AWS: packages with the hashes of the lock, and this checkout as it is. Nothing is built, and so none of the
# packages' code is run, nor that of a build system.
$(VENV_PIPELINE)/.full: $(LOCK) $(CHECKOV)
	@scripts/setup venv $(VENV_PIPELINE) --no-default-groups --group pipeline --extra emr --no-build \
	    --no-install-project --no-install-package kinesis-efo-infra
	@for site in $(VENV_PIPELINE)/lib/python3*/site-packages; do \
	    printf '%s\n' "$(CURDIR)/lib" "$(CURDIR)/packages/kinesis-efo-infra" > $$site/checkout.pth; done
	@printf '%s\n' '#!$(CURDIR)/$(VENV_PIPELINE)/bin/python' 'from kinesis_efo_tools.cli import main' 'main()' > $(VENV_PIPELINE)/bin/kinesis-efo
	@chmod +x $(VENV_PIPELINE)/bin/kinesis-efo
	@$(VENV_PIPELINE)/bin/python -c "from kinesis_efo_infra.gate.locked_checkov import install; install()"
	@touch $@

# Spark's JVMs start three times as fast from an archive of its classes, and its Python processes twice as fast with bytecode.
%/.classes: %/.full tests/support/bytecode.py | java
	@echo "setup: bytecode and archive of Spark's classes for $*" >&2
	@$*/bin/python -W ignore -m tests.support.bytecode
	@$(RUN) $*/bin/python -m tests.support.class_archive
	@touch $@

# What tests run in environments of their own is fetched before the tests are timed.
$(VENV)/.isolated: $(VENV)/.full $(VENV_CDKTN)/.full tests/support/isolated.py $(CHECKOV) tests/support/node/package-lock.json
	@echo "setup: environments for checkov, the tests' provider of Terraform and the AWS SDK for JavaScript" >&2
	@$(PYTHON) -m tests.support.isolated
	@touch $@

core: $(VENV)/.full
	@rm -f $(VENV)/.core
	@$(MAKE) --no-print-directory $(VENV)/.core

java:
	@scripts/setup java

ip:
	@scripts/setup ip

faketime:
	@scripts/setup faketime

demo: $(VENV)/.demo java
	@$(RUN) $(PYTHON) -m demo $(DEMO_ARGS)

# Tests marked spark run on both versions; what does not depend on the version runs on one of them. One version comes after the other, in
# one process more than there are cores: a test waits often, but each process has a JVM that has to warm up.
TESTS_43 := -m "not spark40 and not cluster and not upgrade and not long"
TESTS_40 := -m "(spark or spark40) and not cluster and not upgrade and not long" $$(grep -rlE --include='*.py' 'mark\.spark(40)?\b' tests)
test: $(VENV)/.classes $(VENV)/.isolated $(VENV)/.core $(VENV40)/.classes | ip faketime
	$(RUN) $(VENV40)/bin/python $(call TEST,3) $(TESTS_40); spark40=$$?; \
	$(RUN) $(PYTHON) $(call TEST,3) $(TESTS_43) && exit $$spark40

# What takes too long for each change.
long: $(VENV)/.classes $(VENV)/.isolated $(VENV)/.core $(VENV40)/.classes | ip
	$(RUN) $(PYTHON) $(call TEST,2) -m "long and not spark40"
	$(RUN) $(VENV40)/bin/python $(call TEST,2) -m "long and (spark or spark40)" $$(grep -rl --include='*.py' 'mark\.long\b' tests)

# What speaks to AWS, with the oldest packages that pyproject.toml allows and with the newest, whatever uv.lock says.
SDK_TESTS := tests/unit/test_aws.py tests/unit/http2 tests/integration/http2 tests/unit/kinesis tests/integration/kinesis \
	tests/unit/producer tests/integration/producer tests/unit/leases tests/integration/leases
sdk: sdk-lowest-direct sdk-highest
sdk-%: $(VENV)/.full
	@echo "setup: .venv-sdk-$*" >&2
	@$(VENV)/bin/uv venv --quiet --clear --python $(PYTHON) .venv-sdk-$*
	@$(VENV)/bin/uv pip compile --quiet --upgrade --python $(PYTHON) --resolution $* --extra emr --extra local pyproject.toml \
		--output-file .venv-sdk-$*/versions.txt
	@$(VENV)/bin/uv pip install --quiet --python .venv-sdk-$*/bin/python --constraint .venv-sdk-$*/versions.txt \
		--group test --editable '.[emr,local]'
	$(RUN) .venv-sdk-$*/bin/python $(call TEST,4) $(SDK_TESTS)

# Every test that needs a cluster of hosts, one by one. Only root can make hosts; who is not root is told so.
cluster: $(VENV)/.classes $(VENV40)/.classes | ip
	KINESIS_EFO_TEST_EVERYTHING=1 $(RUN) $(PYTHON) -m pytest $(PYTEST_ARGS) tests/cluster -m "not spark40"
	KINESIS_EFO_TEST_EVERYTHING=1 $(RUN) $(VENV40)/bin/python -m pytest $(PYTEST_ARGS) tests/cluster -m "spark or spark40"

# A running job goes up, back to an earlier version that is really run, and up again. Needs the history of the repository.
upgrade: $(VENV)/.full $(VENV40)/.full java
	$(RUN) $(PYTHON) -m pytest $(PYTEST_ARGS) tests/upgrade
	$(RUN) $(VENV40)/bin/python -m pytest $(PYTEST_ARGS) tests/upgrade

lint: $(VENV)/.full
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy lib jobs examples demo infra benchmarks packages/kinesis-efo-infra/kinesis_efo_infra
	$(VENV)/bin/lint-imports
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(VENV)/bin/zizmor --offline --no-progress --quiet .github
	$(SITE)

# 30 minutes of faults, reshards and kills; SOAK_MINUTES= says otherwise.
soak: $(VENV)/.full java
	@$(RUN) $(PYTHON) -m tests.soak $(SOAK_ARGS)

# 1,000 random scenarios in virtual time; SEEDS=1000:3000 says otherwise. A seed that fails is named.
SEEDS := 0:1000
seeds: $(VENV)/.full
	KINESIS_EFO_SEEDS=$(SEEDS) $(RUN) $(PYTHON) -m pytest tests/chaos/test_seeds.py tests/chaos/test_seeds_find.py tests/chaos/test_seeds_program.py -q $(PYTEST_ARGS)

# One-line faults in the modules of reading, and whether a test sees them. An hour or two for all; MUTANTS="kinesis/frames" for some,
# MUTANTS="--since main" for the lines that changed. tests/mutants.toml lists those that survive. Without Rust more of them do:
# nothing calls the native core then.
mutants: $(VENV)/.core
	@$(RUN) $(PYTHON) -m scripts.mutants $(MUTANTS)

# AGAINST=v1.2.0, or any commit: that version and this checkout by turns, and whether this one is slower.
bench: $(VENV)/.isolated $(VENV)/.core java
	@$(RUN) $(PYTHON) -m benchmarks $(if $(AGAINST),--against "$(AGAINST)") $(BENCH_ARGS)

# What comes from the code: the tables in README.md and docs/, the dashboard and the alerts.
docs: $(VENV)/.full
	$(PYTHON) -m scripts.docs

# The pages as a site, in build/site.
site: $(VENV)/.full
	$(SITE)

# Wheel and source distribution of the library, and of the constructs.
dist: $(VENV)/.full
	@rm -f dist/*.whl dist/*.tar.gz
	$(PYTHON) -m hatchling build --directory dist
	cd packages/kinesis-efo-infra && ../../$(PYTHON) -m hatchling build --directory ../../dist

# About two minutes for each target; what breaks a promise is kept in tests/fuzz/corpus.
fuzz: $(VENV)/.core
	@scripts/setup venv $(VENV) --inexact --all-extras --group fuzz
	$(RUN) $(PYTHON) -m tests.fuzz $(FUZZ_ARGS)

# The same with the native core's code, and AddressSanitizer.
fuzz-core: $(VENV)/.full
	$(RUN) scripts/fuzz-core $(PYTHON) $(FUZZ_ARGS)

# Whether the native core stays within its memory, whatever it is given.
sanitize: $(VENV)/.full
	$(RUN) scripts/sanitize $(PYTHON) -q $(PYTEST_ARGS) tests/unit/kinesis/test_core.py tests/unit/kinesis/test_core_events.py tests/fuzz

# Targets of the infrastructure, `synth` among them.
-include infra/Makefile.inc

ifeq ($(wildcard infra/Makefile.inc),)
synth:
	@echo "make synth waits for the infrastructure (infra/Makefile.inc): it is not part of this revision yet." >&2; exit 1
endif

clean:
	rm -rf build dist cdktf.out spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache .hypothesis
