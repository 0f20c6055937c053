"""The frozen lens, its merge and its files, also those of strangers."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from lre_lightning.errors import LREError
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.files import LensOrigin
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.hostile import PLAIN, SPOILS, changed, little_memory, outcome, recipes, spoiled, tried
from tests.helpers.identities import ANOTHER, SOME
from tests.helpers.toy import WIDTH, toy_model

TOY = LanguageModel(toy_model(), name="toy")
AVERAGING = Averaging()


def a_lens(seed=0, count=3, texts=("a",), layers=TOY.layers):
    generator = torch.Generator().manual_seed(seed)
    jacobians = {layer: torch.randn(WIDTH, WIDTH, generator=generator) for layer in layers}
    squares = {layer: 300.0 * (i + 1) * count for i, layer in enumerate(layers)}
    return JacobianLens(jacobians, count, squares, LensOrigin("toy", TOY.identity, None, AVERAGING, texts))


def test_it_is_applied_and_decoded():
    lens, hidden = a_lens(), torch.randn(5, WIDTH, dtype=torch.bfloat16)
    expected = torch.stack([lens.jacobians[1] @ h.float() for h in hidden])
    torch.testing.assert_close(lens(hidden, 1), expected)
    torch.testing.assert_close(lens.decode(TOY, hidden, 1), TOY.decode(expected))
    with pytest.raises(LREError, match=r"no layer 7: it has \['emb', 0, 1\]"):
        lens(hidden, 7)


def test_a_merge_is_the_lens_of_all_texts():
    each = torch.randn(7, WIDTH, WIDTH, dtype=torch.float64)

    def of(some, texts):
        squares = {0: float(some.square().sum())}
        return JacobianLens({0: some.mean(0)}, len(some), squares, LensOrigin("toy", SOME, None, AVERAGING, texts))

    merged, whole = JacobianLens.merge([of(each[:2], ("a",)), of(each[2:], ("b",))]), of(each, ("a", "b"))
    torch.testing.assert_close(merged.jacobians[0], whole.jacobians[0], rtol=1e-12, atol=1e-12)
    assert merged.standard_error(0) == pytest.approx(whole.standard_error(0), rel=1e-9)
    assert (merged.n_prompts, merged.origin) == (7, whole.origin)
    assert JacobianLens.merge([whole, replace(merged, origin=None, squares={})]).standard_error(0) is None


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "no Jacobian lens to merge"),
        ([a_lens(), a_lens(1)], "the same texts"),
        ([a_lens(), a_lens(texts=("b",), layers=[0])], "different layers"),
        ([a_lens(), replace(a_lens(), origin=LensOrigin("toy", ANOTHER, None, AVERAGING, ("b",)))], "different LMs"),
    ],
)
def test_what_cannot_be_merged(others, message):
    with pytest.raises(LREError, match=message):
        JacobianLens.merge(others)


def test_our_file_keeps_everything(tmp_path):
    lens, path = a_lens(), tmp_path / "jacobian_lens.safetensors"
    lens.save(path)
    for source in (path, tmp_path):
        loaded = JacobianLens.load(source, TOY)
        assert all(torch.equal(loaded.jacobians[layer], lens.jacobians[layer]) for layer in lens.layers)
        for name in ("layers", "n_prompts", "squares", "origin"):
            assert getattr(loaded, name) == getattr(lens, name)


@pytest.mark.parametrize("source", ["file", "folder", "hub"])
def test_the_published_format(tmp_path, monkeypatch, source):
    """Written as its documentation says, by hand, and read from each place; ours is read by hand."""
    lens, path = a_lens(), tmp_path / "lens.pt"
    half = {layer: lens.jacobians[layer].half() for layer in (0, 1)}
    torch.save({"J": half, "n_prompts": 5, "source_layers": [0, 1], "d_model": WIDTH}, path)
    asked = []
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *given, **kw: asked.append((given, kw)) or str(path))
    name = {"file": path, "folder": tmp_path, "hub": "someone/lenses/toy/a lens.pt"}[source]
    loaded = JacobianLens.load(name, TOY, revision="main")
    assert asked == ([(("someone/lenses", "toy/a lens.pt"), {"revision": "main"})] if source == "hub" else [])
    assert (loaded.layers, loaded.n_prompts, loaded.origin, loaded.standard_error(0)) == ((0, 1), 5, None, None)
    assert all(torch.equal(loaded.jacobians[layer], half[layer].float()) for layer in half)
    lens.save_published(tmp_path / "ours.pt")
    ours = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert [ours[key] for key in ("n_prompts", "source_layers", "d_model")] == [3, [0, 1], WIDTH]
    assert all(torch.equal(ours["J"][layer], half[layer]) for layer in (0, 1))


def test_safetensors_for_others_and_of_others(tmp_path, subtests):
    """Ours is read by hand, and those that others write are written by hand."""
    averaging = Averaging(object_layer=0)
    lens = replace(a_lens(), origin=LensOrigin("toy", TOY.identity, None, averaging))
    half = {layer: lens.jacobians[layer].half() for layer in (0, 1)}
    lens.save_published(tmp_path / "lens.safetensors")
    with safe_open(tmp_path / "lens.safetensors", "pt") as file:
        target = {"target_layer": "0", "model": "toy"}
        assert file.metadata() == {"n_prompts": "3", "source_layers": "[0, 1]", "d_model": str(WIDTH), **target}
        assert all(torch.equal(file.get_tensor(f"J_{layer}"), half[layer]) for layer in half)
    forms = {
        "J_": {f"J_{layer}": jacobian for layer, jacobian in half.items()},
        "layer_": {f"layer_{layer}": jacobian for layer, jacobian in half.items()},
        "numbers": {str(layer): jacobian for layer, jacobian in half.items()},
        "stack": {"jacobians": torch.stack([*half.values()])},
    }
    for name, tensors in forms.items():
        with subtests.test(form=name):
            save_file(tensors, tmp_path / "jlens.safetensors", {"n_prompts": "5"} if name == "stack" else None)
            (tmp_path / "lens.safetensors").unlink(missing_ok=True)
            loaded = JacobianLens.load(tmp_path, TOY)
            assert (loaded.layers, loaded.origin, loaded.n_prompts) == ((0, 1), None, 5 if name == "stack" else 1)
            assert all(torch.equal(loaded.jacobians[layer], half[layer].float()) for layer in half)


@pytest.mark.parametrize(
    ("tensors", "header", "message"),
    [
        ({"J_0": torch.eye(3), "norm": torch.eye(3)}, {}, r"has tensors that are no Jacobians of blocks.*\['norm'\]"),
        ({"J_0": torch.eye(3), "J_1": torch.eye(4)}, {}, "must be of one shape"),
        ({"J_0": torch.ones(3)}, {}, "must be of one shape"),
        ({"all": torch.ones(2, 3, 4)}, {}, "must be of one shape"),
        ({"J_0": torch.eye(3), "layer_0": torch.eye(3)}, {}, "has several Jacobians of a block"),
        ({"J_99999": torch.eye(3)}, {}, "a block must be"),
        ({"J_0": torch.eye(3).int()}, {}, "a Jacobian must be"),
        ({"J_0": torch.eye(3)}, {"n_prompts": "many"}, "n_prompts must be a whole number"),
    ],
)
def test_such_a_safetensors_file_of_others_is_an_error(tmp_path, tensors, header, message):
    save_file(tensors, tmp_path / "lens.safetensors", header)
    with pytest.raises(LREError, match=message):
        JacobianLens.load(tmp_path)


def test_a_lens_of_another_lm_is_refused():
    with pytest.raises(LREError, match="was estimated from 'other'"):
        replace(a_lens(), origin=LensOrigin("other", SOME)).check_model(TOY)
    published = replace(a_lens(), origin=None)
    published.check_model(TOY)
    with pytest.raises(LREError, match="width 3, and 'toy' 16"):
        replace(published, jacobians={0: torch.eye(3)}).check_model(TOY)
    with pytest.raises(LREError, match="layer 9 is out of range"):
        replace(published, jacobians={9: torch.eye(WIDTH)}).check_model(TOY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jacobians": {}}, "of one shape"),
        ({"jacobians": {0: torch.zeros(2, 3)}}, "of one shape"),
        ({"jacobians": {0: torch.eye(2), 1: torch.eye(3)}}, "of one shape"),
        ({"jacobians": {0: torch.full((2, 2), torch.nan)}}, "not finite"),
        ({"n_prompts": 0}, "at least one text"),
    ],
)
def test_an_invalid_lens_is_an_error(change, message):
    with pytest.raises(LREError, match=message):
        replace(a_lens(), **change)


# Files of strangers.

PUBLISHED = {
    "J": {0: torch.eye(WIDTH).half(), 1: torch.eye(WIDTH).half()},
    "n_prompts": 5,
    "source_layers": [0, 1],
    "d_model": WIDTH,
}
HUGE = torch.ones(1).expand(2**15, 2**15)
TENSORS = st.sampled_from([torch.eye(3), HUGE, torch.eye(WIDTH).bool(), torch.eye(WIDTH).to_sparse(), torch.ones(0)])


KINDS = ["published", "metadata", "lens.pt", "lens.safetensors", "others.safetensors"]


@given(recipe=recipes(PLAIN | TENSORS), plain=recipes(PLAIN), spoil=SPOILS)
@pytest.mark.parametrize("kind", KINDS)
@tried(30)
def test_any_file_is_a_lens_or_an_error(tmp_path, kind, recipe, plain, spoil):
    path, lens = tmp_path / kind, a_lens()
    if kind == "published":
        torch.save(changed(PUBLISHED, recipe), path)
    elif kind == "metadata":
        path = path.with_suffix(".safetensors")
        metadata = {"n_prompts": 3, "squares": {"0": 3.0}, "origin": asdict(lens.origin)}
        save_file({"0": torch.eye(WIDTH)}, path, {"jacobian_lens": json.dumps(changed(metadata, plain))})
    else:
        (lens.save if kind == "lens.safetensors" else lens.save_published)(path)
        path.write_bytes(spoiled(path.read_bytes(), *spoil))
    found = outcome(JacobianLens.load, path)
    if found is not None:
        outcome(found.decode, TOY, torch.ones(WIDTH), 0)
        assert torch.isfinite(found(torch.ones(found.width), found.layers[0])).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"J": {0: HUGE}, "d_model": 2**15}, "more numbers than its memory holds"),
        ({"J": {"emb": torch.eye(WIDTH)}}, "a layer of J must be a whole number"),
        ({"J": {0: torch.eye(WIDTH)}}, "its d_model and source_layers"),
        ({"d_model": 3}, "its d_model and source_layers"),
        ({"n_prompts": 0}, "n_prompts must be a whole number"),
        ({"J": {0: torch.eye(WIDTH), 1: torch.eye(3)}}, "must be of one shape"),
        ({"J": [torch.eye(WIDTH)]}, "it has no entry J"),
        ({"more": torch.nn.Linear}, "holds more than tensors and plain data: 'torch.nn.modules.linear.Linear'"),
    ],
)
def test_such_a_published_file_is_an_error(tmp_path, change, message):
    torch.save(PUBLISHED | change, tmp_path / "x.pt")
    with little_memory(), pytest.raises(LREError, match=message) as caught:
        JacobianLens.load(tmp_path / "x.pt")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("source", ["nothing here.pt", "/no/such/folder", ".", "a/b/../../../c"])
def test_a_source_without_a_lens_is_an_error(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LREError, match=r"no Jacobian lens (at|can be loaded from)"):
        JacobianLens.load(source)
