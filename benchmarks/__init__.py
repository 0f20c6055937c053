"""Benchmarks: claims about speed as ratios, which also assert that the results are equal."""
