"""LMs that forked processes load, run by tests/models/test_placement.py in a child of the launcher."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest import mock

import torch
from transformers import AutoModelForCausalLM

from lre_lightning.models.loading import Loading, load_model

THREADS = 8


def load_in_forks(count: int) -> int:
    """How many of `count` forked processes fail to load an LM whose weights all threads read at once."""
    barrier = Barrier(THREADS)

    def read(_number: int) -> torch.Tensor:
        barrier.wait()
        return torch.ones(3).to(torch.bfloat16).sum()

    def from_pretrained(_path: str, **_given: object) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read, range(THREADS)))

    failed = 0
    with mock.patch.object(AutoModelForCausalLM, "from_pretrained", from_pretrained):
        for _ in range(count):
            if not (process := os.fork()):
                status = 1
                try:
                    load_model(os.getcwd(), Loading())
                    status = 0
                finally:
                    os._exit(status)
            failed += os.waitpid(process, 0)[1] != 0
    return failed
