"""What happens around every call that a server takes: destination, deadline, errors, metrics.

Servicers are wrapped when they are registered and not by gRPC interceptors, which cost a tenth of the throughput. They
raise `KuduError` and never touch the gRPC context but to hand it to `serve_stream`, so the same wrapping serves the
simulated network.

For writers of servicers: a call is cancelled when its client gives up. Whatever must outlive it (a round that was
appended) is awaited as `await asyncio.shield(future)`: cancelling a task that awaits a bare future cancels that future
too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry, Histogram

from kudu_py.common.errors import ErrorCode, KuduError, Verdict
from kudu_py.common.ids import ServerId
from kudu_py.rpc.dest_uuid import carries_dests, dest_reader, require_dest
from kudu_py.rpc.status import to_status

Req = TypeVar("Req")
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
AddToServer = Callable[[Any, Any], None]
"""A generated `add_…Servicer_to_server`."""
Behaviour = Callable[[Any, Any], Any]
"""A servicer's method as the generated code declares it: request or requests, and a context that it leaves alone."""

OK: Final = "OK"
CANCELLED: Final = ErrorCode.CANCELLED.value
CLIENT_LEFT: Final = (grpc.aio.UsageError, grpc.aio.InternalError)
"""What writing to a call raises whose client has left."""

DURATION_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = structlog.get_logger("rpc")
_deadline: ContextVar[float | None] = ContextVar("call_deadline", default=None)


def call_remaining_s() -> float | None:
    """Seconds until the client of the current unary or scanning call gives up; None without a deadline or outside of a
    call.

    For servicers that wait for something, so that they end their wait with an error of their own.
    """
    at = _deadline.get()
    return None if at is None else max(0.0, at - asyncio.get_running_loop().time())


class CallMetrics:
    """Durations of calls by service, method and code, with the label lookups done once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            "kudu_rpc_duration_seconds",
            "Time from a call's arrival to its answer; on bidirectional streams, of each item.",
            ["service", "method", "code"],
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )

    def observer(self, service: str, method: str) -> Callable[[str, float], None]:
        """A function of code and start (loop time) that records a call's end."""
        children: dict[str, Histogram] = {}
        labels = self._durations.labels

        def observe(code: str, started: float) -> None:
            child = children.get(code)
            if child is None:
                child = children[code] = labels(service, method, code)
            child.observe(asyncio.get_running_loop().time() - started)

        return observe


class ErrorIds:
    """Ids that join the answer to a client ("internal error, id …") with the log line that has the traceback."""

    def __init__(self, uuid: ServerId) -> None:
        self._uuid = uuid
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"{self._uuid[:8]}-{self._count}"


class ServedRequests(AsyncIterator[Req], Generic[Req]):
    """The messages of a client's stream, decoded; iterating checks each one's destination.

    `serve_stream` takes them as they come and checks item by item instead, so that a wrong destination is that item's
    answer.

    Attributes:
        raw: the messages, not decoded.
    """

    def __init__(
        self,
        raw: AsyncIterator[bytes],
        deserialize: Callable[[bytes], Req],
        uuid: ServerId | None,
        observe: Callable[[str, float], None],
        error_ids: ErrorIds,
    ) -> None:
        self.raw = raw
        self._deserialize = deserialize
        self._uuid = uuid
        self.observe = observe
        self.error_ids = error_ids

    async def __anext__(self) -> Req:
        message = self.decode(await anext(self.raw))
        for item in getattr(message, "items", (message,)):
            self.check_item(item)
        return message

    def decode(self, raw: bytes) -> Req:
        """A message, for a reader that checks items by itself.

        Raises:
            KuduError: INVALID_ARGUMENT, it is none.
        """
        return _decode(self._deserialize, raw)

    def check_item(self, item: object) -> None:
        """Refuses an item that is meant for another server."""
        if self._uuid is not None:
            assert isinstance(item, Message), f"items of a stream are messages, not {type(item)}"
            read = dest_reader(item.DESCRIPTOR)
            assert read is not None, f"{item.DESCRIPTOR.full_name} names no destination"
            require_dest(read(item), self._uuid)


class Wrapping:
    """Wraps servicers for one server.

    Args:
        uuid: of this server; what `dest_uuid` must say.
        registry: where the metrics are registered.
    """

    def __init__(self, *, uuid: ServerId, registry: CollectorRegistry) -> None:
        self._uuid = uuid
        self._metrics = CallMetrics(registry)
        self._error_ids = ErrorIds(uuid)
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    def end_streams(self) -> None:
        """Ends the streams of clients, which otherwise last as long as their connections; for a server that stops.

        What they have not answered yet has an unknown outcome.
        """
        self._is_ending = True
        for task in self._streams:
            task.cancel()

    def handlers(
        self, add_to_server: AddToServer, servicer: object, *, checks_dest_uuid: bool, in_flight_max: int | None = None
    ) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
        """The wrapped handlers of a servicer, by service and method.

        The context that they are called with needs three methods: `time_remaining`, `write`, and `abort_with_status`.

        Args:
            checks_dest_uuid: requests must name this server; each type of the service has a `dest_uuid`.
            in_flight_max: calls of this service under way at most; more are told to try later. None: no bound of its
                own.
        """
        capture = _Capture()
        add_to_server(servicer, capture)
        assert capture.handlers, f"{add_to_server} registered nothing"
        gate = _Gate(in_flight_max)
        return {
            service: {
                name: self._wrap(service, name, handler, checks_dest_uuid, gate) for name, handler in handlers.items()
            }
            for service, handlers in capture.handlers.items()
        }

    def _wrap(
        self, service: str, name: str, handler: grpc.RpcMethodHandler[Any, Any], checks_dest_uuid: bool, gate: _Gate
    ) -> grpc.RpcMethodHandler[Any, Any]:
        descriptor: Descriptor = default_pool().FindServiceByName(service).methods_by_name[name].input_type
        observe = self._metrics.observer(service, name)
        deserialize = handler.request_deserializer
        assert deserialize is not None, f"{service}/{name} has no request type"
        serializer = handler.response_serializer
        behaviour = cast(
            "Behaviour", handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        # Requests are decoded here and not by gRPC, which would answer malformed ones with UNKNOWN and its own stack.
        assert not checks_dest_uuid or carries_dests(descriptor), f"requests of {service}/{name} name no destination"
        if handler.request_streaming:
            uuid = self._uuid if checks_dest_uuid else None

            def requests_of(raw: AsyncIterator[bytes]) -> ServedRequests[Any]:
                return ServedRequests(raw, deserialize, uuid, observe, self._error_ids)

            if not handler.response_streaming:
                unary = self._unary(behaviour, requests_of, observe, gate)
                return grpc.stream_unary_rpc_method_handler(unary, None, serializer)
            answering = self._streaming(behaviour, requests_of, None, gate)
            return grpc.stream_stream_rpc_method_handler(answering, None, serializer)

        decode = self._decoder(deserialize, descriptor, checks_dest_uuid)
        if handler.response_streaming:
            answering = self._streaming(behaviour, decode, observe, gate)
            return grpc.unary_stream_rpc_method_handler(answering, None, serializer)
        unary = self._unary(behaviour, decode, observe, gate)
        return grpc.unary_unary_rpc_method_handler(unary, None, serializer)

    def _decoder(
        self, deserialize: Callable[[bytes], Any], descriptor: Descriptor, checks_dest_uuid: bool
    ) -> Callable[[bytes], Any]:
        if not checks_dest_uuid:
            return lambda raw: _decode(deserialize, raw)
        uuid = self._uuid

        def decode(raw: bytes) -> Any:
            request = _decode(deserialize, raw)
            require_dest(request.dest_uuid, uuid)
            return request

        return decode

    def _unary(
        self, behaviour: Behaviour, decode: Callable[[Any], Any], observe: Callable[[str, float], None], gate: _Gate
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(raw: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = asyncio.get_running_loop().time()
            try:
                with gate:
                    request = decode(raw)
                    _enter_deadline(context, started)
                    response = await behaviour(request, context)
            except Exception as raised:
                error = raised if isinstance(raised, KuduError) else as_kudu_error(raised, self._error_ids)
                observe(error.code.value, started)
            except BaseException:
                observe(CANCELLED, started)
                raise
            else:
                observe(OK, started)
                return response
            await _abort(context, error)

        return answer

    def _streaming(
        self,
        behaviour: Behaviour,
        decode: Callable[[Any], Any],
        observe: Callable[[str, float], None] | None,
        gate: _Gate,
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A handler that writes the answers itself, so that the servicer's generator is closed the moment the call
        ends.

        Were the generator handed to gRPC, a cancelled scan would keep its snapshot until the collector finds it.
        """

        async def answer(raw: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            started = asyncio.get_running_loop().time()
            code = CANCELLED
            task = asyncio.current_task()
            assert task is not None
            if observe is None:  # a stream of requests
                self._streams.add(task)
            try:
                if observe is None and self._is_ending:  # taken just before, and nobody would end it
                    raise KuduError(ErrorCode.SHUTTING_DOWN, "the server is stopping", verdict=Verdict.TRY_LATER)
                with gate:
                    request = decode(raw)
                    _enter_deadline(context, started)
                    responses = behaviour(request, context)
                    if isawaitable(responses):  # it writes by itself: `serve_stream`
                        await responses
                    else:
                        async with aclosing(responses):
                            async for response in responses:
                                await context.write(response)
                code = OK
                return
            except CLIENT_LEFT:
                # Written to a call that its client has left: in order, or by dying, before this call was cancelled.
                raise asyncio.CancelledError from None
            except asyncio.CancelledError:
                if observe is not None or not self._is_ending:
                    raise
                task.uncancel()
                error = KuduError(ErrorCode.SHUTTING_DOWN, "the server is stopping", verdict=Verdict.UNKNOWN)
            except Exception as raised:
                error = raised if isinstance(raised, KuduError) else as_kudu_error(raised, self._error_ids)
                code = error.code.value
            finally:
                self._streams.discard(task)
                if observe is not None:
                    observe(code, started)
            await _abort(context, error)

        return answer


class _Capture:
    """Takes what the generated code registers, in place of a server."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handlers] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same handlers in another form; not needed."""

    def add_registered_method_handlers(self, service: str, handlers: Handlers) -> None:
        self.handlers[service] = handlers


class _Gate:
    """Counts the calls under way and refuses those above the bound."""

    def __init__(self, in_flight_max: int | None) -> None:
        self._in_flight_max = in_flight_max
        self._in_flight = 0

    def __enter__(self) -> None:
        if self._in_flight_max is not None and self._in_flight >= self._in_flight_max:
            raise KuduError(
                ErrorCode.SERVER_TOO_BUSY,
                f"{self._in_flight} calls of this service are under way, as many as are taken at once",
                verdict=Verdict.TRY_LATER,
            )
        self._in_flight += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._in_flight -= 1


def as_kudu_error(raised: Exception, error_ids: ErrorIds | ServedRequests[Any] | None) -> KuduError:
    """An exception that no servicer should let out, logged, as INTERNAL with an id; its text stays here."""
    if isinstance(error_ids, ServedRequests):
        error_ids = error_ids.error_ids
    error_id = error_ids.next() if error_ids is not None else "none"
    _log.error("call_failed", error_id=error_id, exc_info=raised)
    return KuduError(
        ErrorCode.INTERNAL,
        f"an internal error; the server's log has it under error_id {error_id}",
        verdict=Verdict.UNKNOWN,
        details={"error_id": error_id},
    )


def _decode(deserialize: Callable[[bytes], Req], raw: bytes) -> Req:
    try:
        return deserialize(raw)
    except DecodeError as error:
        raise KuduError(ErrorCode.INVALID_ARGUMENT, f"the request is malformed: {error}") from error


def _enter_deadline(context: grpc.aio.ServicerContext[Any, Any], now: float) -> None:
    """Refuses a call whose client gave up while it waited its turn here; notes the deadline of others."""
    remaining = cast("float | None", context.time_remaining())
    if remaining is None:
        return
    if remaining <= 0:
        raise KuduError(
            ErrorCode.TIMED_OUT, "the deadline had passed when the call got its turn", verdict=Verdict.TRY_LATER
        )
    _deadline.set(now + remaining)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: KuduError) -> None:
    await context.abort_with_status(cast("grpc.Status", rpc_status.to_status(to_status(error))))
