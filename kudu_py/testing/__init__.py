"""Simulator and harness, typed and documented as product code, imported by tests only."""
