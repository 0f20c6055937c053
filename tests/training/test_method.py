"""Which form W has in a trial: the products that both take, and what is chosen."""

from types import SimpleNamespace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.measures import Baselines, JacobianLensLREs
from lre_lightning.prompts.trials import Trial
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.training import trial as trial_module
from lre_lightning.training.method import NARROWEST, Products, choose_method
from lre_lightning.training.module import LREModule
from lre_lightning.training.options import Fitting
from tests.helpers.toy import WIDTH
from tests.training.test_choices import fit  # noqa: F401

SAMPLES = tuple(Sample(f"s{i}", f"o{i}") for i in range(38))
TRIAL = Trial(Relation("r", "", ("{}",), (), "", "", False, SAMPLES), 0, SAMPLES[:8], SAMPLES[8:])
GPTJ = SimpleNamespace(hidden_size=4096, num_layers=28, layers=("emb", *range(28)))


@pytest.mark.parametrize(
    ("layers", "rank", "method"),
    [([5], 4, "matrix_free"), ([5], 256, "matrix_free"), ([5, 6], 64, "matrix_free"), (GPTJ.layers, 256, "dense")],
)
def test_few_layers_of_a_wide_lm_are_matrix_free(layers, rank, method):
    products = Products.of(GPTJ, TRIAL, layers, rank, ())
    chosen, why = choose_method(GPTJ, TRIAL, layers, rank, (), "auto")
    assert chosen == method == ("matrix_free" if products.matrix_free < products.dense else "dense")
    assert f"{products.matrix_free:,.0f} products would do, and all elements take 4,096" in why
    for given in ("dense", "matrix_free"):
        assert choose_method(GPTJ, TRIAL, layers, rank, (), given) == (given, "")


def test_what_products_count():
    """30 test samples and b in forward mode; for rank 40 a space of 108 directions, from either side, and 16 probes."""
    assert Products.of(GPTJ, TRIAL, [5], 40, ()) == Products(4096, 2 * 31 + 3.6 * 108 + 1.6 * 16)
    baselines = Products.of(GPTJ, TRIAL, [5], 40, [Baselines()]).matrix_free
    assert baselines == Products.of(GPTJ, TRIAL, [5], 40, ()).matrix_free + 2 * 30
    two = Products.of(GPTJ, TRIAL, [5, 16], 40, ()).matrix_free  # above 16 there are half as many blocks
    assert two == 1.5 * Products.of(GPTJ, TRIAL, [5], 40, ()).matrix_free
    assert Products.of(GPTJ, TRIAL, [27], 1000, ()).matrix_free == 0


def test_narrow_lms_and_jacobian_lenses_take_all_elements(random_toy, monkeypatch):
    narrow = SimpleNamespace(**{**vars(GPTJ), "hidden_size": NARROWEST - 1})
    assert choose_method(narrow, TRIAL, [5], 4, (), "auto") == ("dense", "")
    assert choose_method(GPTJ, TRIAL, [5], 4, [JacobianLensLREs("lens")], "auto") == ("dense", "")
    monkeypatch.setattr(JacobianLensLREs, "check", lambda *_: None)
    with pytest.raises(LREError, match="'Jacobian lens' needs all elements of W: leave method matrix_free out"):
        LREModule(random_toy, fitting={"method": "matrix_free"}, measures=[JacobianLensLREs("lens")])
    with pytest.raises(LREError, match="method must be 'auto' or 'dense' or 'matrix_free', got 'free'"):
        Fitting(method="free")


def test_auto_takes_all_elements_of_an_lm_without_the_derivatives(fit, monkeypatch, caplog):  # noqa: F811
    def none(*_):
        raise LREError("it has no derivatives in forward mode")

    def said():
        return [record.getMessage() for record in caplog.records if record.name == "lre_lightning"]

    monkeypatch.setattr(trial_module, "choose_method", lambda *_: ("matrix_free", "few products"))
    with caplog.at_level("INFO", "lre_lightning"):
        free, *_ = fit({}, ranks=[1, WIDTH // 4])
    assert said()[0] == "thing colour, trial 0: W is matrix-free: few products"
    assert any("whose singular values fall so slowly that all elements were needed" in line for line in said())
    monkeypatch.setattr(trial_module, "forward_product", none)
    with caplog.at_level("INFO", "lre_lightning"):
        dense, *_ = fit({}, ranks=[1, WIDTH // 4])
    assert "thing colour, trial 0: W is dense: it has no derivatives in forward mode" in said()
    assert free.records == dense.records
    with pytest.raises(LREError, match="no derivatives"):
        fit({"method": "matrix_free"})
