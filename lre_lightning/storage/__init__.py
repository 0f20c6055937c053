"""Whole files, locks, page templates, and plain data checked before use."""
