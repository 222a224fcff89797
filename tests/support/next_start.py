"""What `kinesis-efo doctor --checkpoint` says of the next start of a query in a test's world."""

import asyncio
from pathlib import Path

from kinesis_efo.aws import SyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.manifest import load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.restart import restart
from tests.support.world import World


def next_start(world: World, checkpoint: Path, *streams: str) -> dict[str, str]:
    """Status, detail and remedy, by subject."""
    settings = AwsSettings(endpoint_url=world.aws.endpoint_url)
    manifest = load_manifest(str(world.manifest), SyncClients(settings).client).select(list(streams) or None)

    async def ask() -> dict[str, str]:
        async with Access(settings, manifest.region) as access:
            found = await restart(access, manifest, str(checkpoint), SystemClock())
        return {each.subject: f"{each.status.value}: {each.detail}. {each.fix}" for each in found}

    return asyncio.run(ask())
