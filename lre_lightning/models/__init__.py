"""A causal LM: loading, its parts, hooks, caches, memory, hidden states and patched runs."""
