"""Settings that must be in place before any test module imports torch or Hugging Face libraries."""

import os

# No test may reach for the network; those of the hub serve it locally and unset this.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else each fork warns
os.environ["MPLBACKEND"] = "Agg"

import torch

torch.set_num_threads(1)  # tiny models gain nothing from threads, and lose much where the cores are shared
