"""Facts: what a relation is, where relations come from, and which mistakes their data have."""
