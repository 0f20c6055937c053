"""The studies' functions beside numpy, scikit-learn and constructions whose answer is known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import AutoTokenizer

from lre_lightning import LRE, LanguageModel
from lre_lightning.lens.likeness import threshold
from lre_lightning.lre.origin import Origin
from lre_lightning.relations.relation import Relation, Sample
from scripts.demo_model.corpus import Piece, build_library
from scripts.demo_model.data import PieceTokenizer, Rows
from scripts.demo_model.recipe import Recipe
from scripts.demo_model.world import build_world
from scripts.studies import calibration, components, frequency, objects
from scripts.studies.common import Setting, drawn
from tests.helpers.identities import SOME

RELATIONS, WIDTH = 6, 12


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stack_of(maps=None, space=None):
    """W of six relations: all that there are, or sums of a few maps, or between spaces of a few dimensions."""
    size = space or WIDTH
    core = draws(RELATIONS, size, size)
    if maps is not None:
        core = torch.einsum("rc,cij->rij", draws(RELATIONS, maps), draws(maps, size, size, seed=1))
    return core if space is None else draws(WIDTH, space, seed=2) @ core @ draws(space, WIDTH, seed=3)


@pytest.mark.parametrize(
    ("form", "stack", "size"),
    [
        (components.shared_maps, stack_of(maps=2), 2),
        (components.shared_spaces, stack_of(space=3), 3),
        (components.each_alone, stack_of(space=3), 3),
        (components.tucker, stack_of(maps=2, space=3), 3),
    ],
)
def test_a_form_keeps_all_of_what_it_can_express_and_less_of_anything_else(form, stack, size):
    assert components.energy(stack, form(stack, size)) == pytest.approx(1, abs=1e-5)
    assert components.energy(stack, form(stack, size - 1)) < 1 - 1e-3
    mixed = components.permuted(stack, lambda some: form(some, size))
    if form is components.each_alone:
        torch.testing.assert_close(mixed, stack, atol=1e-4, rtol=0)  # singular values do not change
    else:
        assert components.energy(stack, mixed) < 0.9


def test_forms_are_optimal_and_permutations_are_undone():
    stack = stack_of()
    flat = stack.flatten(1).numpy()
    _, values, _ = np.linalg.svd(flat, full_matrices=False)
    kept = components.energy(stack, components.shared_maps(stack, 2))
    assert kept == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-5)
    torch.testing.assert_close(components.permuted(stack, lambda some: some), stack)
    left, values, right = np.linalg.svd(stack[3].numpy())
    torch.testing.assert_close(
        components.each_alone(stack, 2)[3], torch.tensor(left[:, :2] * values[:2] @ right[:2]), atol=1e-5, rtol=0
    )


def test_a_sum_of_others_finds_what_depends_on_them_alone():
    stack = stack_of()
    stack[0] = 2 * stack[1] - stack[4]
    found = components.of_others(stack)
    torch.testing.assert_close(found[0], stack[0], atol=1e-4, rtol=0)
    assert components.energy(stack[2:3], found[2:3]) < 0.5


def test_the_largest_forms_within_a_share_are_chosen():
    found = components.sizes(RELATIONS, WIDTH, 0.5)
    for name, size in found.items():
        numbers = components.FORMS[name][1]
        assert numbers(RELATIONS, WIDTH, size) <= 0.5 * RELATIONS * WIDTH**2 < numbers(RELATIONS, WIDTH, size + 1)
    assert found["each W alone"] == 3
    assert found["shared maps"] == 2


def lre_of(weight, **options):
    return LRE(weight, draws(len(weight), seed=5), 0, Origin("toy", SOME, "colour"), **options)


def test_another_W_maps_the_mean_subject_to_what_it_was_mapped_to():
    lre, centre, other = lre_of(draws(4, 4), beta=2.0), draws(4, seed=6), draws(4, 4, seed=7)
    changed = components.around(lre, other, centre)
    torch.testing.assert_close(changed(centre), lre(centre))
    torch.testing.assert_close(changed(centre + 1) - changed(centre), 2 * other.sum(1), atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo with three of its relations."""
    setting = Setting("demo", tmp_path_factory.mktemp("studies"), "demo")
    names = ("country capital city", "country language", "word antonym")
    setting.__dict__["records"] = {name: setting.records[name] for name in names}
    return setting


def test_the_table_of_forms(demo, monkeypatch):
    monkeypatch.setattr(components, "SHARES", (0.1,))
    table, alike = components.study(demo)
    rows = {row[:2]: row[2:] for row in table.rows}
    share, kept, faithfulness, causality = rows["all of W", None]
    assert (share, kept) == (None, pytest.approx(1))
    assert faithfulness.value > 0.7
    assert causality.value > 0.7
    assert rows["none, LRE(mean s)", None][2].value < faithfulness.value - 0.3
    assert {name for name, _ in rows} > {"shared spaces, permuted", "the best sum of the others' W"}
    assert alike.rows[0][:2] == ("country language", "country capital city")
    assert len(list(Path(demo.folder).rglob("*.safetensors"))) == 3


def test_made_up_names_have_as_many_words_and_tokens_and_are_not_names():
    tokenizer = LanguageModel.from_pretrained("demo").tokenizer
    for name in ("Toni Morrison", "kestrel", "Ada"):
        found = calibration.made_up(tokenizer, name, "key")
        assert found == calibration.made_up(tokenizer, name, "key") != calibration.made_up(tokenizer, name, "other")
        assert found != name
        assert [word[0].isupper() for word in found.split()] == [word[0].isupper() for word in name.split()]
        assert len(tokenizer(f" {found}")["input_ids"]) == pytest.approx(len(tokenizer(f" {name}")["input_ids"]), abs=1)


def test_the_area_is_that_of_scikit_learn():
    known, null = draws(30).round(decimals=1) + 0.5, draws(40, seed=1).round(decimals=1)
    labels = [1] * len(known) + [0] * len(null)
    assert calibration.auroc(known, null) == pytest.approx(roc_auc_score(labels, torch.cat([known, null])))


@pytest.mark.parametrize("count", [20, 99, 1000])
def test_a_threshold_gives_no_more_false_alarms_than_its_rate(count):
    limits = [threshold(draws(count, seed=seed)) for seed in range(200)]
    rate = np.mean([1 - torch.special.ndtr(limit) for limit in limits])
    assert rate == pytest.approx(int((count + 1) * 0.05) / (count + 1), abs=0.01)
    assert threshold(draws(18)) == float("inf")


def test_kept_answers_are_those_above_the_threshold_of_half_of_the_nulls():
    null = torch.stack([torch.arange(40.0), torch.full((40,), 100.0)], 1).flatten()  # the other half: all above
    known, right = torch.tensor([10.0, 39.5, 41.0]), torch.tensor([False, True, False])
    found = calibration.checked(known, right, null)
    assert found["false alarms"] == 1
    assert found["kept"] == pytest.approx(2 / 3)
    assert found["faithful if kept"] == 0.5
    assert found["faithful"] == pytest.approx(1 / 3)


def test_statistics_of_an_answer():
    logits, bias = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.0, 0.0, 3.0])
    found = {name: float(value) for name, value in calibration.statistics_of(logits, bias).items()}
    said, without = np.exp([2, 1, 0]) / np.exp([2, 1, 0]).sum(), np.exp([0, 0, 3]) / np.exp([0, 0, 3]).sum()
    assert found["probability"] == pytest.approx(said[0])
    assert found["margin"] == pytest.approx(1)
    assert found["KL from b"] == pytest.approx((said * np.log(said / without)).sum(), rel=1e-5)
    assert found["gain over b"] == pytest.approx(np.log(said[0] / without[0]), rel=1e-5)


def relation_of(name, domain, *subjects):
    return Relation(name, "toy", ("{}",), (), domain, "", False, tuple(Sample(one, "x") for one in subjects))


def test_null_subjects_are_of_other_domains():
    own, same, shares, other = (
        relation_of("own", "city", "Rome", "Oslo"),
        relation_of("same", "city", "Paris"),
        relation_of("shares", "place", "Oslo", "Alps"),
        relation_of("other", "word", "cat"),
    )
    assert calibration.of_other_domains(own, [own, same, shares, other]) == [other]
    assert len(drawn([str(number) for number in range(100)] * 2, "key")) == 40


def test_a_template_lens_reads_objects_at_any_scale_and_whitens():
    means = draws(5, 16) @ torch.diag(torch.tensor([30.0] + [1.0] * 15))
    apart = means - means.mean(0)
    noisy = 7 * (apart + 0.2 * draws(5, 16, seed=1))
    assert objects.template_lens(means, noisy).tolist() == [0, 1, 2, 3, 4]
    wide = apart[[3]] + torch.cat([torch.full((1, 1), -20.0), torch.zeros(1, 15)], 1)  # off along what varies most
    cosines = torch.cosine_similarity(wide, apart)
    assert objects.template_lens(means, wide).tolist() == [3] != [int(cosines.argmax())]


def test_objects_share_a_hit_of_their_first_token():
    scores, first = torch.eye(6)[[4, 4, 5]], torch.tensor([4, 4, 5])
    assert objects.first_token_hits(scores, first, torch.tensor([0, 2, 2])) == pytest.approx((0.5 + 0 + 1) / 3)
    assert objects.first_token_hits(scores[:, [0, 1, 2, 3, 5, 4]], first, torch.tensor([0, 0, 2])) == 0


def test_relations_are_those_whose_objects_share_first_tokens(demo):
    assert objects.study(demo) == []  # of the demo none does


def test_lines_are_counted_in_the_texts_that_the_demo_was_trained_on():
    recipe, library = Recipe(), build_library(build_world(0))
    tokenizer = AutoTokenizer.from_pretrained(frequency.MODEL)
    pieces = PieceTokenizer(tokenizer)
    trained = Rows(library, pieces, recipe, epoch=3)
    rows = list(frequency.rows_of(library, pieces, recipe, ["3-0", "3-7"]))
    for index, row in zip((0, 7), rows, strict=True):
        text = tokenizer.decode(trained[index][0], skip_special_tokens=True).replace("\n", "")
        whole = "".join(piece.text for piece in row).replace("\n", "")
        assert text.startswith(whole)
        assert len(text) - len(whole) < 30  # the last piece may have been cut off
    line = [Piece(" Oman"), Piece(" :"), Piece(" Muscat")]
    texts = [*line, Piece("\n"), Piece(" Muscat"), Piece("\n"), *line, *line]
    found = frequency.count_lines([texts], [("Oman", "Muscat"), ("Peru", "Lima")])
    assert found == {("Oman", "Muscat"): 2, ("Peru", "Lima"): 0}
