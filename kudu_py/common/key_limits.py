"""`KeyLimits`: what a conjunction of predicates says of one key column; the basis of partition pruning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kudu_py.common.predicate import Predicate, PredicateOp
from kudu_py.common.schema import ColumnSchema, Schema
from kudu_py.common.values import canonical


@dataclass(slots=True)
class KeyLimits:
    """What a conjunction of predicates says of one key column.

    Attributes:
        values: the only values that are left, rising, or None if they are not finitely many.
        lower, upper: bounds, None if there are none, and whether they are values themselves.
        impossible: no value is left.
    """

    values: list[object] | None = None
    lower: object | None = None
    lower_inclusive: bool = True
    upper: object | None = None
    upper_inclusive: bool = True
    impossible: bool = False
    column: ColumnSchema | None = field(default=None, repr=False)

    @classmethod
    def by_column(cls, schema: Schema, predicates: Sequence[Predicate]) -> dict[str, KeyLimits]:
        """The limits of the key columns that predicates name."""
        keys = {column.name: column for column in schema.key_columns}
        limits: dict[str, KeyLimits] = {}
        for predicate in predicates:
            column = keys.get(predicate.column)
            if column is not None:
                limits.setdefault(predicate.column, cls(column=column)).narrow(predicate)
        for limit in limits.values():
            limit.settle()
        return limits

    def narrow(self, predicate: Predicate) -> None:
        """Takes one more predicate in."""
        assert self.column is not None
        values: list[object] = [canonical(self.column, value) for value in predicate.values]
        op = predicate.op
        if op is PredicateOp.IS_NULL:
            self.impossible = True  # key columns hold no nulls
        elif op is PredicateOp.EQ or op is PredicateOp.IN:
            left = set(values) if self.values is None else set(values) & set(self.values)
            self.values = list(left)
        elif op is PredicateOp.GE or op is PredicateOp.GT:
            inclusive = op is PredicateOp.GE
            if self.lower is None or _above(values[0], self.lower) or (values[0] == self.lower and not inclusive):
                self.lower, self.lower_inclusive = values[0], inclusive
        elif op is PredicateOp.LE or op is PredicateOp.LT:
            inclusive = op is PredicateOp.LE
            if self.upper is None or _above(self.upper, values[0]) or (values[0] == self.upper and not inclusive):
                self.upper, self.upper_inclusive = values[0], inclusive

    def settle(self) -> None:
        """Draws the conclusions, once all predicates are in."""
        if self.values is not None:
            self.values = sorted((v for v in self.values if self._admits(v)), key=_SortKey)
            self.impossible |= not self.values
        elif self.lower is not None and self.upper is not None:
            empty = _above(self.lower, self.upper) or (
                self.lower == self.upper and not (self.lower_inclusive and self.upper_inclusive)
            )
            self.impossible |= empty

    def lowest(self) -> tuple[object | None, bool]:
        """The lower bound and whether it is inclusive; None: unbounded."""
        return (self.values[0], True) if self.values else (self.lower, self.lower_inclusive)

    def highest(self) -> tuple[object | None, bool]:
        """The upper bound and whether it is inclusive; None: unbounded."""
        return (self.values[-1], True) if self.values else (self.upper, self.upper_inclusive)

    def _admits(self, value: object) -> bool:
        if self.lower is not None and not (_above(value, self.lower) or (value == self.lower and self.lower_inclusive)):
            return False
        return self.upper is None or _above(self.upper, value) or (value == self.upper and self.upper_inclusive)


def _above(a: Any, b: Any) -> bool:
    """a > b for two canonical values of one column, which share a type that mypy cannot know."""
    return bool(a > b)


class _SortKey:
    """Orders canonical values of one column."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __lt__(self, other: _SortKey) -> bool:
        return _above(other.value, self.value)
