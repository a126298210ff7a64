"""`MessageForm`: where an Arrow record batch message keeps its numbers, so that a few rows need no Arrow to be read.

An encapsulated record batch message is a flatbuffer and a body. Flatbuffers of one writer and one number of columns and
buffers differ in their numbers only: the length of the body, that of the batch, a pair per column and a pair per
buffer. Everything else, all that says where those numbers are, is the same byte for byte. So a form is learnt from a
message that Arrow has read and verified; a message is of that form if its other bytes are equal, and is then exactly as
well-formed as the one that was verified.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_RECORD_BATCH = 3
"""`MessageHeader.RecordBatch` of Arrow's `Message.fbs`."""
_CONTINUATION = b"\xff\xff\xff\xff"
_FORMS_PER_SHAPE_MAX = 4
"""Writers of different makes; a fifth one's messages are read by Arrow."""
_SHAPES_MAX = 1024
_FORM_BYTES_MAX = 256
_PAIR_BYTES_MAX = 32
"""A larger head, of so many bytes and so many more for each column and buffer, holds what no writer puts there."""

Span = tuple[int, int]


class MessageForm(NamedTuple):
    """One form of messages.

    Attributes:
        size: bytes before the body.
        layout: of those: five stretches of fixed bytes, and between them the four places of numbers.
        fixed: place among the fields of `layout`, and content, of each stretch of fixed bytes.
        body_length, length, nodes, buffers: place among the fields of the first number of each kind.
    """

    size: int
    layout: struct.Struct
    fixed: tuple[tuple[int, bytes], ...]
    body_length: int
    length: int
    nodes: int
    buffers: int

    def fields(self, payload: bytes) -> tuple[Any, ...] | None:
        """The fields of a message; None if it is not of this form."""
        if len(payload) < self.size:
            return None
        fields = self.layout.unpack_from(payload)
        for at, content in self.fixed:
            if fields[at] != content:
                return None
        return fields


_forms: dict[tuple[int, int], tuple[MessageForm, ...]] = {}
"""By numbers of columns and buffers. Never shrinks: it holds how writers write, a few forms for each kind of batch."""


def known_forms(columns: int, buffers: int) -> tuple[MessageForm, ...]:
    """The forms of messages with so many columns and buffers that were learnt."""
    return _forms.get((columns, buffers), ())


def learn(payload: bytes, columns: int, buffers: int) -> None:
    """Learns the form of a record batch message that Arrow has read, if it is as simple as those of all writers, no
    larger than they need, and has as many columns and buffers as its kind: Arrow overlooks surplus ones, and a client
    could fill the memory with forms of any number.

    Simple: it has nothing but the four kinds of numbers, and these and what leads to them do not overlap. (A hostile
    message could let a number be a piece of the structure, so that the number changes the structure.)
    """
    form = form_of(payload)
    if form is None or form.size > _FORM_BYTES_MAX + _PAIR_BYTES_MAX * (columns + buffers):
        return
    shape = columns, buffers
    if shape != (_count_before(payload, form, form.nodes), _count_before(payload, form, form.buffers)):
        return
    forms = known_forms(*shape)
    has_room = len(forms) < _FORMS_PER_SHAPE_MAX and (forms or len(_forms) < _SHAPES_MAX)
    if has_room and all(known.fields(payload) is None for known in forms):
        _forms[shape] = (*forms, form)


def form_of(payload: bytes) -> MessageForm | None:
    """The form of a message that Arrow has read; None if it is not simple."""
    if len(payload) < 16 or payload[:4] != _CONTINUATION:
        return None
    size = 8 + int.from_bytes(payload[4:8], "little")
    if size % 8 or size > len(payload):
        return None
    reader = _Reader(payload, size)
    message = reader.follow(8)
    reader.field(message, 0, 2)  # the version
    header_type = reader.field(message, 1, 1)
    header_at = reader.field(message, 2, 4)
    body_length = reader.field(message, 3, 8)
    if not (header_type and header_at and body_length) or payload[header_type] != _RECORD_BATCH:
        return None
    if reader.field(message, 4, 4):  # custom metadata
        return None
    batch = reader.follow(header_at)
    length = reader.field(batch, 0, 8)
    nodes_at, buffers_at = reader.field(batch, 1, 4), reader.field(batch, 2, 4)
    if not (length and nodes_at and buffers_at) or reader.field(batch, 3, 4) or reader.field(batch, 4, 4):
        return None
    nodes, node_count = reader.vector(nodes_at)
    buffers, buffer_count = reader.vector(buffers_at)
    numbers = [(body_length, 1), (length, 1), (nodes, 2 * node_count), (buffers, 2 * buffer_count)]
    # Tables may share a vtable, and a piece of structure is read more than once: equal ones are one.
    if not are_apart([*set(reader.structure), *((at, at + 8 * count) for at, count in numbers)], size):
        return None
    return _compile(payload, size, numbers)


def _count_before(payload: bytes, form: MessageForm, field: int) -> int:
    """The number of pairs of a vector, which stands in the four fixed bytes before its first one."""
    return int.from_bytes(dict(form.fixed)[field - 1][-4:], "little")


def are_apart(spans: list[Span], size: int) -> bool:
    """Whether no two of the stretches share a byte, and none goes beyond `size`."""
    end = 0
    for first, last in sorted(spans):
        if first < end or last > size:
            return False
        end = last
    return True


def _compile(payload: bytes, size: int, numbers: list[tuple[int, int]]) -> MessageForm:
    layout, fixed, at, field = "<", [], 0, 0
    fields: dict[int, int] = {}
    for first, count in sorted(numbers):
        layout += f"{first - at}s{count}q"
        fixed.append((field, payload[at:first]))
        fields[first] = field + 1
        field += 1 + count
        at = first + 8 * count
    layout += f"{size - at}s"
    fixed.append((field, payload[at:size]))
    body_length, length, nodes, buffers = (fields[first] for first, _ in numbers)
    return MessageForm(size, struct.Struct(layout), tuple(fixed), body_length, length, nodes, buffers)


class _Reader:
    """Reads a verified flatbuffer and notes each byte that decided where the next ones are.

    Attributes:
        structure: the stretches that were read.
    """

    def __init__(self, payload: bytes, size: int) -> None:
        self._payload = payload
        self._size = size
        self.structure: list[Span] = [(0, 8)]

    def _number(self, at: int, width: int, *, signed: bool = False) -> int:
        self.structure.append((at, at + width))
        return int.from_bytes(self._payload[at : at + width], "little", signed=signed)

    def follow(self, at: int) -> int:
        """Where the offset at `at` leads."""
        return at + self._number(at, 4)

    def vector(self, at: int) -> tuple[int, int]:
        """The first element and the number of elements of the vector that the offset at `at` leads to."""
        vector = self.follow(at)
        return vector + 4, self._number(vector, 4)

    def field(self, table: int, index: int, width: int) -> int:
        """Where a field of a table is; 0: it is absent. Fields of up to 4 bytes are structure."""
        vtable = table - self._number(table, 4, signed=True)
        vtable_size = int.from_bytes(self._payload[vtable : vtable + 2], "little")
        self.structure.append((vtable, vtable + vtable_size))
        at = 4 + 2 * index
        offset = int.from_bytes(self._payload[vtable + at : vtable + at + 2], "little") if at < vtable_size else 0
        if offset and width < 4:
            self.structure.append((table + offset, table + offset + width))
        return table + offset if offset else 0
