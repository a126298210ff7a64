"""The public client: what is exported here is the whole surface, and stays.

The names at the top are the blocking client, after kudu-python; `kudu_py.client.aio` is the same for asyncio.
"""

from kudu_py.client import aio
from kudu_py.client.blocking import (
    Client,
    Scanner,
    ScanToken,
    ScanTokenBuilder,
    Session,
    Table,
    connect,
)
from kudu_py.client.client import Master, TableStatistics, TabletServer
from kudu_py.client.errors import (
    KuduAlreadyPresent,
    KuduBadStatus,
    KuduException,
    KuduInvalidArgument,
    KuduNotFound,
    KuduNotSupported,
    KuduOutcomeUnknown,
    KuduTimeout,
    KuduUnavailable,
)
from kudu_py.client.location_cache import Replica, Tablet
from kudu_py.client.options import ClientOptions
from kudu_py.client.scan_settings import ReadMode
from kudu_py.client.scanner import RowBatch
from kudu_py.client.schema_builder import ColumnSpec, Partitioning, SchemaBuilder, schema_builder
from kudu_py.client.session import FlushMode, RowError
from kudu_py.client.table import Column, WriteOperation
from kudu_py.common.predicate import Predicate
from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema

int8 = DataType.INT8
int16 = DataType.INT16
int32 = DataType.INT32
int64 = DataType.INT64
string = DataType.STRING
varchar = DataType.VARCHAR
binary = DataType.BINARY
bool = DataType.BOOL
bool_ = DataType.BOOL
float = DataType.FLOAT
float_ = DataType.FLOAT
double = DataType.DOUBLE
double_ = DataType.DOUBLE
decimal = DataType.DECIMAL
date = DataType.DATE
unixtime_micros = DataType.UNIXTIME_MICROS

FLUSH_AUTO_SYNC = FlushMode.AUTO_FLUSH_SYNC
FLUSH_AUTO_BACKGROUND = FlushMode.AUTO_FLUSH_BACKGROUND
FLUSH_MANUAL = FlushMode.MANUAL_FLUSH

READ_LATEST = ReadMode.READ_LATEST
READ_AT_SNAPSHOT = ReadMode.READ_AT_SNAPSHOT
READ_YOUR_WRITES = ReadMode.READ_YOUR_WRITES

__all__ = [
    "aio",
    "connect",
    "schema_builder",
    "Client",
    "ClientOptions",
    "Table",
    "Session",
    "Scanner",
    "ScanToken",
    "ScanTokenBuilder",
    "RowBatch",
    "SchemaBuilder",
    "ColumnSpec",
    "Partitioning",
    "Schema",
    "ColumnSchema",
    "DataType",
    "Column",
    "Predicate",
    "WriteOperation",
    "RowOperation",
    "RowError",
    "FlushMode",
    "ReadMode",
    "Tablet",
    "Replica",
    "TabletServer",
    "Master",
    "TableStatistics",
    "KuduException",
    "KuduBadStatus",
    "KuduNotFound",
    "KuduAlreadyPresent",
    "KuduNotSupported",
    "KuduInvalidArgument",
    "KuduTimeout",
    "KuduUnavailable",
    "KuduOutcomeUnknown",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "varchar",
    "binary",
    "bool",
    "bool_",
    "float",
    "float_",
    "double",
    "double_",
    "decimal",
    "date",
    "unixtime_micros",
    "FLUSH_AUTO_SYNC",
    "FLUSH_AUTO_BACKGROUND",
    "FLUSH_MANUAL",
    "READ_LATEST",
    "READ_AT_SNAPSHOT",
    "READ_YOUR_WRITES",
]
