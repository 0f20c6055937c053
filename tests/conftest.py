"""Settings that must be in place before any test module imports torch or Hugging Face libraries."""

import os

os.environ["HF_HUB_OFFLINE"] = (
    "1"  # no test may reach for the network; those of the hub serve it locally and unset this
)
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else each fork warns
os.environ["MPLBACKEND"] = "Agg"

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores
