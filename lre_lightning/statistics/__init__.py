"""Intervals, correlations and comparisons, as pure functions of arrays: what is known of them is in docs/method.md."""
