"""The Jacobian lens: what hidden states make an LM say, without a relation."""
