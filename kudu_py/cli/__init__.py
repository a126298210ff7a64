"""The one command, `kudu-py`, in upstream's groups: one file per group."""

from kudu_py.rpc import grpc_environment

grpc_environment.silence()  # here, because every module of the command comes after it, and most of them import gRPC
