# Six commands. Each sets up what it needs; a second run starts at once.
#   make quick    ruff, mypy and the unit tests, in a minute or two; needs neither Java, Terraform, npm, Rust nor root
#   make demo     local AWS, a real stream, the job killed half way, and the proof that nothing is lost or twice
#   make test     the tests; those that need Spark on both supported versions
#   make lint     ruff, mypy, import-linter; zizmor and the schema for workflows; the documentation as a site, without a warning
#   make synth    the infrastructure as Terraform JSON, in cdktf.out
#   make bench    the benchmarks, as one table; AGAINST=REV compares with the library of a commit or tag
# What takes longer, before a merge or every night, is in scripts/ci.mk; the infrastructure's commands are in infra/Makefile.inc.
.DEFAULT_GOAL := help
SHELL := /bin/sh

# One environment has one PySpark, and one engine that synthesizes.
VENV := .venv
VENV40 := .venv-spark40
VENV_CDKTN := .venv-cdktn
# The lock of checkov and its packages.
CHECKOV := packages/kinesis-efo-infra/kinesis_efo_infra/gate/checkov/uv.lock
LOCK := pyproject.toml packages/kinesis-efo-infra/pyproject.toml uv.lock scripts/setup
PYTHON := $(VENV)/bin/python
TEST = -m pytest -n $(1) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)
# The theme warns of its end of life, in May 2027.
SITE = NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build
define STYLE_AND_TYPES
$(VENV)/bin/ruff check .
$(VENV)/bin/ruff format --check .
$(VENV)/bin/mypy lib jobs examples demo infra benchmarks packages/kinesis-efo-infra/kinesis_efo_infra
endef
WITHOUT_JAVA := env -u SPARK_HOME -u VIRTUAL_ENV -u KINESIS_EFO_CDK -u PYTHONDONTWRITEBYTECODE
# Java is looked for when a recipe runs: it may have been installed just before.
RUN := $(WITHOUT_JAVA) JAVA_HOME="$$(scripts/setup java-home)"

# A company's proxy has its certificate in the system's store, where uv does not look by itself.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= true
endif

.PHONY: help quick demo trial test lint bench docs site core java ip faketime clean

help:
	@sed -n '2,7s/^# *//p' Makefile

# The demo needs neither the infrastructure's packages nor the linters.
$(VENV)/.demo: $(LOCK)
	@scripts/setup venv $(VENV) --inexact --no-default-groups --group spark43 --extra local
	@touch $@

# uv takes out what its lock does not name: the native core, which comes back if it was there.
$(VENV)/.full: $(LOCK)
	@scripts/setup venv $(VENV) --all-extras
	@touch $@ $(VENV)/.demo
	@if [ -e $(VENV)/.core ]; then scripts/setup core $(VENV) && touch $(VENV)/.core; fi

# What works with uvloop has to work without it, too.
$(VENV40)/.full: $(LOCK)
	@scripts/setup venv $(VENV40) --all-extras --no-extra uvloop --no-default-groups --group test --group spark40
	@touch $@

# What decodes records faster than Python, for programs of this checkout and the tests that compare both. Without Rust, it says so.
$(VENV)/.core: $(VENV)/.full $(wildcard $(addprefix packages/kinesis-efo-core/,Cargo.* pyproject.toml src/*.rs))
	@scripts/setup core $(VENV)
	@touch $@

# CDK Terrain in place of CDKTF. Its bindings are compiled when they are first used.
$(VENV_CDKTN)/.full: $(LOCK)
	@scripts/setup venv $(VENV_CDKTN) --no-compile-bytecode --no-default-groups --group cdktn --extra local
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

java ip faketime:
	@scripts/setup $@

quick: $(VENV)/.full
	$(STYLE_AND_TYPES)
	$(WITHOUT_JAVA) $(PYTHON) $(call TEST,4) -q -m "not slow and not long" tests/unit

demo: $(VENV)/.demo java
	@$(RUN) $(PYTHON) -m demo $(DEMO_ARGS)

# The same with the Kinesis of an account: Terraform makes what it needs there and removes it, for cents. TRIAL_ARGS="--manifest FILE"
# takes an application that exists.
trial: $(VENV)/.demo java
	@$(RUN) $(PYTHON) -m demo.trial $(TRIAL_ARGS)

# Tests marked spark run on both versions; what does not depend on the version runs on one of them. Both versions run at once, because whole
# queries wait half of their time: one version after the other would leave a core idle. The output of 4.0 comes last. There are not more
# processes, because each collects all tests, and has a JVM that has to warm up.
TESTS_43 := -m "not spark40 and not cluster and not upgrade and not long"
TESTS_40 := -m "(spark or spark40) and not cluster and not upgrade and not long" $$(grep -rlE --include='*.py' 'mark\.spark(40)?\b' tests)
test: $(VENV)/.classes $(VENV)/.isolated $(VENV)/.core $(VENV40)/.classes | ip faketime
	@mkdir -p build
	PYTHONHASHSEED=0 $(RUN) $(VENV40)/bin/python $(call TEST,2) $(TESTS_40) >build/test-spark40.txt 2>&1 & spark40=$$!; \
	PYTHONHASHSEED=0 $(RUN) $(PYTHON) $(call TEST,4) $(TESTS_43); spark43=$$?; \
	wait $$spark40; spark40=$$?; cat build/test-spark40.txt; exit $$((spark43 | spark40))

lint: $(VENV)/.full
	$(STYLE_AND_TYPES)
	$(VENV)/bin/lint-imports
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(VENV)/bin/zizmor --offline --no-progress --quiet .github
	$(SITE)

# AGAINST=v1.2.0, or any commit: that version and this checkout by turns, and whether this one is slower.
bench: $(VENV)/.isolated $(VENV)/.core java
	@$(RUN) $(PYTHON) -m benchmarks $(if $(AGAINST),--against "$(AGAINST)") $(BENCH_ARGS)

# What comes from the code: the tables in README.md and docs/, the dashboard and the alerts.
docs: $(VENV)/.full
	$(PYTHON) -m scripts.docs

# The pages as a site, in build/site.
site: $(VENV)/.full
	$(SITE)

include scripts/ci.mk infra/Makefile.inc

clean:
	rm -rf build dist cdktf.out spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache .hypothesis
