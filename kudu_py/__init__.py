"""A replicated, columnar table store in the design of Apache Kudu."""
