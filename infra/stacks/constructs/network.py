"""What jobs need of a network: that the workers of EMR Serverless reach each other."""

from __future__ import annotations

from typing import Any

from infra.settings.model import Environment
from infra.settings.names import WORKERS, Names
from infra.stacks.cdk import Construct, DataAwsSubnet, SecurityGroup, SecurityGroupEgress, SecurityGroupIngress
from kinesis_efo_infra.base import put


class WorkersGroup(Construct):
    """A security group whose members may open TCP connections to each other.

    Executors fetch what they read from a process beside the driver, and both talk to Spark's driver. Given groups are for what
    jobs reach elsewhere; this one is added to them, so that nobody has to change groups that others use.

    Args:
        scope: The parent construct.
        environment: The environment.
        subnet: A subnet of the workers; the group is in its VPC.
    """

    def __init__(self, scope: Construct, environment: Environment, subnet: str) -> None:
        super().__init__(scope, "workers")
        place = DataAwsSubnet(self, "subnet", id=subnet)
        place.override_logical_id(WORKERS.now)
        # Spark's ports and the fetcher's are any free ones. What is empty is said to be: in JSON, Terraform asks for all of a rule.
        others = ("cidr_blocks", "ipv6_cidr_blocks", "prefix_list_ids", "security_groups")
        among: dict[str, Any] = {"from_port": 0, "to_port": 65_535, "protocol": "tcp", "self_attribute": True}
        among |= {name: [] for name in others}
        group = SecurityGroup(
            self,
            "group",
            name=f"{Names(environment).stack_name}-workers",
            description="Workers of EMR Serverless reach each other",
            vpc_id=place.vpc_id,
            ingress=[SecurityGroupIngress(description="from driver and executors", **among)],
            egress=[SecurityGroupEgress(description="to driver and executors", **among)],
        )
        self._id = put(group, WORKERS).id

    @property
    def id(self) -> str:
        """Its id."""
        return self._id
