"""What the client raises: `KuduError` under the names that kudu-python's users catch.

Every public method raises one of these, whatever layer met the trouble. "Failed" and "unknown" are different classes:
after `KuduOutcomeUnknown` a write may or may not have taken effect; after any other error it has not.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, ParamSpec, TypeVar

from kudu_py.common.errors import ErrorCode, KuduError, Verdict

P = ParamSpec("P")
T = TypeVar("T")


class KuduException(KuduError):
    """Anything that the client raises."""


class KuduBadStatus(KuduException):
    """A server, or a check of the client, said no."""


class KuduNotFound(KuduBadStatus):
    """The table, column, tablet or row is not there."""


class KuduAlreadyPresent(KuduBadStatus):
    """The table or row is there already."""


class KuduNotSupported(KuduBadStatus):
    """Not offered, or not yet."""


class KuduInvalidArgument(KuduBadStatus):
    """What was given cannot be: the message names it."""


class KuduTimeout(KuduBadStatus):
    """Not done in time, and nothing was changed."""


class KuduUnavailable(KuduBadStatus):
    """No server could be reached, or none was ready."""


class KuduOutcomeUnknown(KuduBadStatus):
    """A write was sent and no answer came in time: it may or may not have taken effect.

    Writing the same row again with `upsert` is always right.
    """


_BY_CODE: dict[ErrorCode, type[KuduException]] = {
    ErrorCode.NOT_FOUND: KuduNotFound,
    ErrorCode.TABLE_NOT_FOUND: KuduNotFound,
    ErrorCode.TABLET_NOT_FOUND: KuduNotFound,
    ErrorCode.COLUMN_NOT_FOUND: KuduNotFound,
    ErrorCode.TABLET_SERVER_NOT_FOUND: KuduNotFound,
    ErrorCode.ALREADY_PRESENT: KuduAlreadyPresent,
    ErrorCode.TABLE_ALREADY_PRESENT: KuduAlreadyPresent,
    ErrorCode.NOT_SUPPORTED: KuduNotSupported,
    ErrorCode.INVALID_ARGUMENT: KuduInvalidArgument,
    ErrorCode.INVALID_SCHEMA: KuduInvalidArgument,
    ErrorCode.MISMATCHED_SCHEMA: KuduInvalidArgument,
    ErrorCode.INVALID_ROW_BLOCK: KuduInvalidArgument,
    ErrorCode.INVALID_MUTATION: KuduInvalidArgument,
    ErrorCode.INVALID_SCAN_SPEC: KuduInvalidArgument,
    ErrorCode.INVALID_SNAPSHOT: KuduInvalidArgument,
    ErrorCode.ILLEGAL_REPLICATION_FACTOR: KuduInvalidArgument,
    ErrorCode.EVEN_REPLICATION_FACTOR: KuduInvalidArgument,
    ErrorCode.REPLICATION_FACTOR_TOO_HIGH: KuduInvalidArgument,
    ErrorCode.TOO_MANY_TABLETS: KuduInvalidArgument,
    ErrorCode.TIMED_OUT: KuduTimeout,
    ErrorCode.UNAVAILABLE: KuduUnavailable,
    ErrorCode.SHUTTING_DOWN: KuduUnavailable,
}


def public_error(error: KuduError) -> KuduException:
    """The same error, under the class that users catch."""
    if isinstance(error, KuduException):
        return error
    kind = KuduOutcomeUnknown if error.verdict is Verdict.UNKNOWN else _BY_CODE.get(error.code, KuduBadStatus)
    return kind(error.code, error.message, verdict=error.verdict, details=error.details)


def raises_public(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a plain function raise what users catch."""

    @functools.wraps(function)
    def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KuduException:
            raise
        except KuduError as error:
            raise public_error(error) from error

    return translated


def raises_public_async(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Makes a coroutine function raise what users catch."""

    @functools.wraps(function)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except KuduException:
            raise
        except KuduError as error:
            raise public_error(error) from error

    return translated


def raises_public_iter(function: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, AsyncGenerator[T, None]]:
    """Makes an asynchronous generator function raise what users catch."""

    @functools.wraps(function)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        try:
            async with aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except KuduException:
            raise
        except KuduError as error:
            raise public_error(error) from error

    return translated


def invalid(message: str) -> KuduInvalidArgument:
    """An argument that cannot be."""
    return KuduInvalidArgument(ErrorCode.INVALID_ARGUMENT, message)


def not_supported(message: str) -> KuduNotSupported:
    """Something that kudu-python has and this client does not."""
    return KuduNotSupported(ErrorCode.NOT_SUPPORTED, message)
