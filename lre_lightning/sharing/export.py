"""LREs and concepts in files that others read: two plain tensors, and control vectors of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lre_lightning.concepts.concepts import Concepts, concept_files
from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.editing import hidden_at
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.storage.files import safe_name, write_whole, written_whole

SUBJECTS = 8
"""The most training samples over which the length of hidden states is averaged."""


def write_plain(path: str | Path, lre: LRE) -> None:
    """Write an LRE as two tensors that need none of our code, W and b, to one safetensors file, atomically.

    Its prediction is ``beta * W @ s + b``, with s after the block `layer`. Beta, layer, relation and LM are texts in
    the header of the file. `LRE.load` does not read it: it lacks the origin.

    Args:
        path: The file.
        lre: The LRE, with W in full or in factors, which are multiplied out.

    Raises:
        LREError: If W is matrix-free, or the file cannot be written.
    """
    from safetensors.torch import save

    lre.tensors()  # which says if there are none
    weight = lre.operator.dense()
    header = {"beta": lre.beta, "layer": lre.layer, "relation": lre.origin.relation, "model": lre.origin.model}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in {"W": weight, "b": lre.bias}.items()}
    write_whole(Path(path), save(tensors, {name: str(value) for name, value in header.items()}))


def write_control_vector(
    path: str | Path,
    concepts: Concepts,
    target: str,
    source: str | None = None,
    layers: Sequence[Layer] | None = None,
    magnitude: float = 0.5,
) -> None:
    """Write a concept as a control vector of llama.cpp, a GGUF file, atomically.

    llama.cpp adds the vector to the output of the block at every position, in the prompt and in what it generates:
    ``llama-cli --control-vector FILE``, or ``--control-vector-scaled FILE:SCALE``. So the file steers all that is said,
    where `Concepts.steer` edits one subject.

    Args:
        path: The file.
        concepts: The concepts, bound to their LM.
        target: The object whose concept is added.
        source: The object whose concept is subtracted, if any.
        layers: The blocks after which it is added; that of the concepts if None.
        magnitude: The length of each concept at scale 1, by the mean norm of s over some training samples.

    Raises:
        LREError: If the concepts are not bound to an LM, an object has no concept, a layer is none that llama.cpp can
            steer, the package `gguf` is missing, or the file cannot be written.
    """
    lm = concepts.bound
    chosen = lm.check_layers(layers or [concepts.layer])
    check_steerable(chosen)
    try:
        from gguf import GGUFWriter
    except ImportError as error:
        raise LREError("a control vector needs gguf: pip install 'lre-lightning[gguf]'") from error
    prompts = [concepts.origin.prompt(lm, subject) for subject, _ in concepts.origin.train[:SUBJECTS]]
    if not prompts:
        raise LREError(f"the {concepts.title} does not say which prompts it was estimated from")
    with torch.no_grad():
        states = [hidden_at(lm, prompt, concepts.layer, prompt.subject_position) for prompt in prompts]
    length = magnitude * float(torch.stack(states).double().norm(dim=-1).mean())
    direction = concepts[target] - (0 if source is None else concepts[source])
    vector = (length * direction).float().cpu().numpy()
    config = getattr(lm.model, "config", None)
    with written_whole(Path(path)) as part:
        writer = GGUFWriter(part, "controlvector")
        writer.add_string("controlvector.model_hint", getattr(config, "model_type", "unknown"))
        writer.add_int32("controlvector.layer_count", lm.num_layers)
        for layer in chosen:
            writer.add_tensor(f"direction.{layer}", vector)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def check_steerable(layers: Sequence[Layer]) -> None:
    """Check that llama.cpp can steer layers: it adds nothing to embeddings nor after block 0."""
    for layer in layers:
        if layer in ("emb", 0):
            raise LREError(
                f"llama.cpp adds control vectors after the blocks from 1 on, not at layer {layer!r}: name another one, "
                "or estimate the concepts there"
            )


def write_control_vectors(lm: LanguageModel, folder: Path, magnitude: float) -> None:
    """Write a control vector for each object of the concepts in a folder, below a folder beside each of their files."""
    for path in concept_files(folder):
        concepts = Concepts.load(path, lm)
        for target in concepts.objects:
            file = path.with_suffix("") / f"{safe_name(target)}.gguf"
            write_control_vector(file, concepts, target, magnitude=magnitude)
