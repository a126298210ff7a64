"""The one command, `kudu-py`, in upstream's groups: one file per group."""

from kudu_py.daemon import grpc_environment

grpc_environment.apply()  # here, because every module of the command comes after it, and most of them import gRPC
