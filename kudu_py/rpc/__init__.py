"""gRPC plumbing with no domain logic: servers, channels, the error table, deadlines and the one retry loop."""
