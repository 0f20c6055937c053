"""Moves along a lens: what coordinates become, that nothing else changes, and under generate."""

import pytest
import torch

from lre_lightning import LanguageModel, estimate
from lre_lightning.concepts.concepts import Concepts
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lre.moving import Coordinates, ablate, move_prompt, put, steer, swap
from lre_lightning.lre.origin import Origin
from lre_lightning.models.hooks import observe
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model

NAMES = ("a", "b", "c")


def some_coordinates(layers=(0, 1)):
    generator = torch.Generator().manual_seed(0)
    directions = {layer: torch.randn(3, WIDTH, generator=generator, dtype=torch.float64) for layer in layers}
    return Coordinates(NAMES, directions)


@pytest.fixture(scope="module")
def demo():
    lm = LanguageModel.from_pretrained("demo")
    lre = estimate(lm, "country capital city", layer=2, rank=16)
    return lm, lre, *lre.origin.asked(lm, "The capital of {} is", "Canada", "Peru")


def test_coordinates_become_what_they_should_and_the_rest_stays():
    coordinates, states = some_coordinates(), torch.randn(4, WIDTH, dtype=torch.float64)
    now = coordinates(states, 1)
    wanted = {
        steer(coordinates, "b", 2.0): now + torch.tensor([0.0, 2.0, 0.0]),
        ablate(coordinates, "a", "c"): now * torch.tensor([0.0, 1.0, 0.0]),
        ablate(coordinates): torch.zeros(4, 3),
        swap(coordinates, "a", "c"): now[:, [2, 1, 0]],
        put(torch.tensor([1.0, 2.0, 3.0])): torch.tensor([[1.0, 2.0, 3.0]] * 4),
    }
    outside = torch.linalg.qr(coordinates.directions[1].T, mode="complete")[0][:, 3:]
    for change, expected in wanted.items():
        moved = coordinates.move(states, 1, change)
        torch.testing.assert_close(coordinates(moved, 1), expected.double())
        torch.testing.assert_close(moved @ outside, states @ outside)
        half = coordinates.move(states, 1, change, 0.5)
        torch.testing.assert_close(half, (states + moved) / 2)
        assert torch.equal(coordinates.move(states, 1, change, 0.0), states)
        assert not torch.allclose(moved, states)


def test_a_second_live_swap_undoes_the_first_and_clamping_does_not():
    coordinates, states = some_coordinates(), torch.randn(WIDTH, dtype=torch.float64)
    exchange, clean = swap(coordinates, "a", "b"), coordinates(states, 0)
    once = coordinates.move(states, 0, exchange)
    torch.testing.assert_close(coordinates.move(once, 0, exchange), states)
    torch.testing.assert_close(coordinates.move(once, 0, exchange, clean=clean), once)
    assert not torch.allclose(once, states)


def test_clamping_holds_the_changed_clean_coordinates_at_every_layer(demo):
    lm, _, asked, _ = demo
    generator = torch.Generator().manual_seed(0)
    coordinates = Coordinates(NAMES, {layer: torch.randn(3, lm.hidden_size, generator=generator) for layer in (1, 2)})
    exchange, found = swap(coordinates, "a", "b"), {}
    ids, place = torch.tensor([asked.input_ids]), asked.subject_position
    clean = {layer: h[0, place] for layer, h in lm.hidden_states(ids, (1, 2)).items()}
    for live in (False, True):
        move = move_prompt(lm, asked, coordinates, exchange, live=live)
        with move.active(), observe(lm.module_at(2), lambda hidden: found.update({live: hidden[0, place]})):  # noqa: B023
            lm.hidden_states(ids, (1, 2))
    expected = exchange(coordinates(clean[2], 2))
    torch.testing.assert_close(coordinates(found[False], 2), expected, rtol=1e-3, atol=1e-3)
    assert (coordinates(found[True], 2) - expected).abs().max() > 0.1


def test_a_move_to_another_subjects_coordinates_says_its_object_also_under_generate(demo):
    lm, lre, asked, other = demo
    coordinates = Coordinates.of_lre(lre)
    ids = torch.tensor([other.input_ids])
    wanted = coordinates(lm.hidden_states(ids, [2])[2][0, other.subject_position], 2)
    move = move_prompt(lm, asked, coordinates, put(wanted), target="Peru")
    assert (move.before[0][0], move.after[0][0]) == ("Ottawa", "Lima")
    ((before, after),) = move.continuations(3)
    assert before.startswith("Ottawa")
    assert after.startswith("Lima")
    same = move_prompt(lm, asked, coordinates, put(wanted), strength=0.0)
    assert same.before == same.after
    assert not same.delta.any()


def test_a_move_as_a_hook_changes_each_layer_as_it_does_while_active(demo):
    lm, _, asked, _ = demo
    generator = torch.Generator().manual_seed(1)
    coordinates = Coordinates(NAMES, {layer: torch.randn(3, lm.hidden_size, generator=generator) for layer in (1, 2)})
    move = move_prompt(lm, asked, coordinates, swap(coordinates, "a", "b"))
    ids = torch.tensor([asked.input_ids])
    for layer, hidden in lm.hidden_states(ids, (1, 2)).items():
        moved = move(hidden, layer)
        expected = move.at(layer, hidden[0, asked.subject_position])
        torch.testing.assert_close(moved[0, asked.subject_position], expected)
        elsewhere = torch.arange(hidden.shape[1]) != asked.subject_position
        assert torch.equal(moved[:, elsewhere], hidden[:, elsewhere])
    with pytest.raises(LREError, match="a move differs by layer: name that of the states, one of 1, 2"):
        move(hidden)
    alone = move_prompt(lm, asked, some := Coordinates(NAMES, {2: coordinates.directions[2]}), swap(some, "a", "b"))
    torch.testing.assert_close(alone(hidden), alone(hidden, 2))


def test_concepts_and_jacobian_lenses_have_coordinates():
    lm = LanguageModel(tiny_model("llama", torch.float32))
    vectors = torch.nn.functional.normalize(torch.randn(3, WIDTH))
    concepts = Concepts(NAMES, vectors, 1, 1, 2, "first", Origin("toy", lm.identity, "letters"))
    states = torch.randn(2, WIDTH)
    torch.testing.assert_close(concepts.coordinates("c", "a", layers=[0, 1])(states, 0), concepts(states)[:, [2, 0]])

    class Tokenizer:
        def encode(self, text, **_):
            return [int(one) for one in text.split()]

    lm.tokenizer = Tokenizer()
    lens = JacobianLens({0: torch.randn(WIDTH, WIDTH), 1: torch.randn(WIDTH, WIDTH)}, 1)
    rows = lm.model.get_output_embeddings().weight[[3, VOCAB - 1]]
    found = lens.coordinates(lm, "3", str(VOCAB - 1), layers=[1])
    torch.testing.assert_close(found(states, 1), lens(states, 1) @ rows.T)
    with pytest.raises(LREError, match="'3 4' is 2 tokens"):
        lens.coordinates(lm, "3 4", layers=[1])


def test_wrong_coordinates_are_refused():
    coordinates = some_coordinates()
    with pytest.raises(LREError, match="there is no coordinate 'd'; there are 'a', 'b', 'c'"):
        swap(coordinates, "a", "d")
    with pytest.raises(LREError, match="3 coordinates need directions"):
        Coordinates(NAMES, {0: torch.eye(2)})
