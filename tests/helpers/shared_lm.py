"""LMs that two processes share, beside whole ones, run by tests/models/test_sharding.py in a child of the launcher."""

import json
from pathlib import Path

import torch
from torch import distributed

from lre_lightning.concepts.concepts import estimate_concepts
from lre_lightning.errors import LREError
from lre_lightning.lens.reading import read_lenses
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models import sharding
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.products import double_vjp, jvp, vjp
from lre_lightning.relations.sources import load_relations
from lre_lightning.sharing.collection import LRECollection
from tests.helpers.tiny_models import batch_of

IDS = torch.tensor([5, 9, 3, 7, 11, 2, 8])


def error(found, right):
    return float((found - right).norm() / right.norm())


def compare(folder):
    """The largest relative errors of what a shared LM computes, and the part of the weights that a process holds."""
    lm, whole = (LanguageModel.from_pretrained(folder, dtype="float64", tensor_parallel=n) for n in (2, None))
    found, right = (prompt_jacobian(one, IDS, 3) for one in (lm, whole))
    errors = {"jacobian": max(error(found.jacobian[layer], right.jacobian[layer]) for layer in lm.layers)}
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(whole)
    vectors = torch.randn(len(batch), 2, lm.hidden_size, dtype=torch.float64, generator=generator)
    for product in (jvp, vjp, double_vjp):
        products = (batch_of(one).products(lm.layers[0], vectors, product) for one in (lm, whole))
        errors[product.__name__] = error(*products)
    held, total = (sum(weight.nbytes for weight in one.parameters()) for one in (lm, whole))
    same, way = lm.identity == whole.identity, lm.way == whole.way
    lm.release()
    return {**errors, "held": held / total, "same": same, "way": way}


def use():
    """Use the demo, shared and whole, from Python: an edit, what the LM says after it, concepts and a lens."""
    lres, name = LRECollection.from_pretrained("demo"), "country capital city"
    edits, concepts, lenses = [], [], []
    for size in (2, None):
        lm = LanguageModel.from_pretrained("demo", tensor_parallel=size)
        edit = lres[name, 0].bind(lm).edit_prompt("The capital of Canada is", "Peru")
        edits.append((edit.after[0][0], edit.continuations(4)))
        concepts.append(estimate_concepts(lm, load_relations(name, "demo")[0], layer=2, n_shot=2, jacobians=2).vectors)
        lenses.append(read_lenses(lm, lm.tokenizer, "We met in Peru.", lres, [name]))
        lm.release()
    return {
        "edits": edits,
        "concepts": error(*concepts),
        "lens": all(found.top == right.top for found, right in zip(*lenses, strict=True)),
    }


def refusal(folder, dtype="float64", **options):
    try:
        LanguageModel.from_pretrained(folder, dtype=dtype, **options)
    except LREError as refused:
        return str(refused)
    return ""


def run(index, folder, families):
    """Be one of two processes; write what each has found."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=index, world_size=2)
    found = {family: compare(f"{folder}/{family}") for family in families}
    found["demo"] = use()
    found["three"] = refusal(f"{folder}/{families[0]}", tensor_parallel=3)
    sharding._Copy.transpose = sharding._Copy  # as if each member had the whole gradient
    dtypes = ("float64", "bfloat16")
    refusals = (refusal(f"{folder}/{families[0]}", dtype, tensor_parallel=2) for dtype in dtypes)
    found["wrong"] = [refused.partition(" by ")[0] for refused in refusals]
    found["groups"] = len(distributed.distributed_c10d._world.pg_map)
    Path(folder, f"found{index}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()
