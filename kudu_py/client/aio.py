"""The asyncio surface: `client = await kudu_py.aio.connect("127.0.0.1:7051")`.

Names and arguments are those of the blocking client; what waits is awaited.
"""

from kudu_py.client.client import KuduClient, Master, Table, TableStatistics, TabletServer, connect
from kudu_py.client.scan_token import ScanToken, ScanTokenBuilder
from kudu_py.client.scanner import RowBatch, Scanner
from kudu_py.client.session import KuduSession

Client = KuduClient
Session = KuduSession

__all__ = [
    "connect",
    "Client",
    "KuduClient",
    "Session",
    "KuduSession",
    "Table",
    "Scanner",
    "RowBatch",
    "ScanToken",
    "ScanTokenBuilder",
    "TableStatistics",
    "TabletServer",
    "Master",
]
