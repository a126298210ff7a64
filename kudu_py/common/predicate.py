"""`Predicate`: a condition on one column, evaluated on whole Arrow arrays.

Null and NaN semantics, the same on the server and in the connector: a comparison with a null cell is never true; NaN
equals NaN and is above every other number (IEEE would say that NaN equals nothing, but a row must be findable by the
value it shows, and Spark, whose predicates are pushed down, defines it so); -0.0 equals 0.0. Strings and binaries
compare as bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, unique

import pyarrow as pa
import pyarrow.compute as pc

from kudu_py.common.counted import counted
from kudu_py.common.errors import ErrorCode, KuduError
from kudu_py.common.schema import ColumnSchema, DataType, Schema

MAX_IN_VALUES = 65_536


@unique
class PredicateOp(Enum):
    """How a cell is compared."""

    EQ = "="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "IN"
    IS_NULL = "IS NULL"
    IS_NOT_NULL = "IS NOT NULL"


_COMPARISONS = frozenset({PredicateOp.EQ, PredicateOp.LT, PredicateOp.LE, PredicateOp.GT, PredicateOp.GE})
_ZERO_VALUES = frozenset({PredicateOp.IS_NULL, PredicateOp.IS_NOT_NULL})
_FLOATS = frozenset({DataType.FLOAT, DataType.DOUBLE})


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on one column; several are a conjunction.

    Attributes:
        column: the column's name.
        op: the comparison.
        values: Python values as Arrow gives them for the column's type: one for EQ, LT, LE, GT and GE, up to 65,536 for
            IN (none: no row matches), none for the two null tests. None is not a value.
    """

    column: str
    op: PredicateOp
    values: tuple[object, ...] = ()

    def bind(self, schema: Schema) -> BoundPredicate:
        """Checks against the schema and converts the values once.

        Raises:
            KuduError: COLUMN_NOT_FOUND, or INVALID_ARGUMENT if the number or type of the values does not fit.
        """
        column = schema.column(self.column)
        wanted = 1 if self.op in _COMPARISONS else 0 if self.op in _ZERO_VALUES else None
        if wanted is not None and len(self.values) != wanted:
            raise _invalid(
                f"predicate {self.op.value} on {self.column!r} takes {counted(wanted, 'value')}, not {len(self.values)}"
            )
        if len(self.values) > MAX_IN_VALUES:
            raise _invalid(
                f"predicate IN on {self.column!r} takes at most {MAX_IN_VALUES} values, not {len(self.values)}"
            )
        return BoundPredicate(column, self.op, _convert(column, self.values))


@dataclass(frozen=True, slots=True, eq=False)
class BoundPredicate:
    """A predicate checked against a column.

    Attributes:
        column: the column's schema.
        op: the comparison.
        values: the values as an Arrow array of the column's type (bytes for strings, since they compare as bytes).
    """

    column: ColumnSchema
    op: PredicateOp
    values: pa.Array

    def evaluate(self, cells: pa.Array) -> pa.Array:
        """Boolean array without nulls: where the predicate holds."""
        if self.op is PredicateOp.IS_NULL:
            return pc.is_null(cells)
        if self.op is PredicateOp.IS_NOT_NULL:
            return pc.is_valid(cells)
        if self.op is PredicateOp.IN and not len(self.values):
            return _none(len(cells))
        if pa.types.is_string(cells.type):
            cells = cells.cast(pa.binary())
        if self.op is PredicateOp.IN:
            holds = self._is_in(cells)
        elif self.column.type in _FLOATS:
            holds = self._compare_floats(cells)
        else:
            holds = _KERNELS[self.op](cells, self.values[0])
        return pc.fill_null(holds, False) if holds.null_count else holds

    def _is_in(self, cells: pa.Array) -> pa.Array:
        if self.column.type not in _FLOATS:
            # is_in has no null among its values, so a null cell is never in.
            return pc.is_in(cells, self.values)
        # Adding zero turns -0.0 into 0.0, which is what the values were normalised to; hashing tells the two apart.
        plain = pc.is_in(pc.add(cells, pa.scalar(0.0, cells.type)), pc.drop_null(self.values))
        if pc.any(pc.is_nan(self.values)).as_py():
            return pc.or_(pc.and_(plain, pc.is_valid(cells)), pc.fill_null(pc.is_nan(cells), False))
        return pc.and_(plain, pc.is_valid(cells))

    def _compare_floats(self, cells: pa.Array) -> pa.Array:
        value = self.values[0]
        if math.isnan(value.as_py()):
            nan = pc.is_nan(cells)
            if self.op in (PredicateOp.EQ, PredicateOp.GE):
                return nan
            if self.op is PredicateOp.LT:
                return pc.invert(nan)
            # LE: everything is at most NaN; GT: nothing is above it.
            return pc.is_valid(cells) if self.op is PredicateOp.LE else _none(len(cells))
        holds = _KERNELS[self.op](cells, value)
        if self.op in (PredicateOp.GT, PredicateOp.GE):
            return pc.or_(holds, pc.is_nan(cells))
        return holds

    def may_match(self, minimum: pa.Scalar, maximum: pa.Scalar, null_count: int, rows: int) -> bool:
        """Whether a chunk with these statistics can hold a matching row; True when in doubt.

        Args:
            minimum, maximum: bounds of the cells that are not null, null scalars if unknown (also if there are NaNs).
            null_count: number of null cells among `rows`.
            rows: number of cells.
        """
        if self.op is PredicateOp.IS_NULL:
            return null_count > 0
        if null_count == rows:
            return False
        if self.op is PredicateOp.IS_NOT_NULL:
            return True
        if self.op is PredicateOp.IN and not len(self.values):
            return False
        if not minimum.is_valid or not maximum.is_valid:
            return True
        if pa.types.is_string(minimum.type):
            minimum, maximum = minimum.cast(pa.binary()), maximum.cast(pa.binary())
        if self.op is PredicateOp.IN:
            inside = pc.and_(pc.greater_equal(self.values, minimum), pc.less_equal(self.values, maximum))
            return bool(pc.any(inside).as_py())
        value = self.values[0]
        if self.column.type in _FLOATS and math.isnan(value.as_py()):
            return self.op in (PredicateOp.LT, PredicateOp.LE)
        if self.op in (PredicateOp.EQ, PredicateOp.GT, PredicateOp.GE):
            above = pc.greater(maximum, value) if self.op is PredicateOp.GT else pc.greater_equal(maximum, value)
            if not above.as_py():
                return False
        if self.op in (PredicateOp.EQ, PredicateOp.LT, PredicateOp.LE):
            below = pc.less(minimum, value) if self.op is PredicateOp.LT else pc.less_equal(minimum, value)
            if not below.as_py():
                return False
        return True


_KERNELS = {
    PredicateOp.EQ: pc.equal,
    PredicateOp.LT: pc.less,
    PredicateOp.LE: pc.less_equal,
    PredicateOp.GT: pc.greater,
    PredicateOp.GE: pc.greater_equal,
}


def _none(rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(False), rows)


def _convert(column: ColumnSchema, values: tuple[object, ...]) -> pa.Array:
    if any(value is None for value in values):
        raise _invalid(f"a predicate on {column.name!r} compares with null; use IS NULL or IS NOT NULL")
    if column.type in _FLOATS:
        values = tuple(value + 0.0 if isinstance(value, (int, float)) else value for value in values)
    try:
        array = pa.array(values, column.arrow_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        shown = ", ".join(repr(value)[:40] for value in values[:3])
        raise _invalid(f"a predicate on {column.name!r} compares {column.type.value} with {shown}") from error
    return array.cast(pa.binary()) if pa.types.is_string(array.type) else array


def _invalid(message: str) -> KuduError:
    return KuduError(ErrorCode.INVALID_ARGUMENT, message)
