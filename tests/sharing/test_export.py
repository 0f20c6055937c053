"""LREs and concepts in files that others read, read as they read them."""

import sys

import pytest
import torch
from gguf import GGUFReader
from safetensors import safe_open

from lre_lightning import LRE, Concepts, LanguageModel, LREError, Origin, estimate_concepts
from lre_lightning.lre.editing import hidden_at
from lre_lightning.relations.sources import load_relations
from lre_lightning.sharing.export import write_control_vector, write_control_vectors, write_plain
from tests.helpers.identities import SOME

ORIGIN = Origin("toy", SOME, "thing colour")


@pytest.mark.parametrize("rank", [None, 2])
def test_w_and_b_as_two_plain_tensors(tmp_path, rank):
    full = LRE(torch.randn(6, 6), torch.randn(6), 1, ORIGIN, beta=2.5)
    lre = full if rank is None else full.low_rank(rank)
    write_plain(tmp_path / "lre.safetensors", lre)
    with safe_open(tmp_path / "lre.safetensors", "pt") as file:
        assert file.metadata() == {"beta": "2.5", "layer": "1", "relation": "thing colour", "model": "toy"}
        assert sorted(file.keys()) == ["W", "b"]
        weight, bias, state = file.get_tensor("W"), file.get_tensor("b"), torch.randn(6)
    torch.testing.assert_close(2.5 * weight @ state + bias, lre(state))


@pytest.fixture(scope="module")
def concepts():
    lm = LanguageModel.from_pretrained("demo")
    (relation,) = load_relations(["object superclass"], "demo")
    return estimate_concepts(lm, relation, layer=2, object_layer=4, n_shot=3, jacobians=2)


def test_a_concept_is_a_control_vector_of_llama_cpp(tmp_path, concepts):
    lm, path = concepts.lm, tmp_path / "vectors" / "bird.gguf"
    write_control_vector(path, concepts, "bird", "insect", layers=[2, 4], magnitude=0.25)
    reader = GGUFReader(path)
    text = {name: reader.fields[name].contents() for name in ("general.architecture", "controlvector.model_hint")}
    assert text == {"general.architecture": "controlvector", "controlvector.model_hint": "llama"}
    assert reader.fields["controlvector.layer_count"].contents() == lm.num_layers
    prompts = [concepts.origin.prompt(lm, subject) for subject, _ in concepts.origin.train[:8]]
    norms = [float(hidden_at(lm, prompt, 2, prompt.subject_position).norm()) for prompt in prompts]
    expected = 0.25 * sum(norms) / len(norms) * (concepts["bird"] - concepts["insect"])
    assert [tensor.name for tensor in reader.tensors] == ["direction.2", "direction.4"]
    for tensor in reader.tensors:  # one axis of float32, as llama.cpp wants it
        assert (tensor.tensor_type.name, tensor.data.shape) == ("F32", (lm.hidden_size,))
        torch.testing.assert_close(torch.tensor(tensor.data), expected)


def test_all_concepts_of_a_folder_are_written_beside_them(tmp_path, concepts):
    concepts.save(tmp_path / "object_superclass" / "trial0.safetensors")
    write_control_vectors(concepts.lm, tmp_path, 0.5)
    found = {path.stem: path for path in (tmp_path / "object_superclass" / "trial0").iterdir()}
    assert sorted(found) == sorted(concepts.objects)
    vectors = [torch.tensor(GGUFReader(found[name]).tensors[0].data) for name in concepts.objects]
    torch.testing.assert_close(torch.nn.functional.normalize(torch.stack(vectors)), concepts.vectors)


def test_what_is_no_control_vector(tmp_path, concepts, monkeypatch):
    path = tmp_path / "x.gguf"
    for layers in (["emb"], [0], [0, 2]):
        with pytest.raises(LREError, match=r"adds control vectors after the blocks from 1 on, not at layer ('emb'|0)"):
            write_control_vector(path, concepts, "bird", layers=layers)
    with pytest.raises(LREError, match="there is no concept of 'rock'"):
        write_control_vector(path, concepts, "rock")
    with pytest.raises(LREError, match="has no LM to run"):
        write_control_vector(path, Concepts(("odd",), torch.ones(1, 2), 1, 1, 1, "first", ORIGIN), "odd")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(LREError, match=r"a control vector needs gguf: pip install 'lre-lightning\[gguf\]'"):
        write_control_vector(path, concepts, "bird")
    assert not path.exists()
