# What takes longer than a change can wait for: it runs before a merge, every night or for a release. The Makefile includes this file.
.PHONY: long sdk sparks glue newest quickstart cluster upgrade soak seeds mutants fuzz fuzz-core sanitize dist wheels check-wheels release-check

# What takes too long for each change.
long: $(VENV)/.classes $(VENV)/.isolated $(VENV)/.core $(VENV40)/.classes | ip
	$(RUN) $(PYTHON) $(call TEST,2) -m "long and not spark40"
	$(RUN) $(VENV40)/bin/python $(call TEST,2) -m "long and (spark or spark40)" $$(grep -rl --include='*.py' 'mark\.long\b' tests)

# What speaks to AWS, with the oldest packages that pyproject.toml allows and with the newest, whatever uv.lock says.
SDK_TESTS := tests/unit/test_aws.py tests/unit/http2 tests/integration/http2 tests/unit/kinesis tests/unit/records tests/integration/kinesis \
	tests/unit/producer tests/integration/producer tests/unit/leases tests/integration/leases tests/unit/calls \
	tests/unit/test_private_directory.py
sdk: sdk-lowest-direct sdk-highest
sdk-%: $(VENV)/.full
	@echo "setup: .venv-sdk-$*" >&2
	@$(VENV)/bin/uv venv --quiet --clear --python $(PYTHON) .venv-sdk-$*
	@$(VENV)/bin/uv pip compile --quiet --upgrade --python $(PYTHON) --resolution $* --extra emr --extra local pyproject.toml \
		--output-file .venv-sdk-$*/versions.txt
	@$(VENV)/bin/uv pip install --quiet --python .venv-sdk-$*/bin/python --constraint .venv-sdk-$*/versions.txt \
		--group test --editable '.[emr,local]'
	$(RUN) .venv-sdk-$*/bin/python $(call TEST,4) $(SDK_TESTS)

# The tests of the source, the sink and whole queries, on the versions of Spark between those of `make test`. WITH=3.14 takes another Python.
sparks: spark-4.1 spark-4.2
spark-%: $(VENV)/.full | java
	@echo "setup: .venv-spark-$*, with Python $(or $(WITH),of .venv)" >&2
	@$(VENV)/bin/uv venv --quiet --clear --python $(or $(WITH),$(PYTHON)) .venv-spark-$*
	@$(VENV)/bin/uv pip install --quiet --python .venv-spark-$*/bin/python $(OVERRIDES) --group test --editable '.[emr,local]' 'pyspark==$*.*'
	$(RUN) .venv-spark-$*/bin/python $(call TEST,3) -m "spark and not cluster and not upgrade and not long" tests/integration/spark

# What Glue 6.0 has: Spark 4.1 and Python 3.13.
glue: WITH := 3.13
glue: spark-4.1

# The newest that Spark 4.3 runs on.
newest: WITH := 3.14
newest: OVERRIDES := --overrides scripts/newest.txt
newest: PYTEST_ARGS += --dist loadfile -W "ignore:PySpark does not yet fully support pandas:FutureWarning"
newest: export WITH_JAVA := 25
newest: spark-4.3

# The quick start, as a new user runs it.
quickstart: $(VENV)/.full
	$(RUN) $(PYTHON) -m pytest $(PYTEST_ARGS) tests/integration/cli/test_quickstart.py -k first_minute

# Every test that needs a cluster of hosts, one by one. Only root can make hosts; who is not root is told so.
cluster: $(VENV)/.classes $(VENV40)/.classes | ip
	KINESIS_EFO_TEST_EVERYTHING=1 $(RUN) $(PYTHON) -m pytest $(PYTEST_ARGS) tests/cluster -m "not spark40"
	KINESIS_EFO_TEST_EVERYTHING=1 $(RUN) $(VENV40)/bin/python -m pytest $(PYTEST_ARGS) tests/cluster -m "spark or spark40"

# A running job goes up, back to an earlier version that is really run, and up again. Needs the history of the repository.
upgrade: $(VENV)/.full $(VENV40)/.full java
	$(RUN) $(PYTHON) -m pytest $(PYTEST_ARGS) tests/upgrade
	$(RUN) $(VENV40)/bin/python -m pytest $(PYTEST_ARGS) tests/upgrade

# 30 minutes of faults, reshards and kills; SOAK_MINUTES= says otherwise.
soak: $(VENV)/.full java
	@$(RUN) $(PYTHON) -m tests.soak $(SOAK_ARGS)

# 1,000 random scenarios in virtual time, and 1,000 examples for each property; SEEDS=1000:3000 and EXAMPLES=300 say otherwise. What
# fails is named.
SEEDS := 0:1000
EXAMPLES := 1000
seeds: $(VENV)/.full
	PYTHONHASHSEED=0 KINESIS_EFO_SEEDS=$(SEEDS) $(RUN) $(PYTHON) -m pytest tests/chaos/test_seeds.py tests/chaos/test_seeds_find.py tests/chaos/test_seeds_program.py \
		tests/chaos/test_seeds_ends.py tests/chaos/test_seeds_batch.py tests/chaos/test_seeds_loss.py tests/chaos/test_seeds_producer.py \
		tests/chaos/test_seeds_tools.py -q $(PYTEST_ARGS)
	env -u CI KINESIS_EFO_EXAMPLES=$(EXAMPLES) $(RUN) $(PYTHON) $(call TEST,logical) -q tests/unit tests/emulator

# One-line faults in the modules of reading, and whether a test sees them. An hour or two for all; MUTANTS="kinesis/frames" for some,
# MUTANTS="--since main" for the lines that changed. tests/mutants.toml lists those that survive. Without Rust more of them do:
# nothing calls the native core then.
mutants: $(VENV)/.core
	@$(RUN) $(PYTHON) -m scripts.mutants $(MUTANTS)

# Wheel and source distribution of the library, and of the constructs.
dist: $(VENV)/.full
	@rm -f dist/*.whl dist/*.tar.gz
	$(PYTHON) -m hatchling build --directory dist
	cd packages/kinesis-efo-infra && ../../$(PYTHON) -m hatchling build --directory ../../dist

# The same, with the native core for this machine; needs Rust.
wheels: dist
	$(VENV)/bin/uv build --quiet --wheel --python $(PYTHON) --out-dir dist --build-constraints packages/kinesis-efo-core/maturin.txt packages/kinesis-efo-core

# Whether each wheel in dist does in an empty environment what its page begins with.
check-wheels: $(VENV)/.full java
	$(RUN) $(PYTHON) -m scripts.release_check dist

# Before a version is tagged. CONTRIBUTING.md says what is left to do then.
release-check: wheels
	@$(MAKE) --no-print-directory check-wheels

# About two minutes for each target; what breaks a promise is kept in tests/fuzz/corpus.
fuzz: $(VENV)/.core
	@scripts/setup venv $(VENV) --inexact --all-extras --group fuzz
	$(RUN) $(PYTHON) -m tests.fuzz $(FUZZ_ARGS)

# The same with the native core's code, and AddressSanitizer.
fuzz-core: $(VENV)/.full
	$(RUN) scripts/fuzz-core $(PYTHON) $(FUZZ_ARGS)

# Whether the native core stays within its memory, whatever it is given.
sanitize: $(VENV)/.full
	$(RUN) scripts/sanitize $(PYTHON) -q $(PYTEST_ARGS) tests/unit/records/test_core.py tests/unit/records/test_core_events.py tests/fuzz
