"""Generated from `protos/`; never edited (`make protos`)."""
