"""The master: the catalog of tables and tablets, kept in a replicated tablet, and the care for tablet servers."""
