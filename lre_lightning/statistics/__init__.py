"""Intervals, correlations and comparisons, as pure functions of arrays; docs/method.md defines them."""
