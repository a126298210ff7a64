"""Waiting for consensus metadata to be on disk."""

from __future__ import annotations

import asyncio

from kudu_py.consensus.metadata import ConsensusMetadata


async def metadata_durable(metadata: ConsensusMetadata) -> None:
    """Returns once all that `metadata` is to hold now is on disk; never after a failure, which ends the process."""
    if metadata.is_durable:
        return
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resolve() -> None:
        if not durable.done():
            durable.set_result(None)

    metadata.when_durable(resolve)
    await durable
