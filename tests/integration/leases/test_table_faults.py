"""The lease table when DynamoDB refuses, throttles, fails, or answers into the void: over real HTTP, with the real SDK."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientSession, web

from kinesis_efo.errors import LeaseTableError, TableUnavailableError
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict
from kinesis_efo.leases.table import LeaseTable
from tests.support.messages import raises

from .conftest import create_table, dynamodb

KEY = "shardId-000000000000"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refusal(status: int, code: str, message: str = "no") -> Fault:
    async def answer(_request: web.Request) -> web.StreamResponse:
        body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
        return web.json_response(body, status=status, content_type="application/x-amz-json-1.0")

    return answer


async def silence(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class Proxy:
    """Stands before moto. `faults` are used up one per request; then requests pass.

    Attributes:
        url: Where it listens.
        faults: What happens to the next requests; None lets one pass.
        drop_answers: How many of the next requests pass, but their answer does not.
        seen: Operations that arrived.
    """

    url: str

    def __init__(self, target: str) -> None:
        self.target = target
        self.faults: list[Fault | None] = []
        self.drop_answers = 0
        self.seen: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers["X-Amz-Target"].split(".")[1])
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return await fault(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with self.session.post(self.target, data=await request.read(), headers=headers) as answer:
            body = await answer.read()
            if self.drop_answers:
                self.drop_answers -= 1
                return await hang_up(request)
            return web.Response(body=body, status=answer.status, content_type="application/x-amz-json-1.0")


def with_table(
    test: Callable[[LeaseTable, Proxy], Awaitable[None]], lease_timeout: float = 3.0
) -> Callable[[str], None]:
    def run(moto: str) -> None:
        async def main() -> None:
            # Not through the client under test: its short timeouts may repeat the request on a busy machine.
            async with dynamodb(moto) as direct:
                name = await create_table(direct)
            proxy = Proxy(moto)
            app = web.Application()
            app.router.add_post("/", proxy.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = "http://{}:{}".format(*runner.addresses[0][:2])
            async with (
                ClientSession() as proxy.session,
                dynamodb(proxy.url, lease_timeout=lease_timeout) as client,
            ):
                await test(LeaseTable(client, name, declared_by="stack kinesis-efo-dev"), proxy)
            await runner.cleanup()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def owned(table: LeaseTable) -> Lease:
    outcome = await table.create(Lease.new(KEY, LeaseInfo()).taken("a", "", 1))
    assert not isinstance(outcome, Conflict)
    return outcome


@with_table
async def test_a_missing_permission_names_action_and_table(table: LeaseTable, proxy: Proxy) -> None:
    held = await owned(table)
    for call, action in (
        (lambda: table.scan(), "Scan"),
        (lambda: table.check(), "DescribeTable"),
        (lambda: table.update(held, held.renewed()), "UpdateItem"),
        (lambda: table.create(held), "PutItem"),
        (lambda: table.delete(held), "DeleteItem"),
    ):
        proxy.faults = [refusal(400, "AccessDeniedException", f"not authorized to perform: dynamodb:{action}")]
        with pytest.raises(LeaseTableError) as caught:
            await call()
        message = str(caught.value)
        assert f"not allowed: dynamodb:{action} on arn:aws:dynamodb:eu-west-1:*:table/leases-" in message
        assert "attach the runtime policy" in message


@with_table
async def test_a_missing_permission_names_the_table_in_its_partition(table: LeaseTable, proxy: Proxy) -> None:
    async with dynamodb(proxy.url, "eusc-de-east-1") as sovereign:
        proxy.faults = [refusal(400, "AccessDeniedException", "no")]
        with raises(
            LeaseTableError,
            "not allowed: dynamodb:Scan on arn:aws-eusc:dynamodb:eusc-de-east-1:*:table/leases (lease table leases in "
            "eusc-de-east-1): AccessDeniedException: no; attach the runtime policy of the application to the role that "
            "runs the query",
        ):
            await LeaseTable(sovereign, "leases", declared_by="stack kinesis-efo-dev").scan()


@with_table
async def test_expired_credentials_are_no_passing_fault(table: LeaseTable, proxy: Proxy) -> None:
    proxy.faults = [refusal(400, "ExpiredTokenException", "The security token included in the request is expired")] * 3
    with raises(
        LeaseTableError,
        "lease table leases-... in eu-west-1: Scan failed: "
        "ExpiredTokenException: The security token included in the request is expired; check the AWS credentials of the "
        "process",
    ):
        await table.scan()


# Shows 77.
@with_table
async def test_lasting_throttling_is_reported_as_passing(table: LeaseTable, proxy: Proxy) -> None:
    held = await owned(table)
    throttled = refusal(400, "ProvisionedThroughputExceededException", "slow down")
    proxy.faults = [throttled, throttled]
    assert isinstance(await table.update(held, held.renewed()), Lease)
    proxy.faults = [throttled] * 3
    with raises(
        TableUnavailableError,
        "lease table leases-... in eu-west-1: UpdateItem failed for now: An "
        "error occurred (ProvisionedThroughputExceededException) when calling the UpdateItem operation...: slow down",
    ):
        await table.update(held, held.renewed())
    assert proxy.faults == []


# Shows 77.
@pytest.mark.parametrize("fault", [refusal(500, "InternalServerError"), silence, hang_up])
def test_faults_of_the_service_and_the_network_pass(moto: str, fault: Fault) -> None:
    async def test(table: LeaseTable, proxy: Proxy) -> None:
        proxy.faults = [fault] * 3
        with pytest.raises(TableUnavailableError, match=r"lease table .* Scan failed for now: ."):
            await table.scan()
        assert (await table.scan()).leases == {}

    with_table(test, lease_timeout=0.9)(moto)


@with_table
async def test_repeated_write_is_not_a_lost_lease(table: LeaseTable, proxy: Proxy) -> None:
    held = await owned(table)
    proxy.drop_answers = 1
    outcome = await table.update(held, held.renewed())
    assert outcome == Conflict(held.renewed())
    assert proxy.seen.count("UpdateItem") == 2
    seen = held.renewed()
    proxy.drop_answers = 1
    assert await table.update(seen, seen.taken("b", "", 2)) == Conflict(seen.taken("b", "", 2))
    proxy.drop_answers = 1
    assert await table.delete(seen.taken("b", "", 2)) == Conflict(None)
