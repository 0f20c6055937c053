"""The attribute lens: readings of hidden states, pictures, a page, and latent knowledge under distraction."""
