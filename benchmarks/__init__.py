"""Speed claims as ratios, with the equality of results asserted beside them."""
