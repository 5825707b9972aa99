"""Records beyond memory: read in parts, sorted, added up by an engine."""
