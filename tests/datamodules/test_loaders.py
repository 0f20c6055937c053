"""The split of prompts into batches and processes."""

import math

import pytest

from lre_lightning.datamodules.loaders import split_test, split_train


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_training_prompts_are_split_evenly(n, count):
    processes = [split_train(4, n, 2, process, count) for process in range(count)]
    assert len({tuple(len(portion.samples) for portion in portions) for portions in processes}) == 1
    together = [portion for portions in processes for portion in portions]
    split = [pair for portion in together for pair in zip(portion.samples, portion.weights, strict=True)]
    assert sorted(sample for sample, weight in split if weight == 1) == list(range(n))
    assert {weight for _, weight in split} <= {0.0, 1.0}
    assert len(split) - n < count
    assert {portion.index for portion in together} == {4}


@pytest.mark.parametrize(("batch_size", "size"), [(2, 2), (3, 3), (7, 3)])
def test_training_prompts_that_belong_together_are_never_parted(batch_size, size):
    """In batches of two they come in twos, whatever the number of processes."""
    for count in (1, 2, 3, 5):
        processes = [split_train(0, 8, batch_size, process, count, together=3) for process in range(count)]
        assert len({len(portions) for portions in processes}) == 1
        batches = [portion for portions in processes for portion in portions]
        found = [[i for i, weight in zip(one.samples, one.weights, strict=True) if weight] for one in batches]
        assert sorted(i for samples in found for i in samples) == list(range(8))
        groups = [group for samples in found for group in {i // size for i in samples}]
        assert sorted(groups) == list(range(-(-8 // size)))
        assert all(len(one.samples) <= batch_size for one in batches)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_every_test_prompt_goes_to_one_process(count):
    shapes = {2: [3, 2, 2, 1, 1], 0: [1], 7: [1] * 4}
    processes = [split_test(shapes, 2, process, count) for process in range(count)]
    own = [[portion for portion in portions if all(portion.weights)] for portions in processes]
    split = [(portion.index, i) for portions in own for portion in portions for i in portion.samples]
    assert sorted(split) == sorted((index, i) for index, found in shapes.items() for i in range(len(found)))
    for portions in own:
        assert all(len(portion.samples) == len(portion.weights) <= 2 for portion in portions)
        for index, found in shapes.items():
            mine = sum(len(portion.samples) for portion in portions if portion.index == index)
            assert mine <= math.ceil(len(found) / count)


@pytest.mark.parametrize("count", [2, 3])
def test_prompts_of_one_shape_go_to_one_process_where_that_is_fair(count):
    """No load exceeds the mean, with as few prompts of a shape apart as that allows, by more than a shape's cost."""
    for sizes in ([1, 15, 31, 11, 6], [61, 5, 6], [14, 37, 6], [8, 33, 56, 6, 1], [40], [1, 1, 2]):
        shapes = [shape for shape, size in enumerate(sizes) for _ in range(size)]
        for together in (1, 4):
            loads, parts = [], 0
            for process in range(count):
                chosen = [i for one in split_test({0: shapes}, 8, process, count, together) for i in one.samples]
                parts += len({shapes[i] for i in chosen})
                loads.append(len(chosen) + 2 * (together - 1) * len({shapes[i] for i in chosen}))
            assert parts < len(sizes) + count
            assert max(loads) <= sum(loads) / count + 2 * together


def test_no_process_is_without_a_batch():
    processes = [split_test({3: [1, 1]}, 4, process, 4) for process in range(4)]
    assert sorted(portion.weights for (portion,) in processes) == [(0.0,), (0.0,), (1.0,), (1.0,)]
    assert split_test({}, 4, 1, 2) == []  # after the last trial no process has one
