"""What roles and jobs of an environment may do, and who may assume the roles, evaluated as IAM does it."""

import json
import re
from typing import Any

import pytest
import yaml

from infra.settings.literals import literal_policy
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.permissions.scheduling import start_jobs
from kinesis_efo_infra.iam import FIND_UPLOADS, REGISTRATION, USE_OBJECTS, policy_json
from tests.support.iam import Statement, allowed
from tests.unit.infra.conftest import FOREIGN, STREAM, Load, attempts, in_json, policy, scenarios, tags

ROLE = "arn:aws:iam::111122223333:role/kinesis-efo-test"
APPLICATION = "arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00abc"
OURS = {"environment": "test", "managed-by": "kinesis-efo"}
TEAM, TOPIC = (f"arn:aws:sns:eu-west-1:{each}" for each in ("111122223333:team", "777788889999:oncall"))
CONTEXTS = {
    "ours": tags("Resource"),
    "new": tags("Request"),
    "theirs": tags("Resource", "prod"),
    "state": tags("Resource", managed_by="kinesis-efo-bootstrap") | {"kms:ViaService": "s3.us-east-1.amazonaws.com"},
    "billing": {"aws:ResourceTag/environment": "billing"},
    **{each: {"kms:ViaService": f"{each}.eu-west-1.amazonaws.com"} for each in ("s3", "ssm")},
    **{each: {"s3:prefix": prefix} for each, prefix in (("root", ""), ("lake", "kinesis-efo/test/lake"), ("raw", "raw/x"))},
    **{
        each: {"iam:PassedToService": f"{service}.amazonaws.com"}
        for each, service in {"pods": "pods.eks", "scheduler": "scheduler", "serverless": "emr-serverless", "ec2": "ec2"}.items()
    },
    **{f"as-{each}": {"aws:PrincipalArn": f"{ROLE}-{each}"} for each in ("jobs@schedules", "lake")},
    **{
        each: {"cloudwatch:AlarmActions": action}
        for each, action in {
            "silent": "",
            "team": TEAM,
            "topic": TOPIC,
            "terminate": f"arn:aws:automate:eu-west-1:ec2:terminate,{TEAM}",
        }.items()
    },
    **{each: {"cloudwatch:namespace": each} for each in ("kinesis-efo/test/job", "kinesis-efo/test2/job")},
    "bounded": {"iam:PermissionsBoundary": "arn:aws:iam::111122223333:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-boundary"},
    "buckets": {"iam:PolicyARN": "arn:aws:iam::111122223333:policy/buckets"},
    "own-policy": {"iam:PolicyARN": "arn:aws:iam::111122223333:policy/kinesis-efo-test-lake"},
    "called": {"aws:CalledViaLast": "ops.emr-serverless.amazonaws.com"},
}  # fmt: skip
WORDS = {
    "ADOPTED": STREAM,
    "FOREIGN": FOREIGN,
    "REGISTER": ",".join(REGISTRATION),
    "OBJECTS": ",".join(USE_OBJECTS),
    "UPLOADS": ",".join(FIND_UPLOADS),
    "ROLE": ROLE,
    "APPLICATION": APPLICATION,
    "CHANGE": "s3:PutObject,s3:DeleteObject,s3:DeleteObjectVersion",
    "BUCKET": "kinesis-efo-test-111122223333",
    "SCHEDULES": "scheduler:CreateSchedule,scheduler:UpdateSchedule,scheduler:DeleteSchedule,scheduler:GetSchedule",
    "GROUPS": "scheduler:CreateScheduleGroup,scheduler:DeleteScheduleGroup,scheduler:TagResource,scheduler:ListTagsForResource",
    "SCHEDULED": "applications.lake.continuous: false, jobs.0.arguments: [--available-now], jobs.0.program: jobs/archive.py, jobs.0.schedule: rate(15 minutes)",
    "GIVEN": "arn:aws:kms:eu-west-1:111122223333:key/given",
}

# A scenario, whose permissions these are (all of several must allow it), and settings; then attempts and their contexts.
PERMISSIONS = r"""
pipeline changes its names only | apply | PIPELINE, streams: {orders: {}, named: {name: shop}, payments: {existing_arn: STREAM}, events: {existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}}}, applications.own: {streams: [orders], lease_table: OldTable, access: {kind: emr-ec2, role_name: old-role, policies: ['arn:aws:iam::111122223333:policy/buckets']}}
    + iam:AttachRolePolicy role/old-role | ours + bounded + buckets
    - iam:AttachRolePolicy role/old-role | ours + bounded
    + kinesis:UpdateShardCount stream/shop | ours
    - kinesis:UpdateShardCount,kinesis:DeleteStream ADOPTED | ours + new
    - kinesis:UpdateShardCount,kinesis:DeleteStream,kinesis:RegisterStreamConsumer FOREIGN | ours + new
    + kinesis:RegisterStreamConsumer ADOPTED | new
    + dynamodb:UpdateTable table/OldTable | ours
    + iam:CreateRole role/old-role | new + bounded
    - iam:CreateRole role/old-role | new
    - iam:CreateRole role/kinesis-efo-other-lake | new + bounded
    - s3:DeleteObject state/kinesis-efo/test.tfstate
    - s3:PutBucketPolicy,s3:DeleteBucket,s3:PutBucketVersioning,s3:PutLifecycleConfiguration state
    - iam:PutRolePolicy,iam:DeleteRolePermissionsBoundary,iam:CreateUser ROLE-lake | ours + new + bounded
pipeline changes what is declared | apply | JOB, PIPELINE, emr.serverless: NETWORK
    + kinesis:DeleteStream,kinesis:PutResourcePolicy stream/test-orders | ours
    + dynamodb:DeleteTable,dynamodb:Scan table/kinesis-efo-test-lake | ours
    + ssm:PutParameter parameter/kinesis-efo/test/lake | ours
    + ssm:PutParameter parameter/kinesis-efo/test/lake/job | ours
    + kms:PutKeyPolicy,kms:ScheduleKeyDeletion key/own | ours
    + kms:UpdateAlias,kms:DeleteAlias alias/kinesis-efo/test/orders | ours
    + cloudwatch:DeleteAlarms alarm:kinesis-efo/test/lake/x | ours
    + cloudwatch:PutDashboard arn:aws:cloudwatch::111122223333:dashboard/kinesis-efo-test | ours
    + ec2:DeleteSecurityGroup security-group/sg-1 | ours
    + iam:DeleteInstanceProfile instance-profile/kinesis-efo-test-lake | ours
    + iam:DeleteRole,iam:TagRole,iam:UntagRole,iam:UpdateAssumeRolePolicy,iam:UpdateRole,iam:PutRolePermissionsBoundary ROLE-lake | ours + bounded
    + iam:AttachRolePolicy,iam:DetachRolePolicy ROLE-lake | ours + bounded + own-policy
    + iam:CreatePolicy,iam:TagPolicy policy/kinesis-efo-test-lake | new
    + iam:CreatePolicyVersion,iam:DeletePolicyVersion,iam:DeletePolicy,iam:UntagPolicy,iam:TagPolicy policy/kinesis-efo-test-lake | ours
    + s3:PutBucketPolicy BUCKET
    + emr-serverless:DeleteApplication APPLICATION | ours
    + emr-serverless:CancelJobRun APPLICATION/jobruns/1 | ours
jobs use their databases and log groups | boundary | JOB, pipeline: {repository: acme/lake, databases: [lake]}
    + glue:GetTable,glue:UpdateTable table/lake/t
    + logs:PutLogEvents log-group:/kinesis-efo/test/x
stream named like ours needs our tags | apply | PIPELINE
    - kinesis:DeleteStream stream/test-billing
    - kms:PutKeyPolicy key/0123abcd
    - emr-serverless:DeleteApplication APPLICATION
    + kinesis:CreateStream stream/test-billing | new
    - kinesis:AddTagsToStream stream/test-billing | theirs + new
    # AWS cannot tell a new stream from an old one that has neither tag: the page says so.
    + kinesis:AddTagsToStream stream/test-billing | new
warm throughput of a file may change | apply | PIPELINE, on_demand_advantage: true, streams.orders.warm_throughput_mib: 100
    + kinesis:UpdateStreamWarmThroughput stream/test-orders | ours
warm throughput of no file stays | apply | PIPELINE
    - kinesis:UpdateStreamWarmThroughput stream/test-orders | ours
imported stream may have any tags | apply | PIPELINE, streams.orders.import_existing: true
    + kinesis:AddTagsToStream stream/test-orders | billing + new
    - kinesis:DeleteStream stream/test-orders | billing + new
alarm notifies and changes nothing | apply | PIPELINE
    + cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours + silent
    + cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours + team
    - cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours + topic
    - cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours + terminate
alarm notifies the topic of the settings | apply | PIPELINE, alarms.sns_topic: 'arn:aws:sns:eu-west-1:777788889999:oncall'
    + cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours + topic
jobs change no programs, metrics and roles | boundary | JOB, PIPELINE
    - s3:PutObject,s3:DeleteObject BUCKET/programs/1/job.py
    - s3:PutObject,s3:DeleteObject BUCKET/environments/1/x.tar.gz
    + s3:PutObject,s3:DeleteObject,s3:GetObject BUCKET/logs/x
    + s3:GetObject BUCKET/environments/1/x.tar.gz
    + cloudwatch:PutMetricData * | kinesis-efo/test/job
    - cloudwatch:PutMetricData * | kinesis-efo/test2/job
    - cloudwatch:PutMetricData *
    - sts:AssumeRole role/x
    - REGISTER stream/test-orders | ours
    - s3:GetObject state/kinesis-efo/test.tfstate
jobs start where the environment has them | run-jobs | PIPELINE, emr: {}, applications: {lake: {streams: [orders], access: SERVERLESS}, pond: {streams: [orders], access: EC2}}, jobs: [{application: lake, program: a.py}, {application: pond, program: a.py, target: 'cluster:j-1'}]
    + elasticmapreduce:AddJobFlowSteps cluster/j-1
    - elasticmapreduce:AddJobFlowSteps cluster/j-2
    - s3:PutObject state/kinesis-efo/test.tfstate
    + emr-serverless:StartJobRun APPLICATION | ours
    - emr-serverless:StartJobRun APPLICATION | theirs
    + emr-serverless:CancelJobRun APPLICATION/jobruns/00def | ours
    - ec2:DeleteSecurityGroup security-group/sg-0123456789abcdef0 | ours
group of workers is changed by its tags | run-jobs | PIPELINE, emr.serverless: NETWORK
    + ec2:AuthorizeSecurityGroupIngress,ec2:RevokeSecurityGroupEgress,ec2:DeleteSecurityGroup security-group/sg-0123456789abcdef0 | ours
    - ec2:AuthorizeSecurityGroupIngress,ec2:RevokeSecurityGroupEgress,ec2:DeleteSecurityGroup security-group/sg-0123456789abcdef0 | theirs
    - ec2:CreateNetworkInterface network-interface/eni-0123456789abcdef0
    + ec2:CreateNetworkInterface network-interface/eni-0123456789abcdef0 | called
plans see the network of workers | plan | PIPELINE, emr.serverless: NETWORK
    + ec2:DescribeSubnets *
plans see no network otherwise | plan | PIPELINE, emr: {}
    - ec2:DescribeSubnets *
job uses objects below its locations | job+boundary | OURS, PIPELINE
    + OBJECTS lake/raw
    + OBJECTS state-of-lake/a/b/x
    + UPLOADS lake | root
    + s3:ListBucket lake | raw
    - s3:ListBucket lake | root
    - s3:DeleteBucket lake
    - OBJECTS lake/other/x
    - OBJECTS lake/raw-2/x
    + kms:Decrypt,kms:GenerateDataKey arn:aws:kms:eu-west-1:111122223333:key/lake | s3
    - kms:Decrypt,kms:GenerateDataKey arn:aws:kms:eu-west-1:111122223333:key/lake
    - kms:Decrypt,kms:GenerateDataKey arn:aws:kms:eu-west-1:111122223333:key/lake | ssm
    - kms:Decrypt,kms:GenerateDataKey arn:aws:kms:eu-west-1:111122223333:key/lake-2 | s3
job reaches nothing of other applications | job | streams.clicks: {}
    - ssm:GetParameter parameter/kinesis-efo/test/other
    - dynamodb:Scan table/kinesis-efo-test-other
    - kinesis:GetShardIterator stream/test-clicks
    - kinesis:PutRecord stream/test-orders
request without a prefix lists nothing | job | OURS
    - s3:ListBucket lake
job loads its manifest and writes none | job | manifest_store: s3, manifest_bucket: manifests
    + s3:GetObject manifests/kinesis-efo/test/lake
    - s3:PutObject,s3:DeleteObject manifests/kinesis-efo/test/lake
    - s3:GetObject manifests/kinesis-efo/test/lake-2
boundary leaves a job its manifest | boundary | manifest_store: s3, manifest_bucket: manifests, PIPELINE, emr: {}
    + s3:GetObject manifests/kinesis-efo/test/lake
    - s3:PutObject manifests/kinesis-efo/test/lake
    - s3:GetObject manifests/kinesis-efo/prod/lake
manifest among the artifacts cannot be written | boundary | manifest_store: s3, PIPELINE, emr: {}
    + s3:GetObject BUCKET/kinesis-efo/test/lake
    - s3:PutObject,s3:DeleteObject BUCKET/kinesis-efo/test/lake
pipeline writes manifests and nothing else | apply | manifest_store: s3, manifest_bucket: manifests, PIPELINE
    + CHANGE manifests/kinesis-efo/test/lake
    - CHANGE manifests/kinesis-efo/prod/lake
    + s3:ListBucket,s3:ListBucketVersions manifests | lake
    - s3:ListBucket,s3:ListBucketVersions manifests | root
    + kms:GenerateDataKey key/own | ours + s3
    - kms:GenerateDataKey key/own | ours
    - s3:PutBucketPolicy manifests
given key is used through S3 only | apply | manifest_store: s3, manifest_bucket: manifests, PIPELINE, key: 'arn:aws:kms:eu-west-1:111122223333:key/given'
    + kms:GenerateDataKey GIVEN | s3
    - kms:GenerateDataKey GIVEN
    - kms:PutKeyPolicy GIVEN
uploads use the given key | run-jobs | emr: {}, PIPELINE, key: 'arn:aws:kms:eu-west-1:111122223333:key/given'
    + kms:GenerateDataKey GIVEN | s3
    - kms:GenerateDataKey GIVEN-2 | s3
    - kms:GenerateDataKey GIVEN
plans read manifests and nothing else | plan | manifest_store: s3, manifest_bucket: manifests, PIPELINE, emr: {}
    - CHANGE manifests/kinesis-efo/test/lake
    + s3:GetObject manifests/kinesis-efo/test/lake
    + kms:Decrypt key/own | ours + s3
    + s3:GetObject state/kinesis-efo/test.tfstate
    + s3:GetBucketPolicy BUCKET
    - s3:GetObject BUCKET/programs/x
    - kinesis:GetRecords,kinesis:SubscribeToShard stream/test-orders | ours
    - dynamodb:Scan,dynamodb:GetItem table/kinesis-efo-test-lake | ours
state of another region is decrypted there | plan | PIPELINE, state_region: us-east-1
    + kms:Decrypt arn:aws:kms:us-east-1:111122223333:key/x | state
    - kms:Decrypt key/x | state
state of another region is encrypted there | apply | PIPELINE, state_region: us-east-1
    + kms:GenerateDataKey arn:aws:kms:us-east-1:111122223333:key/x | state
    - kms:GenerateDataKey key/x | state
pipeline associates its roles in named clusters | apply | PIPELINE, applications.lake.access: {kind: eks, cluster: analytics, namespace: jobs, service_account: lake}
    + eks:CreatePodIdentityAssociation cluster/analytics | new
    # Without tags, an association would be nobody's.
    - eks:CreatePodIdentityAssociation cluster/analytics
    - eks:CreatePodIdentityAssociation cluster/other | new
    + eks:TagResource podidentityassociation/analytics/a-1 | new
    - eks:TagResource podidentityassociation/analytics/a-1 | new + theirs
    + eks:DeletePodIdentityAssociation,eks:UpdatePodIdentityAssociation,eks:UntagResource podidentityassociation/analytics/a-1 | ours
    - eks:DeletePodIdentityAssociation,eks:UpdatePodIdentityAssociation,eks:UntagResource podidentityassociation/analytics/a-1 | theirs
    - eks:DeletePodIdentityAssociation,eks:UpdatePodIdentityAssociation,eks:UntagResource podidentityassociation/analytics/a-1
    + iam:PassRole ROLE-lake | pods
    - iam:PassRole role/admin | pods
plans look at associations only | plan | PIPELINE, applications.lake.access: {kind: eks, cluster: analytics, namespace: jobs, service_account: lake}
    + eks:DescribePodIdentityAssociation podidentityassociation/analytics/a-1
    - eks:CreatePodIdentityAssociation cluster/analytics | new
without pods nothing is associated | apply | PIPELINE
    - eks:CreatePodIdentityAssociation cluster/analytics | new
    - iam:PassRole ROLE-lake | pods
pipeline sets schedules of its group only | apply | JOB, SCHEDULED, PIPELINE
    + SCHEDULES schedule/kinesis-efo-test/lake
    - SCHEDULES schedule/default/lake
    + GROUPS schedule-group/kinesis-efo-test
    - GROUPS schedule-group/kinesis-efo-test-2
    + iam:PassRole ROLE-jobs@schedules | scheduler
    # A job's role is not Scheduler's.
    - iam:PassRole ROLE-lake | scheduler
    + iam:CreateRole ROLE-jobs@schedules | new + bounded
plans look at schedules only | plan | JOB, SCHEDULED, PIPELINE
    + scheduler:GetScheduleGroup schedule-group/kinesis-efo-test
    - scheduler:UpdateSchedule schedule/kinesis-efo-test/lake
schedules' role works within the boundary | schedules+boundary | JOB, SCHEDULED, PIPELINE
    + emr-serverless:StartJobRun APPLICATION | ours + as-jobs@schedules
    + emr-serverless:TagResource APPLICATION/jobruns/00r1 | new + as-jobs@schedules
    + iam:PassRole ROLE-lake | serverless + as-jobs@schedules
boundary leaves the schedules' role no more | boundary | JOB, SCHEDULED, PIPELINE
    - emr-serverless:StartJobRun APPLICATION | theirs + as-jobs@schedules
    - iam:PassRole ROLE-lake | ec2 + as-jobs@schedules
    - iam:PassRole role/admin | serverless + as-jobs@schedules
    - emr-serverless:StartJobRun APPLICATION | ours + as-lake
    - iam:PassRole ROLE-lake | serverless + as-lake
named application is within the boundary | boundary | JOB, SCHEDULED, PIPELINE, applications.lake.access.application_id: 00def, jobs.0.target: 'serverless:00def'
    + emr-serverless:StartJobRun /applications/00def | as-jobs@schedules
    - emr-serverless:StartJobRun /applications/00def0 | as-jobs@schedules
without a pipeline a job may not register | alone | tags: {}
    + s3:PutObject anywhere/x
    - REGISTER ADOPTED
    - dynamodb:PutItem table/t | theirs
job buckets are those of arguments and settings | boundary | JOB, pipeline: {repository: acme/lake, buckets: [told]}, emr.artifacts_bucket: programs, applications.lake.access.policies: ['arn:aws:iam::111122223333:policy/x'], jobs.0.spark: {spark.jars: 's3://jars/a'}, jobs.0.arguments: [--output, 's3://raw/x', '--checkpoint=s3a://checks/y', --option, 'manifest=ssm:///m']
    + s3:PutObject jars/x
    + s3:PutObject raw/x
    - s3:PutObject rawer/x
    + kms:GenerateDataKey arn:aws:kms:eu-west-1:999999999999:key/1 | s3
    - kms:GenerateDataKey arn:aws:kms:eu-west-1:999999999999:key/1
"""


def worded(text: str) -> str:
    return re.sub(r"\b[A-Z]{4,}\b", lambda found: WORDS.get(found[0], found[0]), text)


def statements(kind: str, environment: Environment) -> list[Statement]:
    match kind:
        case "apply":
            return policy(environment)
        case "plan":
            return policy(environment, *permissions.PLANNING)
        case "job":
            return list(json.loads(literal_policy(environment, "lake").json())["Statement"])
        case "schedules":
            return in_json(start_jobs(environment, APPLICATION))
        case "alone":
            return in_json(permissions.boundary_without_pipeline(environment))
    return policy(environment, kind)


@pytest.mark.parametrize(("given", "table"), scenarios(PERMISSIONS))
def test_permissions_end_at_the_environment(given: str, table: str, load: Load) -> None:
    kinds, _, settings = given.partition(" | ")
    environment = load(settings.replace("SCHEDULED", WORDS["SCHEDULED"]))
    found = [statements(kind, environment) for kind in kinds.split("+")]
    lines = "\n".join(worded(line.strip()) for line in table.splitlines())
    for expected, action, resource, names in attempts(lines):
        context = {key: each for name in names.split(" + ") if name for key, each in CONTEXTS[name].items()}
        assert all(allowed(each, action, resource, context) for each in found) == expected, (
            f"{action} {resource} {names}"
        )


MANAGED = {
    "kms": ("key/0123abcd", "PutKeyPolicy ScheduleKeyDeletion CreateAlias UntagResource"),
    "emr-serverless": ("/applications/00abc", "DeleteApplication StartApplication StartJobRun UpdateApplication"),
    "kinesis": ("stream/test-billing", "DeleteStream UpdateStreamMode StopStreamEncryption PutResourcePolicy RegisterStreamConsumer"),
}  # fmt: skip


@pytest.mark.parametrize("service", MANAGED)
@pytest.mark.parametrize(
    ("has", "alias"),
    [
        # The state's own key, first of all.
        ({"environment": "test", "managed-by": "kinesis-efo-bootstrap"}, "alias/kinesis-efo/pipeline/test"),
        ({"environment": "prod", "managed-by": "kinesis-efo"}, "alias/kinesis-efo/prod"),
        ({"environment": "test", "managed-by": "somebody"}, None),
        ({"environment": "billing"}, None),
        ({"managed-by": "kinesis-efo"}, None),
        (OURS, None),
    ],
    ids=str,
)
def test_foreign_resources_cannot_be_taken_over(
    service: str, has: dict[str, str], alias: str | None, load: Load
) -> None:
    mine, (rest, actions) = policy(load("JOB, PIPELINE")), MANAGED[service]
    resource = f"arn:aws:{service}:eu-west-1:111122223333:{rest}"
    context = {f"aws:ResourceTag/{name}": value for name, value in has.items()}
    context |= {"kms:ResourceAliases": alias} if alias else {}
    tag = f"{service}:{'AddTagsToStream' if service == 'kinesis' else 'TagResource'}"
    claims = [tags("Request"), *({name: value} for name, value in tags("Request").items())]
    assert any(allowed(mine, tag, resource, context | each) for each in claims) == (has == OURS)
    assert {allowed(mine, f"{service}:{action}", resource, context) for action in actions.split()} == {has == OURS}


def test_apply_role_cannot_extend_its_permissions(load: Load) -> None:
    environment = load("PIPELINE, applications.lake.access: SERVERLESS")
    mine, names = policy(environment), Names(environment)
    context = {key: value for each in ("ours", "new", "bounded") for key, value in CONTEXTS[each].items()}
    iam = {
        action
        for each in mine
        for action in each.get("Action", ())
        if action.startswith("iam:") and "Get" not in action
    }
    own = [names.pipeline_role_arn(kind) for kind in ("plan", "apply")]
    own += [
        f"arn:aws:iam::111122223333:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-{kind}"
        for kind in permissions.policies(environment)
    ]
    changing = {action for action in iam if not re.match("iam:(List|Simulate)", action)}
    assert changing
    assert not [(action, each) for action in changing for each in own if allowed(mine, action, each, context)]
    attach = {"iam:PolicyARN": "arn:aws:iam::111122223333:policy/kinesis-efo-test-lake"}
    for given, may in ((attach, True), ({"iam:PolicyARN": "arn:aws:iam::aws:policy/AdministratorAccess"}, False)):
        assert allowed(mine, "iam:AttachRolePolicy", f"{ROLE}-lake", context | given) == may


ISSUER = "token.actions.githubusercontent.com"
DEPLOYS = {
    "aud": "sts.amazonaws.com",
    "sub": "repo:acme/lake:environment:test",
    "repository_id": "34",
    "environment": "test",
    "ref": "refs/heads/trunk",
    "job_workflow_ref": "acme/lake/.github/workflows/deploy-environment.yml@refs/heads/trunk",
}
"""What GitHub's token says in the job that applies."""
IDS = "pipeline: {repository: acme@12/lake@34, branch: trunk}"
CALLED = f"{IDS}, pipeline.workflows: [{', '.join(f'acme/flows/.github/workflows/deploy.yml@refs/tags/v{n}' for n in (1, 2))}]"
PLAIN = "pipeline: {repository: acme/lake, branch: trunk}"
# Whether a role may be assumed with a token that says something else; null is a claim that it lacks.
TRUST = r"""
+ apply IDS
+ apply IDS sub: 'repo:acme@12/lake@34:environment:test'
# The workflow of earlier versions.
+ apply IDS job_workflow_ref: acme/lake/.github/workflows/deploy.yml@refs/heads/trunk
# Workflows of others that the file names, two versions while it is upgraded, from its own branch.
+ apply CALLED job_workflow_ref: acme/flows/.github/workflows/deploy.yml@refs/tags/v1
+ apply CALLED job_workflow_ref: acme/flows/.github/workflows/deploy.yml@refs/tags/v2
- apply CALLED job_workflow_ref: acme/flows/.github/workflows/deploy.yml@refs/tags/v3
- apply CALLED
# An own branch names the environment, before it has rules or after a typo in its name.
- apply IDS ref: refs/heads/mine
- apply IDS job_workflow_ref: acme/lake/.github/workflows/deploy-environment.yml@refs/heads/mine
- apply IDS job_workflow_ref: acme/lake/.github/workflows/mine.yml@refs/heads/trunk
- apply IDS repository_id: '35'
- apply IDS environment: tets
- apply IDS sub: 'repo:acme/lake:ref:refs/heads/trunk'
+ plan IDS sub: 'repo:acme/lake:pull_request'
+ plan IDS sub: 'repo:acme@12/lake@34:ref:refs/heads/trunk'
# Another repository got its name.
- plan IDS sub: 'repo:acme/lake:pull_request', repository_id: '35'
- plan IDS sub: 'repo:acme/lake:ref:refs/heads/mine'
+ apply PLAIN
# Its name would be enough.
- apply PLAIN sub: 'repo:acme@12/lake@34:environment:test'
- apply PLAIN ref: refs/heads/mine
"""


@pytest.mark.parametrize("row", [each for each in TRUST.strip().splitlines() if not each.startswith("#")])
def test_github_token_gets_its_own_role_only(row: str, load: Load) -> None:
    sign, role, settings, *changes = row.split(maxsplit=3)
    given = load({"IDS": IDS, "PLAIN": PLAIN, "CALLED": CALLED}[settings])
    trust = {"apply": permissions.trust_to_apply, "plan": permissions.trust_to_plan}[role](given, "arn")
    (written,) = json.loads(policy_json([trust]))["Statement"]
    del written["Principal"]
    claims: dict[str, Any] = DEPLOYS | (yaml.safe_load("{" + changes[0] + "}") if changes else {})
    context = {f"{ISSUER}:{claim}": value for claim, value in claims.items() if value}
    assert allowed([{**written, "Resource": "*"}], "sts:AssumeRoleWithWebIdentity", "role", context) == (sign == "+")
