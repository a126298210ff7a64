"""Scan tokens: a scan divided among processes, each part with all that it takes to carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kudu_py.client.errors import invalid, raises_public, raises_public_async
from kudu_py.client.location_cache import Tablet, tablet_from_pb
from kudu_py.client.scan_settings import ScanSetters, ScanSettings
from kudu_py.client.scanner import Scanner
from kudu_py.client.table import TableInfo
from kudu_py.common.partition import PartitionSchema
from kudu_py.common.wire import partition_to_pb, predicates_from_pb, schema_from_pb, schema_to_pb
from kudu_py.pb import client_pb2, consensus_pb2, master_pb2

if TYPE_CHECKING:
    from kudu_py.client.client import KuduClient


class PartOfScan:
    """What a token holds, asyncio or blocking."""

    def __init__(self, pb: client_pb2.ScanToken) -> None:
        self.pb = pb

    def serialize(self) -> bytes:
        """Plain bytes (protobuf)."""
        return self.pb.SerializeToString()

    @property
    def tablet_ids(self) -> tuple[str, ...]:
        """The tablets that it reads."""
        return tuple(tablet.tablet_id for tablet in self.pb.tablets)

    @property
    def snapshot_timestamp(self) -> int:
        """The hybrid time that the rows are of."""
        return self.pb.request.snapshot_timestamp


class ScanToken(PartOfScan):
    """A part of a scan that any process can carry out: `serialize` it here, `deserialize_token_into_scanner` there."""

    def __init__(self, pb: client_pb2.ScanToken, client: KuduClient) -> None:
        super().__init__(pb)
        self._client = client

    def into_kudu_scanner(self) -> Scanner:
        """The scanner of this part, by the client that made the token."""
        return scanner_of_token(self._client, self.serialize())


class ScanTokenBuilder(ScanSetters):
    """Divides a scan into tokens, one for each tablet that can hold matching rows, all at one snapshot."""

    def __init__(self, settings: ScanSettings, client: KuduClient) -> None:
        super().__init__(settings)
        self._client = client

    @raises_public_async
    async def build(self) -> list[ScanToken]:
        """The tokens, in partition order."""
        tablets, request = await Scanner(self.settings, self._client).plan(pin=True)
        self.settings.is_open = True
        schema = schema_to_pb(self.table.schema)
        return [
            ScanToken(
                client_pb2.ScanToken(
                    table_id=self.table.id,
                    table_name=self.table.name,
                    schema=schema,
                    tablets=[_tablet_to_pb(tablet)],
                    request=request,
                ),
                self._client,
            )
            for tablet in tablets
        ]


@raises_public
def scanner_of_token(client: KuduClient, serialized: bytes) -> Scanner:
    """The scanner of a serialised token.

    Raises:
        KuduInvalidArgument: the bytes are no token.
    """
    try:
        pb = client_pb2.ScanToken.FromString(serialized)
    except Exception as error:
        raise invalid("the bytes are no scan token") from error
    if not pb.table_id or not pb.tablets:
        raise invalid("the bytes are no scan token")
    schema = schema_from_pb(pb.schema)
    table = TableInfo(pb.table_id, pb.table_name, schema, PartitionSchema(), 0)
    tablets = tuple(tablet_from_pb(tablet) for tablet in pb.tablets)
    client.cache.learn(tablets)
    settings = ScanSettings(
        table,
        columns=() if pb.request.count_only else tuple(pb.request.columns) or None,
        predicates=list(predicates_from_pb(schema, pb.request.predicates)),
    )
    return Scanner(settings, client, plan=(tablets, pb.request))


def _tablet_to_pb(tablet: Tablet) -> master_pb2.TabletLocations:
    return master_pb2.TabletLocations(
        tablet_id=tablet.tablet_id,
        partition=partition_to_pb(tablet.partition),
        config_index=tablet.config_index,
        replicas=[
            master_pb2.ReplicaLocation(
                ts_uuid=replica.uuid,
                rpc_address=replica.address,
                role=consensus_pb2.LEADER if replica.uuid == tablet.leader_uuid else consensus_pb2.FOLLOWER,
                member_type=consensus_pb2.VOTER if replica.votes else consensus_pb2.PRE_VOTER,
            )
            for replica in tablet.replicas
        ],
    )
