"""Cells as Python values: the one canonical form per column type, and what is taken for it.

Values of predicates, defaults, range bounds and single rows all go through `canonical`, so that every layer below sees
the same Python type per column type, which is also the type that Arrow's `as_py` gives:

| column type | canonical | also taken |
| --- | --- | --- |
| BOOL | bool | numpy.bool_ |
| INT8 to INT64 | int in range | numpy integers |
| FLOAT, DOUBLE | float | int, numpy floats |
| STRING, VARCHAR | str | |
| BINARY | bytes | bytearray, memoryview, str (as UTF-8) |
| UNIXTIME_MICROS | datetime with UTC | naive datetime (taken for UTC, as kudu-python does), int µs, ISO 8601 |
| DATE | date | int days since the epoch, ISO 8601 text |
| DECIMAL | Decimal that fits precision and scale | int, float, str of digits |
"""

from __future__ import annotations

import datetime
import decimal
import numbers

from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.schema import ColumnSchema, DataType

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DECIMAL_CONTEXT = decimal.Context(prec=76, traps=[decimal.InvalidOperation])

_INTEGER_BITS = {DataType.INT8: 8, DataType.INT16: 16, DataType.INT32: 32, DataType.INT64: 64}


def canonical(column: ColumnSchema, value: object) -> object:
    """`value` as the canonical Python value of the column's type.

    Raises:
        KuduError: INVALID_ARGUMENT that names the column if the value is of another type or out of range.
    """
    kind = column.type
    try:
        if kind in _INTEGER_BITS:
            return _integer(column, value, _INTEGER_BITS[kind])
        if kind is DataType.STRING or kind is DataType.VARCHAR:
            if isinstance(value, str):
                value.encode()
                return value
        elif kind is DataType.DOUBLE or kind is DataType.FLOAT:
            if not isinstance(value, bool) and isinstance(value, numbers.Real):
                return float(value)
        elif kind is DataType.BOOL:
            if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
                return bool(value)
        elif kind is DataType.BINARY:
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value)
            if isinstance(value, str):
                return value.encode()
        elif kind is DataType.UNIXTIME_MICROS:
            return _timestamp(column, value)
        elif kind is DataType.DATE:
            return _date(column, value)
        elif kind is DataType.DECIMAL:
            return _decimal(column, value)
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise _refused(column, value) from error
    raise _refused(column, value)


def micros_since_epoch(value: datetime.datetime) -> int:
    """Exact microseconds since the epoch of an aware datetime."""
    return (value - EPOCH) // _MICROSECOND


def datetime_of_micros(micros: int) -> datetime.datetime:
    """The aware datetime of microseconds since the epoch; OverflowError outside the years 1 to 9999."""
    return EPOCH + datetime.timedelta(microseconds=micros)


def days_since_epoch(value: datetime.date) -> int:
    """Days since 1970-01-01."""
    return (value - _EPOCH_DAY).days


def date_of_days(days: int) -> datetime.date:
    """The date so many days after 1970-01-01; OverflowError outside the years 1 to 9999."""
    return _EPOCH_DAY + datetime.timedelta(days=days)


def least_value(column: ColumnSchema) -> object:
    """The canonical value that orders before all others of a key column.

    For UNIXTIME_MICROS and DATE it is an integer, which no datetime or date can be; Arrow and `encode_key` take it.
    """
    kind = column.type
    if kind in _INTEGER_BITS:
        return -(1 << (_INTEGER_BITS[kind] - 1))
    if kind is DataType.UNIXTIME_MICROS:
        return -(1 << 63)
    if kind is DataType.DATE:
        return -(1 << 31)
    if kind is DataType.DECIMAL:
        return -decimal.Decimal(10**column.precision - 1).scaleb(-column.scale, _DECIMAL_CONTEXT)
    if kind is DataType.BINARY:
        return b""
    assert kind in (DataType.STRING, DataType.VARCHAR), kind
    return ""


def successor(column: ColumnSchema, value: object) -> object | None:
    """The next greater canonical value of a type whose values can be counted; None for others and at the end."""
    kind = column.type
    if kind in _INTEGER_BITS:
        assert isinstance(value, int)
        return value + 1 if value < (1 << (_INTEGER_BITS[kind] - 1)) - 1 else None
    try:
        if kind is DataType.UNIXTIME_MICROS and isinstance(value, datetime.datetime):
            return value + _MICROSECOND
        if kind is DataType.DATE and isinstance(value, datetime.date):
            return value + datetime.timedelta(days=1)
    except OverflowError:
        return None
    return None


def _integer(column: ColumnSchema, value: object, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _refused(column, value)
    number = int(value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT, f"column {column.name!r}: {number} does not fit {column.type.value}"
        )
    return number


def _timestamp(column: ColumnSchema, value: object) -> datetime.datetime:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        # pandas' Timestamp is a datetime with nanoseconds; only whole microseconds can be kept.
        if getattr(value, "nanosecond", 0):
            raise KuduError(ErrorCode.INVALID_ARGUMENT, f"column {column.name!r}: {value} is finer than a microsecond")
        to_datetime = getattr(value, "to_pydatetime", None)
        plain: datetime.datetime = to_datetime() if to_datetime is not None else value
        return plain.replace(tzinfo=datetime.UTC) if plain.tzinfo is None else plain.astimezone(datetime.UTC)
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return datetime_of_micros(int(value))
    raise _refused(column, value)


def _date(column: ColumnSchema, value: object) -> datetime.date:
    if isinstance(value, str):
        return datetime.date.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return date_of_days(int(value))
    raise _refused(column, value)


def _decimal(column: ColumnSchema, value: object) -> decimal.Decimal:
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, bool) or not isinstance(value, decimal.Decimal | str | numbers.Integral):
        raise _refused(column, value)
    number = decimal.Decimal(value if isinstance(value, str | decimal.Decimal) else int(value))
    if not number.is_finite():
        raise _refused(column, value)
    exact = number.quantize(decimal.Decimal(1).scaleb(-column.scale), context=_DECIMAL_CONTEXT)
    if exact != number or abs(int(exact.scaleb(column.scale, _DECIMAL_CONTEXT))) >= 10**column.precision:
        raise KuduError(
            ErrorCode.INVALID_ARGUMENT,
            f"column {column.name!r}: {value} does not fit DECIMAL({column.precision}, {column.scale})",
        )
    return exact


def _refused(column: ColumnSchema, value: object) -> KuduError:
    return KuduError(
        ErrorCode.INVALID_ARGUMENT,
        f"column {column.name!r} of type {column.type.value} cannot hold {type(value).__name__} {str(value)[:64]!r}",
    )
