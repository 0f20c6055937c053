"""From Jacobians to LREs: the sweep over layers, the estimator, the frozen LRE, its inverse and its file."""
