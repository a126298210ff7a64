"""`SimNetwork`: channel and server doubles for generated stubs and servicers, on virtual time.

The seam is the channel: generated stubs ask it for a callable per method, and `rpc.calls.Wrapping` gives the same
wrapped handlers that the real server mounts. So serialisation, destination checks, error mapping, servicers and codecs
are all inside the simulation.

What it does to messages: each takes a drawn delay; on a stream they stay in order, between calls they do not. A *cut*
between two nodes, in one direction or both, drops unary messages and holds up stream messages until it heals, or until
the stream breaks as TCP connections do in the end. A unary request may be delivered twice. A server that is killed
breaks its calls.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from kudu_py.common.ids import ServerId
from kudu_py.rpc.address import parse_address
from kudu_py.rpc.calls import AddToServer, Wrapping

_NO_METADATA = grpc.aio.Metadata()
_EOF = object()
_STEP_S = 1e-6
"""Between two messages of one stream: above the resolution at which the loop may shuffle timers."""


@dataclass(frozen=True, slots=True)
class SimNetworkOptions:
    """How the network behaves; times in seconds.

    Attributes:
        delay_s: least time of a message. jitter_s: drawn on top, uniformly.
        duplicate_chance: that a unary request is delivered twice.
        break_after_s: a stream that was cut for longer breaks, at a time drawn from once to twice this.
        connect_timeout_s: a unary call without a deadline to a node that does not answer fails after this.
    """

    delay_s: float = 0.0002
    jitter_s: float = 0.0004
    duplicate_chance: float = 0.0
    break_after_s: float = 2.0
    connect_timeout_s: float = 20.0


class SimNetwork:
    """Nodes by address, and the state of the ways between them."""

    def __init__(self, rng: random.Random, options: SimNetworkOptions = SimNetworkOptions()) -> None:
        self.rng, self.options = rng, options
        self._servers: dict[str, SimServer] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._calls: set[_Call] = set()
        self.messages = 0

    def server(self, address: str, uuid: ServerId, registry: CollectorRegistry | None = None) -> SimServer:
        """A server that is to listen at `address`."""
        return SimServer(self, address, Wrapping(uuid=uuid, registry=registry or CollectorRegistry()))

    def dialer(self, address: str) -> SimDialer:
        """The way out of the node at `address`."""
        return SimDialer(self, address)

    def cut(self, origin: str, target: str, *, both_ways: bool = True) -> None:
        """From now on nothing gets from `origin` to `target`."""
        self._cuts.add((origin, target))
        if both_ways:
            self._cuts.add((target, origin))
        for call in sorted(self._calls, key=lambda call: call.number):
            if {call.origin, call.target} == {origin, target}:
                call.break_later()

    def heal(self, origin: str | None = None, target: str | None = None, *, both_ways: bool = True) -> None:
        """Ends the cuts between two nodes, or all."""
        for way in sorted(self._cuts):
            if origin is None or way == (origin, target) or (both_ways and way == (target, origin)):
                self._cuts.discard(way)
        for call in sorted(self._calls, key=lambda call: call.number):
            call.flush()

    def isolate(self, address: str) -> None:
        """Cuts a node off from all servers."""
        for other in sorted(self._servers):
            if other != address:
                self.cut(address, other)

    def kill(self, address: str) -> None:
        """The node is gone at once: its server and all calls from and to it."""
        self._servers.pop(address, None)
        for call in sorted(self._calls, key=lambda call: call.number):
            if address in (call.origin, call.target):
                call.break_now(f"connection to {call.target} was reset")

    def is_cut(self, origin: str, target: str) -> bool:
        """Whether nothing gets through."""
        return (origin, target) in self._cuts

    def delay(self) -> float:
        """Of the next message."""
        return self.options.delay_s + self.options.jitter_s * self.rng.random()

    def listen(self, server: SimServer) -> None:
        """A server begins to listen."""
        assert server.address not in self._servers, f"{server.address} is taken"
        self._servers[server.address] = server

    def find(self, address: str) -> SimServer | None:
        """The server at an address."""
        return self._servers.get(address)

    def enter(self, call: _Call) -> None:
        """A call began."""
        self._calls.add(call)

    def leave(self, call: _Call) -> None:
        """A call ended."""
        self._calls.discard(call)


class SimServer:
    """The double of `RpcServer`."""

    def __init__(self, network: SimNetwork, address: str, wrapping: Wrapping) -> None:
        self.address = address
        self._network, self._wrapping = network, wrapping
        self.methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add(
        self, add_to_server: AddToServer, servicer: object, *, checks_dest_uuid: bool, in_flight_max: int | None = None
    ) -> None:
        """Registers a servicer, as `RpcServer.add`."""
        wrapped = self._wrapping.handlers(
            add_to_server, servicer, checks_dest_uuid=checks_dest_uuid, in_flight_max=in_flight_max
        )
        for service, handlers in wrapped.items():
            for name, handler in handlers.items():
                self.methods[f"/{service}/{name}"] = handler

    async def start(self, bind_address: str | None = None) -> str:
        """Begins to listen."""
        self._network.listen(self)
        return self.address

    def set_serving(self, serving: bool) -> None:
        """There is no health service here."""

    async def stop(self, grace_s: float = 0.0) -> None:
        """Ends at once."""
        if self._network.find(self.address) is self:
            self._network.kill(self.address)


class SimDialer:
    """The double of `GrpcDialer`."""

    def __init__(self, network: SimNetwork, origin: str) -> None:
        self._network, self._origin = network, origin

    def channel(self, address: str) -> grpc.aio.Channel:
        """A double that generated stubs take for a channel; as particular about addresses as the real one."""
        parse_address(address)
        return cast("grpc.aio.Channel", SimChannel(self._network, self._origin, address))

    def permit(self, address: str) -> AbstractAsyncContextManager[None]:
        """Nothing is bounded here."""
        return nullcontext()

    async def close(self) -> None:
        """Nothing is held here."""


class SimChannel:
    """What a generated stub asks for: a callable per method."""

    def __init__(self, network: SimNetwork, origin: str, target: str) -> None:
        self._network, self._origin, self._target = network, origin, target

    def _callable(
        self, method: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any], streaming: bool
    ) -> Callable[..., ClientCall]:
        def start(requests: Any = None, *, timeout: float | None = None, metadata: Any = None, **_: Any) -> ClientCall:
            call = _Call(self._network, self._origin, self._target, method, deserialize, timeout)
            client = ClientCall(call, serialize)
            if streaming:
                if requests is not None:
                    client.send_all(requests)
            else:
                call.send_to_server(serialize(requests))
                call.end_requests()
            call.start()
            return client

        return start

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered: Any = None,
        **_: Any,
    ) -> Callable[..., ClientCall]:
        return self._callable(method, request_serializer, response_deserializer, False)

    unary_stream = unary_unary

    def stream_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered: Any = None,
        **_: Any,
    ) -> Callable[..., ClientCall]:
        return self._callable(method, request_serializer, response_deserializer, True)

    stream_stream = stream_unary


class ClientCall:
    """A call as the client holds it: awaitable if it is unary, a stream of messages both ways otherwise."""

    def __init__(self, call: _Call, serialize: Callable[[Any], bytes]) -> None:
        self._call, self._serialize = call, serialize
        self._feeder: asyncio.Task[None] | None = None

    def __await__(self) -> Any:
        return self._unary().__await__()

    async def _unary(self) -> Any:
        try:
            answer = await self._call.next_response()
        except asyncio.CancelledError:
            self.cancel()
            raise
        assert answer is not _EOF, f"{self._call.method} ended without an answer"
        return answer

    async def read(self) -> Any:
        """The next response; `grpc.aio.EOF` after the last."""
        answer = await self._call.next_response()
        return grpc.aio.EOF if answer is _EOF else answer

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (answer := await self._call.next_response()) is not _EOF:
            yield answer

    async def write(self, request: Any) -> None:
        """Sends the next request."""
        if self._call.is_done:
            raise asyncio.InvalidStateError("the call is over")
        self._call.send_to_server(self._serialize(request))

    async def done_writing(self) -> None:
        """There will be no more requests."""
        self._call.end_requests()

    def cancel(self) -> bool:
        """Ends the call from this side."""
        if self._feeder is not None:
            self._feeder.cancel()
        return self._call.cancel()

    def done(self) -> bool:
        """Whether the call is over."""
        return self._call.is_done

    def send_all(self, requests: Any) -> None:
        """Feeds the call from an iterator, as the real one does."""

        async def feed() -> None:
            async for request in requests:
                await self.write(request)
            await self.done_writing()

        self._feeder = asyncio.get_running_loop().create_task(feed(), name=f"feed {self._call.method}")


class _Aborted(Exception):
    """A handler ended its call with a status."""


class _Pipe:
    """Messages of one call in one direction: in order, delayed, held up by a cut."""

    def __init__(self, call: _Call, origin: str, target: str) -> None:
        self._call, self._origin, self._target = call, origin, target
        self._loop = asyncio.get_running_loop()
        self._last_at = 0.0
        self._held: deque[Callable[[], None]] = deque()

    def send(self, deliver: Callable[[], None]) -> None:
        at = max(self._loop.time() + self._call.network.delay(), self._last_at + _STEP_S)
        self._last_at = at
        self._call.network.messages += 1
        self._loop.call_at(at, self._arrive, deliver)

    def _arrive(self, deliver: Callable[[], None]) -> None:
        if self._held or self._call.network.is_cut(self._origin, self._target):
            self._held.append(deliver)
        else:
            deliver()

    def flush(self) -> None:
        if not self._call.network.is_cut(self._origin, self._target):
            held, self._held = self._held, deque()
            for deliver in held:
                self.send(deliver)


class _Call:
    """One call, both its ends."""

    _count = 0

    def __init__(
        self,
        network: SimNetwork,
        origin: str,
        target: str,
        method: str,
        deserialize: Callable[[bytes], Any],
        timeout: float | None,
    ) -> None:
        _Call._count += 1
        self.number = _Call._count
        self.network, self.origin, self.target, self.method = network, origin, target, method
        self._deserialize = deserialize
        self._loop = asyncio.get_running_loop()
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._there, self._back = _Pipe(self, origin, target), _Pipe(self, target, origin)
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._responses: asyncio.Queue[Any] = asyncio.Queue()
        self._handler: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._ended: BaseException | None = None
        self.is_done = False
        self._first: bytes | None = None

    def start(self) -> None:
        self.network.enter(self)
        self._there.send(self._accept)
        timeout = self.network.options.connect_timeout_s
        if self._deadline is not None:
            timeout = max(0.0, self._deadline - self._loop.time())
            self._timers.append(
                self._loop.call_later(timeout, self._fail, grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            )
        elif self.network.is_cut(self.origin, self.target):
            self._timers.append(
                self._loop.call_later(timeout, self._fail, grpc.StatusCode.UNAVAILABLE, "no connection")
            )

    # The client's end.

    def send_to_server(self, raw: bytes) -> None:
        self._there.send(lambda: self._requests.put_nowait(raw))

    def end_requests(self) -> None:
        self._there.send(lambda: self._requests.put_nowait(_EOF))

    async def next_response(self) -> Any:
        if self._responses.empty() and self.is_done:
            if self._ended is not None:
                raise self._ended
            return _EOF
        answer = await self._responses.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> bool:
        if self.is_done:
            return False
        self._end(asyncio.CancelledError())  # as grpcio: whoever still reads is cancelled
        self._there.send(self._stop_handler)
        return True

    # The network between.

    def break_later(self) -> None:
        """A cut began: unary messages are lost for good; a stream may survive a short one."""
        after = self.network.options.break_after_s * (1.0 + self.network.rng.random())
        self._timers.append(self._loop.call_later(after, self._break_if_cut))

    def _break_if_cut(self) -> None:
        if self.network.is_cut(self.origin, self.target) or self.network.is_cut(self.target, self.origin):
            self.break_now(f"connection to {self.target} timed out")

    def break_now(self, why: str) -> None:
        self._fail(grpc.StatusCode.UNAVAILABLE, why)
        self._stop_handler()

    def flush(self) -> None:
        self._there.flush()
        self._back.flush()

    # The server's end.

    def _accept(self) -> None:
        server = self.network.find(self.target)
        handler = server.methods.get(self.method) if server is not None else None
        if server is None:
            self._back.send(lambda: self._fail(grpc.StatusCode.UNAVAILABLE, f"{self.target}: connection refused"))
        elif handler is None:
            self._back.send(lambda: self._fail(grpc.StatusCode.UNIMPLEMENTED, f"no method {self.method}"))
        else:
            self._handler = self._loop.create_task(self._serve(handler), name=f"serve {self.method}")
            if not handler.request_streaming and self.network.rng.random() < self.network.options.duplicate_chance:
                self._loop.create_task(self._serve(handler, twin=True), name=f"serve {self.method} again")

    async def _serve(self, handler: Any, *, twin: bool = False) -> None:
        context = _Context(self, handler.response_serializer, mute=twin)
        status: Any = None
        try:
            if handler.request_streaming:
                requests: Any = self._raw_requests()
            else:
                if self._first is None:
                    first = await self._requests.get()
                    self._first = first if self._first is None else self._first
                requests = self._first
            behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
            answer = await behaviour(requests, context)
            if not handler.response_streaming:
                await context.write(answer)
        except _Aborted as aborted:
            status = aborted.args[0]
        except asyncio.CancelledError:
            return
        if not twin:
            self._back.send(lambda: self._finish(status))

    async def _raw_requests(self) -> AsyncIterator[bytes]:
        while (raw := await self._requests.get()) is not _EOF:
            yield raw

    def send_to_client(self, raw: bytes) -> None:
        self._back.send(lambda: None if self.is_done else self._responses.put_nowait(self._deserialize(raw)))

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._loop.time()

    # The end.

    def _finish(self, status: Any) -> None:
        if status is None:
            self._end(None)
        else:
            metadata = grpc.aio.Metadata(*status.trailing_metadata)
            self._end(grpc.aio.AioRpcError(status.code, _NO_METADATA, metadata, details=status.details))

    def _fail(self, code: grpc.StatusCode, details: str) -> None:
        if not self.is_done:
            self._end(grpc.aio.AioRpcError(code, _NO_METADATA, _NO_METADATA, details=details))
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._there.send(self._stop_handler)

    def _end(self, error: BaseException | None) -> None:
        if self.is_done:
            return
        self.is_done, self._ended = True, error
        self._responses.put_nowait(_EOF if error is None else error)
        for timer in self._timers:
            timer.cancel()
        self.network.leave(self)

    def _stop_handler(self) -> None:
        if self._handler is not None:
            self._handler.cancel()


class _Context:
    """The three methods that wrapped handlers ask of a context."""

    def __init__(self, call: _Call, serialize: Callable[[Any], bytes], *, mute: bool) -> None:
        self._call, self._serialize, self._mute = call, serialize, mute

    def time_remaining(self) -> float | None:
        return self._call.time_remaining()

    async def write(self, response: Any) -> None:
        if not self._mute:
            self._call.send_to_client(self._serialize(response))

    async def abort_with_status(self, status: Any) -> None:
        raise _Aborted(status)
