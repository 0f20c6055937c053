"""Collections of LREs that others can use: their index, files and card, in folders and on the Hugging Face hub."""
