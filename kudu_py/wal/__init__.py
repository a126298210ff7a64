"""The write-ahead log of one tablet: opaque payloads under OpIds, durable in order. It knows nothing of Raft.

`Log` is the door; the head comments of `writer` and `recovery` say why things happen in the order in which they do.
"""

from kudu_py.wal.anchors import Anchor, LogAnchors
from kudu_py.wal.format import Record
from kudu_py.wal.log import Log
from kudu_py.wal.options import WalOptions
from kudu_py.wal.recent import CacheBudget
from kudu_py.wal.recovery import TornTail

__all__ = ["Log", "Record", "WalOptions", "CacheBudget", "LogAnchors", "Anchor", "TornTail"]
