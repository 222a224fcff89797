"""Every fault of an environment file is found, at once, with file, path, value and rule."""

import re
from datetime import date
from pathlib import Path

import pytest

from infra.errors import SettingsError
from infra.settings import rules
from infra.settings.load import load_environment, load_environments
from tests.unit.infra.conftest import WORDS, Load, Write, rows

TODAY = date(2027, 1, 31)
# 250 bytes with 200,000 values: a few lines more would hang a reader. They are a value of a setting, as only what is wrong is shown.
ALIASES = "a0: &a0 [x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 6)
) + "environment: *a5\n"  # fmt: skip
# The same of mappings that are merged into others.
MERGES = re.sub(r"\[(\*[^]]+)]", r"{<<: [\1]}", ALIASES.replace("[x]", "{x: y}"))


def faults(path: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_environment(path)
    return [str(fault).removeprefix(f"{path}: ") for fault in caught.value.faults]


def many(what: str, count: int, entry: str) -> str:
    return f"{what}: {{{', '.join(f'number{n}: {entry}' for n in range(count))}}}"


READERS = "{streams: [orders]}"
FAULTY = r"""
environment: Test => environment: must match \^\[a-z\].*; got 'Test'
region: Ireland => region: must match .*; got 'Ireland'
account_id: 111122223333 => account_id: must be a text \(put it in quotes\); got 111122223333
colour: blue => colour: is not a known setting; Head has environment, .*; got 'blue'
protected: 'yes' => protected: must be a valid boolean; got 'yes'
key: 'arn:aws:kms:us-east-1:111122223333:key/0123abcd' => key: must be in region eu-west-1, .*; it is in us-east-1; got 'arn
alarms: {sns_topic: oncall} => alarms.sns_topic: must match .*; got 'oncall'
JOB, jobs.0.arguments: [--option, 'rolearn=arn:aws:iam::777788889999:role/x'], PIPELINE => jobs.0.arguments: needs sts:AssumeRole, .* name a boundary .* applications.lake.access.permissions_boundary; got 'rolearn
tags: {team: '${file("/proc/self/environ")}'} => tags.team: must have no \$\{ or %\{, which Terraform would evaluate
tags: {'aws:owner': x} => tags: a tag's key must .* 'aws:owner' does not keep
tags: {managed-by: me, Environment: prod} => tags: must not have Environment, managed-by: this code sets them, and permissions go by them
emr: {release_label: emr-7.13.0} => emr.release_label: must match \^emr-spark-.*; got 'emr-7.13.0'
emr: {log_days: 0} => emr.log_days: must be greater than or equal to 1; got 0
emr: {serverless: {subnets: [subnet-0123456789abcdef0], security_groups: [sg-0123456789abcdef0, sg-0123456789abcdef0, sg-0123456789abcdef0, sg-0123456789abcdef0, sg-0123456789abcdef0]}} => emr.serverless.security_groups: must have at most 4 items
emr: {serverless: {subnets: [subnet-0123456789abcdef0]}} => emr.serverless.subnets: must come together: subnets without security groups
emr: {serverless: {maximum_vcpu: 1}} => emr.serverless.maximum_vcpu: must be greater than .* 2; got 1
emr: {}, applications.lake.access: SERVERLESS, jobs: [a.py] => jobs.0: must be a mapping; got 'a.py'
JOB, jobs.0.application: lakes => jobs.0.application: names an application that this file does not have; got 'lakes'
JOB, jobs.0.program: /srv/a.py => jobs.0.program: must match .*; got '/srv/a.py'
JOB, emr: null => jobs.0: needs emr, which says where archives and programs are kept; say emr: {}; got 'a.py'
JOB, emr.serverless: null => jobs.0.target: is missing: say where lake runs, as target: serverless:<id>
JOB, applications.lake: {streams: [orders]} => jobs.0.target: is missing: say where lake runs, as target: cluster:<id>
JOB, applications.lake.access.application_id: 00f1 => jobs.0.target: is missing: the role of lake is for another application; say target: serverless:00f1
JOB, jobs.0.target: 'cluster:j-2AXXXXXXGAPLF' => jobs.0.target: must be serverless:<id>, as the access of lake is emr-serverless; got 'cluster:j-2AX
JOB, applications.lake.access: PARTNER => jobs.0.application: runs in another account, which declares its own jobs; got 'lake'
JOB, jobs.0.target: 'serverless:00f1' => jobs.0.target: must be left out: the role of lake .* access.application_id: 00f1 there; got
JOB, jobs.0.target: 'serverless:00f1', applications.lake.access.application_id: 00f2 => jobs.0.target: must be serverless:00f2: the role of lake is for that application only; got 'serverless:00f1'
JOB, emr.serverless: {maximum_vcpu: 5} => emr.serverless.maximum_vcpu: must be at least 6 for the job of lake: .*jobs.0.spark .default 2 and 4.; got 5
JOB, jobs.0.spark: {'spark.a=1 --py-files s3://evil/a.py --conf spark.b': '1'} => jobs.0.spark.* must match .*spark
region: eu-wst-1 => region: must be a region of AWS; is eu-west-1 meant.; got 'eu-wst-1'
JOB, jobs.0.arguments: [--output, 's3://elsewhere/raw'] => jobs.0.arguments: is out of reach of the job: .* applications.lake.access.policies; got 's3://elsewhere/raw'
JOB, jobs.0.spark: {spark.jars: 's3://lake/jars/a.jar,s3a://jars/b.jar'}, applications.lake.output: 's3://lake/jars' => jobs.0.spark.spark.jars: is out of reach of the job
streams: null => streams: must be a mapping with at least one entry
streams.Orders: {} => streams: a key must begin with a-z.*; got 'Orders'
streams.orders: [x] => streams.orders: must be a mapping; got \['x'\]
streams.orders.shards: 4 => streams.orders.shards: must not be given with mode on-demand.*; got 4
streams.orders.mode: provisioned => streams.orders.shards: is missing: mode provisioned needs
streams.orders.mode: provisioned, streams.orders.shards: 0 => streams.orders.shards: must be greater than .* 1; got 0
streams.orders.retention_hours: 12 => streams.orders.retention_hours: must be greater .* 24; got 12
streams.orders.max_record_kib: 20000 => streams.orders.max_record_kib: must be less .* 10240; got 20000
streams.orders.shard_metrics: [All] => streams.orders.shard_metrics.0: must be 'IncomingBytes'.*; got 'All'
streams.orders.name: my orders => streams.orders.name: must match .*; got 'my orders'
streams.orders.former_keys: {own: 2027-01-31} => streams.orders.former_keys: must not name its present key; got 'own'
streams.orders.former_keys: {'arn:aws:kms:us-east-1:111122223333:key/0123abcd': 2027-01-31} => streams.orders.former_keys.arn:\S+: must be in region eu-west-1, .*; it is in us-east-1
streams.orders.existing_arn: orders => streams.orders.existing_arn: must match .*; got 'orders'
streams.orders.existing_arn: 'arn:aws:kinesis:us-east-1:111122223333:stream/payments' => streams.orders.existing_arn: must be in region eu-west-1, as the environment; it is in us-east-1
streams.orders.existing_arn: FOREIGN => streams.orders: is in another account, whose owner registers the consumers: consumers must name one for lake
streams.orders.existing_arn: STREAM, streams.orders.consumers: {lake: 'FOREIGN/consumer/lake:1'} => streams.orders.consumers.lake: must be a consumer of arn:aws:kinesis:eu-west-1:111122223333:stream/payments; got
streams.again: {name: test-orders} => streams.again: must have a stream of its own; streams.orders has the same; got 'arn:aws:kinesis:.*test-orders'
applications.lake: null => applications.lake.streams: is missing
applications.lake.streams: [] => applications.lake.streams: must name at least one stream
applications.lake.streams: [order] => applications.lake.streams: names a stream that .* \(orders\); got 'order'
applications.lake.streams: [orders, orders] => applications.lake.streams: must name each stream once; got 'orders'
applications.lake.lag_threshold_seconds: 0 => applications.lake.lag_threshold_seconds: must be greater
applications.lake.name: the lake => applications.lake.name: must match .*; got 'the lake'
applications.lake.access: {kind: eks, namespace: n} => applications.lake.access.oidc_provider_arn: is missing: .* cluster: <name> for EKS Pod Identity
applications.lake.access: {kind: eks, namespace: n, oidc_provider_arn: OIDC} => applications.lake.access.service_account: is missing: .* say emr-containers-sa-
applications.lake.access: {kind: eks, namespace: n, oidc_provider_arn: OIDC, cluster: c} => applications.lake.access.cluster: must not come with oidc_provider_arn.*; got 'c'
applications.lake.access: {kind: eks, namespace: n, cluster: c, service_account: emr-*} => applications.lake.access.service_account: must be a whole name: .*; got 'emr-\*'
applications.lake.access: &pod {kind: eks, namespace: n, cluster: c, service_account: s}, applications.pond: {streams: [orders], access: *pod} => applications.pond.access.service_account: must be associated with one role; applications.lake.access .*'c/n/s'
applications.lake.access: {kind: other-account, principals: ['*']} => applications.lake.access.principals.0: must match
applications.lake.import_lease_table: true => applications.lake.lease_table: is missing: import_lease_table needs
applications.lake.lease_table: x => applications.lake.lease_table: must match .*; got 'x'
applications.lake.name: nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn, applications.lake.access: EC2 => applications.lake: an IAM role's name has at most 64 characters; say access.role_name:; got 'kinesis-efo-test-nnn
applications.lake.lease_table: shared, applications.pond: {streams: [orders], lease_table: shared} => applications.pond: must have a lease table of its own; applications.lake has the same; got 'shared'
applications.lake.moved_from: pond => applications.lake.name: is missing: moved_from needs the name it has in AWS
applications.lake.moved_from: pond, applications.lake.name: lake, applications.pond: {streams: [orders]} => applications.lake.moved_from: must be a key that no entry has
streams.orders.key: aws-managed, applications.lake.access: PARTNER => streams.orders.key: must be own .* cannot decrypt .* \(applications.lake reads from another account\); got 'aws-managed'
applications.lake.writes: [orders], applications.lake.access: PARTNER => applications.lake.writes: must not be given with access other-account
applications.lake.batch: true, applications.lake.access: PARTNER => applications.lake.batch: must not be given with access other-account
streams.orders.existing_arn: FOREIGN, streams.orders.consumers: {lake: 'FOREIGN/consumer/lake:1'}, applications.lake.writes: [orders] => applications.lake.writes: must be in this account
environment: prod, protected: false => protected: must not be false in prod, which is always protected; say protected: true; got False
applications.lake.polling: only, streams.orders: {existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}} => streams.orders.consumers.lake: must not be given: lake says polling: only
# A name of a project does not begin like another one's, nor as AWS' own.
project: a-b => project: must match \^\(kinesis-efo
project: lllllllllllllllll => project: must match
project: kinesis => project: must be another name: those of kinesis-efo begin with kinesis- as well; got 'kinesis'
project: awslake => project: must be another name: AWS keeps it
project: sg => project: must be another name: AWS keeps it
project: lake, applications: {aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: {streams: [orders], access: EC2}} => applications.a+: an IAM role's name has at most 64 characters.*got 'lake-test-a
# GitHub's names: others would open the roles to somebody else.
PIPELINE, pipeline.issuer: 'https://token.actions.githubusercontent.com' => pipeline.issuer: must match
PIPELINE, pipeline.issuer: evil.example => pipeline.issuer: must match
PIPELINE, pipeline.repository: acme => pipeline.repository: must match
PIPELINE, pipeline.repository: acme/* => pipeline.repository: must match
PIPELINE, pipeline.repository: 'acme/lake:ref:x' => pipeline.repository: must match
# Manifests.
manifest_store: s3 => manifest_bucket: is missing: manifest_store s3 needs a bucket; .* emr: {}
manifest_bucket: manifests => manifest_bucket: must come with manifest_store: s3; got 'manifests'
manifest_store: s3, manifest_bucket: 's3://b' => manifest_bucket: must match .*; got 's3://b'
# Locations: OURS has an output, a checkpoint and a key for them, which its job's arguments name.
OURS, applications.lake.output: lake/raw => applications.lake.output: must be s3://bucket/prefix.*; got 'lake/raw'
OURS, applications.lake.output: null, applications.lake.checkpoint: null => applications.lake.output_key: must come with output or checkpoint
OURS, applications.lake.checkpoint: 's3://lake/raw' => applications.lake.checkpoint: must not be the output itself; give it a prefix
OURS, applications.lake.checkpoint: null => jobs.0.arguments: refers to what applications.lake does not have: say checkpoint: s3://
OURS, applications.lake.output: null => jobs.0.spark.spark.sql.warehouse.dir: refers to what applications.lake does not have: say output: s3://
OURS, applications.lake.access: PARTNER => applications.lake.output: must not be given with access other-account
# Places of two applications are apart.
OURS, applications.pond: {streams: [orders], checkpoint: 's3://lake/raw/_checkpoints'} => applications.pond.checkpoint: must be apart
OURS, applications.pond: {streams: [orders], output: 's3://state-of-lake/a'} => applications.pond.output: must be apart
# What is handed over or kept is not declared.
handed_over: [orders] => handed_over: is still declared here; .* existing_arn there.*; got 'orders'
retain: [gone], handed_over: [gone] => handed_over: must name each stream once; got 'gone'
handed_over: [shop], streams.orders: {name: o, moved_from: shop} => handed_over: must not be a key that an entry is moved from; got 'shop'
environment: pipeline => environment: must not be pipeline, as what pipelines need is called; use another name
"""
ADVANTAGE = "on_demand_advantage: true, "
PROVISIONED = "streams.orders: {mode: provisioned, shards: 1}, "


def reading(count: int) -> str:
    """An application that reads so many streams."""
    return f"{many('streams', count, '{}')}, applications.lake.streams: {[f'number{n}' for n in range(count)]}"


TOO_MANY = rf"""
tags: {{owner: {"x" * 257}}} => tags: a tag's value must have at most 256 characters; that of 'owner' has 257
{many("tags", 41, "''")} => tags: must be at most 40 tags
JOB, jobs.0.arguments: [{"x" * 5000}] => applications.lake: its job must fit the standard parameter tier .4096 b
{many("applications", 21, READERS)} => .*20 consumers \(50 with on_demand_advantage: true\); got '21 c
{ADVANTAGE}{many("applications", 51, READERS)} => streams.orders: a stream has at most 50 consumers
{ADVANTAGE}{PROVISIONED}{many("applications", 21, READERS)} => streams.orders: .* most 20 consumers; got '21 cons
streams.orders.other_consumers: {[f"o{n}" for n in range(20)]} => streams.orders: .* 20 cons.*; got '21 consumers
{reading(20)} => .*lake: its manifest must fit the standard .* \(4096 bytes\); say manifest_tier: advanced; got '4\d+ b
manifest_tier: advanced, {reading(40)} => .*lake: its policy must fit .* \(6144 characters\); split the application
"""
PRODUCTION = [
    (f"environment: {name}", f"protected: is missing: {name} looks like production; say protected: true, or false")
    for name in ("prod", "production", "prd", "live", "prod-eu", "eu-production", "shop-live-2", "prod2")
]


@pytest.mark.parametrize(("changes", "message"), [*rows(FAULTY + TOO_MANY), *PRODUCTION])
def test_fault_names_path_value_and_rule(changes: str, message: str, write: Write) -> None:
    found = faults(write(changes))
    assert any(re.match(message, fault) for fault in found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read as YAML"),
        ("streams: {a: {}}\nstreams: {b: {}}", "key 'streams' is written twice"),
        ("- a", "must be a mapping with environment, region, streams, applications"),
        ("", "must be a mapping"),
        ("environment: !!python/object:os.system {}", "cannot be read as YAML"),
        ("? [a, b]\n: c", "['a', 'b'] cannot be a key"),
        ("environment: 2026-13-45", "cannot be read as YAML"),
        ("environment: 'a\0b'", "cannot be read as YAML"),
        pytest.param("a: " + "[" * 5000, "cannot be read as YAML", id="deep"),
        (ALIASES, "it has more than 100,000 values once aliases are written out; write less"),
        (MERGES, "it has more than 100,000 values once aliases are written out; write less"),
        ("a: &a [*a]", "an alias refers to itself"),
    ],
)
def test_unreadable_file_is_a_fault(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(text, encoding="utf-8")
    assert any(message in fault for fault in faults(path))


def test_file_name_must_match_environment(write: Write, tmp_path: Path) -> None:
    path = write().rename(tmp_path / "other.yaml")
    assert faults(path) == ["environment: must be 'other', as the file is called; got 'test'"]


def test_deleted_file_of_protected_environment_is_refused(write: Write) -> None:
    path = write()
    path.with_name("prod.declared").write_text("aws_kinesis_stream.orders prod-orders\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"prod\.declared: lists what prod declared, .* Bring prod\.yaml back"):
        load_environments(path.parent)


def test_faults_of_all_files_come_together(write: Write, tmp_path: Path) -> None:
    write("environment: one, region: x")
    write("environment: two, region: y")
    with pytest.raises(SettingsError) as caught:
        load_environments(tmp_path)
    assert [Path(fault.file).name for fault in caught.value.faults] == ["one.yaml", "two.yaml"]
    assert str(caught.value).startswith("2 faults:\n")


FILES = r"""
# A stream, a consumer, a table, a role or a policy is declared once.
environment: one, streams.orders.name: orders; environment: two, streams.orders.name: orders => two.yaml streams.orders: is declared by one.yaml streams.orders too; each must be declared once
environment: dev, streams.orders: {name: old, import_existing: true}; environment: qa, streams.orders: {name: old, import_existing: true} => is declared by dev.yaml streams.orders too
environment: dev, streams.orders.existing_arn: STREAM, applications.lake.polling: only; environment: qa, streams.orders.existing_arn: STREAM, applications.lake.polling: only => valid
environment: one, applications: {a: READER}; environment: two, region: us-east-1, applications: {a: READER} => 111122223333:role/reader'$
environment: x-y, applications: {z: {streams: [orders]}}; environment: x, region: us-east-1, applications: {y-z: {streams: [orders]}} => 111122223333:policy/kinesis-efo-x-y-z'$
environment: dev, streams.orders.existing_arn: STREAM; environment: qa, streams.orders.existing_arn: STREAM => qa.yaml applications.lake.streams orders: is declared by dev.yaml applications.lake.streams orders
environment: dev, streams.orders.existing_arn: STREAM; environment: qa, streams.orders.existing_arn: STREAM, applications.lake.name: lake-qa => valid
environment: dev, streams.orders.name: payments; environment: qa, streams.orders.existing_arn: STREAM => a stream has one consumer of a name; give one of the applications another `name:`
# A service account has one role; those of EMR on EKS are named after the role.
environment: one, POD, state_bucket: s-1; environment: two, POD, state_bucket: s-2 => two.yaml applications.lake: is declared by one.yaml .*c/n/s
environment: one, EMR, state_bucket: s-1; environment: two, EMR, state_bucket: s-2 => valid
# A consumer has one reader.
environment: dev, GIVEN; environment: qa, GIVEN => qa.yaml streams.orders.consumers.lake: is read by dev.yaml streams.orders.consumers.lake too
environment: dev, streams.orders.name: payments; environment: qa, GIVEN => qa.yaml streams.orders.consumers.lake: is read by dev.yaml applications.lake.streams orders too
environment: owner, streams.orders.name: payments, applications.lake.access: PARTNER; environment: reader, account_id: '777788889999', GIVEN => valid
streams.orders: {existing_arn: STREAM, consumers: {lake: 'STREAM/consumer/lake:1', pond: 'STREAM/consumer/lake:1'}}, applications.pond: {streams: [orders]} => streams.orders.consumers.pond: is given to streams.orders.consumers.lake too.*got 'STREAM/consumer/lake'$
streams.orders: {existing_arn: STREAM, consumers: {pond: 'STREAM/consumer/lake:1'}}, applications: {lake: {streams: [orders]}, pond: {streams: [orders]}} => streams.orders.consumers.pond: is declared by applications.lake.streams orders too
# Permissions by a prefix of names keep names of one account apart, whatever the region.
environment: dev, PIPELINE; environment: dev-2 => dev-2.yaml environment: begins like dev.*use another name or account
environment: dev, PIPELINE; environment: dev-2, account_id: '444455556666' => valid
environment: dev; environment: dev-2 => valid
environment: dev, project: lake, SHARED; environment: dev-2, project: pond, SHARED; environment: lake, SHARED => valid
environment: dev, PIPELINE; environment: dev-eu, streams: {o: {}}, applications.lake.streams: [o], PIPELINE, SHARED => begins like dev, whose role for applying could change what belongs to dev-eu
# One bootstrap stack declares a bucket and an account's provider.
environment: dev, PIPELINE; environment: int, SHARED => valid
environment: dev, PIPELINE; environment: int, SHARED, pipeline.oidc_provider_arn: null => int.yaml pipeline.oidc_provider_arn: is missing: the bootstrap stack of dev declares the OIDC provider
environment: dev, PIPELINE; environment: int, SHARED, pipeline.adopt_state_bucket: false => int.yaml pipeline.adopt_state_bucket: is missing: the bootstrap stack of dev declares state
# An environment is deployed after another one.
environment: dev, PIPELINE, pipeline.after: qa; environment: qa, SHARED, pipeline.after: dev => pipeline.after: must be another environment with a pipeline, .*; got '(dev|qa)'
# What jobs write is apart from states, programs and what other jobs write.
environment: one, state_bucket: states, emr.artifacts_bucket: jobs; environment: two, state_bucket: states, emr.artifacts_bucket: jobs => ^two.yaml emr.artifacts_bucket: must be a bucket of its own; one has the same; got 'jobs'$
environment: two, state_bucket: states; environment: three, emr.artifacts_bucket: states => ^three.yaml: must not be used by jobs, because it holds the state of two; use another bucket; got 'states'$
environment: one, applications.lake.output: 's3://lake/raw', state_bucket: s-1; environment: two, applications.lake.output: 's3://lake/raw/two', state_bucket: s-2 => two.yaml applications.lake.output: must be apart .* one.yaml
environment: one, applications.lake.checkpoint: 's3://lake/raw', state_bucket: s-1; environment: two, applications.lake.checkpoint: 's3://lake/raw', state_bucket: s-2 => two.yaml applications.lake.checkpoint: must be apart .* one.yaml
emr.artifacts_bucket: artifacts, applications.lake.output: 's3://artifacts/raw' => test.yaml applications.lake.output: must be in another bucket: .* programs and logs of test
applications.lake.output: 's3://state/raw' => test.yaml: must not be used by jobs, because it holds the state of test
manifest_store: s3, manifest_bucket: state => test.yaml: must not be used by jobs, because it holds the state of test
manifest_store: s3, manifest_bucket: lake, applications.lake.output: 's3://lake/kinesis-efo' => lake.output: must be apart .* test.yaml manifest_store is s3://lake/kin
"""
GIVEN = "streams.orders: {existing_arn: STREAM, consumers: {lake: 'STREAM/consumer/lake:1'}}"
EMR = "applications.lake.access: {kind: eks, cluster: c, namespace: n}"
POD = f"{EMR}, applications.lake.access.service_account: s"
READER = "{streams: [orders], access: {kind: emr-ec2, role_name: reader}}"


@pytest.mark.parametrize(("texts", "message"), rows(FILES))
def test_files_of_an_account_go_together(texts: str, message: str, write: Write, tmp_path: Path) -> None:
    files = [
        each.replace("GIVEN", GIVEN).replace("READER", READER).replace("POD", POD).replace("EMR", EMR)
        for each in texts.split("; ")
    ]
    for text in files:
        write(text)
    if message == "valid":
        assert len(load_environments(tmp_path)) == len(files)
        return
    with pytest.raises(SettingsError) as caught:
        load_environments(tmp_path)
    for fault in caught.value.faults:
        assert re.search(message.replace("STREAM", WORDS["STREAM"]), str(fault))


@pytest.mark.parametrize(
    ("name", "protected"),
    [("production", True), ("prod-eu", False), ("prod", True)]
    + [(name, None) for name in ("dev", "product", "reproduction", "delivery", "staging")],
)
def test_protection_follows_the_file(name: str, protected: bool | None, load: Load) -> None:
    given = {} if protected is None else {"protected": protected}
    assert load(environment=name, **given).protected is bool(protected)


WARNINGS = r"""
# Other owners must act.
streams.orders: {existing_arn: STREAM, key: KEY}, applications.lake.access: PARTNER => .*its owner must allow kinesis:DescribeStreamSummary, kinesis:ListShards.*the policy of key KEY must allow them kms:Decrypt
# Only AWS knows.
emr.release_label: emr-spark-8.9.1 => emr.release_label: emr-spark-8.9.1 is not known here .emr-spark-8.0.0, emr-spark-8.1.0.: `make doctor` asks AWS whether there is one$
region: eu-west-9 => region: eu-west-9 is not known to the installed botocore: `make doctor` asks AWS
key: THEIR_KEY => key: THEIR_KEY is a key of another account, whose policy must say so: the
applications.lake: {streams: [orders], output: 's3://lake/raw', output_key: THEIR_KEY} => applications.lake.output_key: THEIR_KEY is a key of another account
# No reader needs the former key any more.
streams.orders: {key: KEY, former_keys: {own: 2027-01-30}} => streams.orders.former_keys: readers needed own until 2027-01-30, and can do without it now: remove it$
streams.orders: {key: KEY, former_keys: {own: 2027-01-31}} => $
"""


@pytest.mark.parametrize(("changes", "warning"), rows(WARNINGS))
def test_what_the_file_cannot_decide_is_a_warning(load: Load, changes: str, warning: str) -> None:
    found = list(rules.warnings(load(changes), TODAY))
    expected = re.sub(r"\b(THEIR_)?KEY\b", lambda name: WORDS[name[0]], warning)
    assert re.match(expected, "; ".join(found)), found
    assert len(found) == (2 if "PARTNER" in changes else 0 if warning == "$" else 1)


VALID = r"""
# A job reaches its output, its bucket of artifacts, and what a policy of its own may allow.
JOB, applications.lake.output: 's3://lake/raw', jobs.0.arguments: [--output, 's3a://lake/raw', 's3://lake/raw/a,s3://lake/raw/b/', $output/c, 's3://kinesis-efo-test-111122223333/programs/x.jar']
JOB, applications.lake.access.policies: ['arn:aws:iam::111122223333:policy/extra'], jobs.0.arguments: ['s3://elsewhere/x']
JOB, applications.lake.access: {kind: policy}, jobs.0.arguments: ['s3://elsewhere/x'], jobs.0.target: 'cluster:j-1'
# Places of applications are apart; a checkpoint may lie below its own output.
OURS, applications.pond: {streams: [orders], output: 's3://lake/raw-2', checkpoint: 's3://lake/_checkpoints'}
OURS, applications.lake.checkpoint: 's3://lake/raw/_checkpoints'
# The longest name of a role.
project: lak, applications: {aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: {streams: [orders], access: EC2}}
# It assumes a role without a pipeline, or within a boundary of its own.
JOB, jobs.0.arguments: ['roleArn=arn:aws:iam::777788889999:role/x']
JOB, jobs.0.arguments: ['roleArn=arn:aws:iam::777788889999:role/x'], PIPELINE, applications.lake.access.permissions_boundary: 'arn:aws:iam::111122223333:policy/bound'
"""


@pytest.mark.parametrize("changes", [left for left, _ in rows(VALID)])
def test_job_may_use_what_its_access_allows(changes: str, load: Load) -> None:
    load(changes)
