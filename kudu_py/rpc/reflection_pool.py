"""Descriptors as server reflection asks for them: also by the full name of a method, a field or a oneof.

protobuf's own pool finds files by the names of messages, enums and services only, so that `describe
package.Service.Method` would fail.
"""

from __future__ import annotations

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor


class SymbolPool:
    """The default pool with that lookup added; has the five methods that the reflection servicer calls."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def FindFileByName(self, name: str) -> FileDescriptor:
        return self._pool.FindFileByName(name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """The file that defines the symbol; KeyError if there is none."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            owner, _, member = symbol.rpartition(".")
            file = self._pool.FindFileContainingSymbol(owner)
            if member not in self._members(owner, file):
                raise
            return file

    def FindMessageTypeByName(self, name: str) -> Descriptor:
        return self._pool.FindMessageTypeByName(name)

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:
        return self._pool.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:
        return list(self._pool.FindAllExtensions(message))

    def _members(self, owner: str, file: FileDescriptor) -> set[str]:
        """Names of what the service or message is made of."""
        services = {service.full_name: service for service in file.services_by_name.values()}
        if owner in services:
            return set(services[owner].methods_by_name)
        try:
            message = self._pool.FindMessageTypeByName(owner)
        except KeyError:
            return set()
        return set(message.fields_by_name) | set(message.oneofs_by_name)
