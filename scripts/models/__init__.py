"""Tries every type of causal LM that transformers knows, and writes down what came out."""
