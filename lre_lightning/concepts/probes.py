"""Linear probes that are trained on the same hidden states as concepts, to compare concepts with."""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lre_lightning.concepts.record import STANDARDIZED
from lre_lightning.errors import LREError


def check_installed() -> None:
    """Check that scikit-learn, which fits probes, is installed."""
    if find_spec("sklearn") is None:
        raise LREError('probes are fitted by scikit-learn, which is not installed: pip install "lre-lightning[probes]"')


def fit_probes(states: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Fit linear probes that tell the objects of subjects from their hidden states.

    The SVM and the logistic probe are those of scikit-learn, with its defaults. As these penalize large weights, both
    depend on the scale of each dimension: they are fitted to the states as they are, and to states standardized by the
    mean and deviation of each dimension over the samples. The difference of means takes for every object the direction
    from the mean of the other states to that of its own, and scores states less their mean.

    Args:
        states: s, `(samples, hidden)`.
        labels: Indices of the objects, each of which has a sample, int64 `(samples,)`.

    Returns:
        Directions `(objects, hidden)` and offsets `(objects,)` by method, such that a state has the object with the
        highest score ``directions @ s + offset``.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    mean, deviation = states.mean(0), states.std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1)
    probes = {"difference of means": _difference_of_means(states, labels)}
    for name, standardized in STANDARDIZED.items():
        svm = name == "linear SVM"
        made = partial(LinearSVC, random_state=0) if svm else LogisticRegression
        probes[name] = _of_classifier(made(max_iter=10_000), states, labels)
        directions, offsets = _of_classifier(made(max_iter=10_000), (states - mean) / deviation, labels)
        probes[standardized] = directions / deviation, offsets - directions / deviation @ mean
    return probes


def _difference_of_means(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    own = labels == torch.arange(int(labels.max()) + 1, device=labels.device)[:, None]
    directions = torch.stack([states[rows].mean(0) - states[~rows].mean(0) for rows in own])
    directions = torch.nn.functional.normalize(directions)
    return directions, -directions @ states.mean(0)


def _of_classifier(classifier: Any, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a linear classifier of scikit-learn, which has a single direction where there are two objects."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        classifier.fit(states.cpu().numpy(), labels.cpu().numpy())
    directions, offsets = (torch.as_tensor(weights).to(states) for weights in (classifier.coef_, classifier.intercept_))
    if len(directions) == 1:
        directions, offsets = torch.cat([-directions, directions]), torch.cat([-offsets, offsets])
    return directions, offsets
