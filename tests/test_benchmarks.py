"""The benchmarks' comparisons, on tiny models: their assertions hold, and would not if the engine were wrong."""

import os
import subprocess
import time
from functools import partial

import psutil
import pytest
import torch

import benchmarks.__main__ as program
from benchmarks import busy, gpu, jacobian, jlens, kit, matrix_free, paper, scoring
from benchmarks.common import AIM, DEMO_RELATION, Products, aimed
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.lre.estimator import estimate
from lre_lightning.lre.jacobian import prompt_jacobian, sweep
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.products import jvp
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.scoring.states import run_trial
from tests.helpers.tiny_models import LAYERS, VOCAB, WIDTH, tiny_model

PROMPTS = [(torch.arange(14) * step % VOCAB, 10) for step in (5, 11)]


@pytest.fixture
def lm():
    return LanguageModel(tiny_model("llama", torch.float32))


def test_jacobians_are_compared_and_timed(lm):
    rows = jacobian.compare(lm, PROMPTS, 2, [1], 1)
    others = ["prompt by prompt", "copied prefix", "stepwise", "whole prompts", "published", "plain*"]
    assert [row[1] for row in rows] == ["engine", "floor", "products of all lanes", *others]
    assert all(float(row[2]) >= 0 for row in rows)


def test_a_wrong_jacobian_fails_the_benchmark(lm, monkeypatch):
    def wrong(*arguments):
        found = sweep(*arguments)
        found[1].jacobian[1] += 0.1
        return found

    monkeypatch.setattr(jacobian, "sweep", wrong)
    with pytest.raises(AssertionError, match="layer 1"):
        jacobian.compare(lm, PROMPTS, 2, [1], 1)


def test_the_floor_has_the_products_of_the_blocks(lm, monkeypatch):
    monkeypatch.setattr(lm, "chunk_size", WIDTH)
    with Products(lm) as products:
        prompt_jacobian(lm, *PROMPTS[0])
    forward = [notes for _, notes in products.calls if any(isinstance(note, torch.Tensor) for note in notes)]
    # Seven weights a block: the prefix, one lane that is measured or the chunk itself, and one backward pass.
    assert len(forward) >= 3 * 7 * LAYERS - 1
    assert products.seconds() > 0


@pytest.mark.parametrize("wrong", [False, True])
def test_lres_without_w_are_compared_and_timed(monkeypatch, wrong):
    case = matrix_free.Case("tiny", 64, rank=2, subjects=3)
    if wrong:
        monkeypatch.setattr(matrix_free.MatrixFree, "apply", lambda self, states: 1.01 * self._mean(states, jvp))
        with pytest.raises(AssertionError, match="not close"):
            matrix_free.measure(case)
        return
    name, width, blocks, rank, products, fewer, *_, differ = matrix_free.measure(case)
    assert (name, width, blocks, rank, differ) == ("tiny", 64, 1, 2, "0 of 6")
    assert float(fewer) == pytest.approx(64 / products, abs=0.05)


@pytest.mark.parametrize("wrong", [False, True])
def test_jacobians_of_texts_are_compared_and_timed(lm, monkeypatch, wrong):
    ids, averaging = torch.arange(14) * 5 % VOCAB, Averaging(skip=4)
    if wrong:
        found = {layer: jacobian * 1.01 for layer, jacobian in jlens.text_jacobian(lm, ids, averaging).items()}
        monkeypatch.setattr(jlens, "text_jacobian", lambda *_: found)
        with pytest.raises(AssertionError, match="layer emb"):
            jlens.compare(lm, ids, 3, 1e9, averaging)
        return
    rows = jlens.compare(lm, ids, 3, 1e9, averaging)
    assert [row[1] for row in rows] == ["estimator", "floor", "loop*"]
    assert all(float(row[2]) >= 0 for row in rows)
    assert AIM not in rows[0][-1]
    assert jlens.compare(lm, ids, 3, 0.0, averaging)[0][-1].endswith("** (aim: below 0.0)")


@pytest.mark.parametrize("wrong", [False, True])
def test_answers_are_compared(lm, monkeypatch, wrong):
    context = (1, 7, 7, 9)
    prompts = [Prompt("", f"s{n}", "", (*context, 20 + n, 30 + n, 3), (4, 6), (0,)) for n in range(12)]
    encoded, lres = scoring.trial(lm, PROMPTS, prompts)
    if wrong:
        monkeypatch.setattr(scoring.Published, "edited", lambda *_: -1)
        with pytest.raises(AssertionError):
            scoring.compare(lm, encoded, lres, [1, 4], 12, None)
        return
    rows = scoring.compare(lm, encoded, lres, [1, 4], 12, None)
    assert [row[1] for row in rows] == ["engine", "published"]
    cells = 12 * len(lm.layers) * (2 + len(scoring.BETAS))
    assert rows[1][-1] == f"{cells:,}"


@pytest.mark.parametrize("wrong", [False, True])
def test_fits_are_compared_beside_a_busy_process(monkeypatch, wrong):
    def fit(root, name, arguments, spin):
        ran.append((len(psutil.Process().children()) > before, bool(spin)))
        return 7.0 if ran[-1] == (True, False) else 2.0

    ran, before = [], len(psutil.Process().children())
    monkeypatch.setattr(busy, "fit", fit)
    monkeypatch.setattr(busy, "read_records", lambda roots: [len(ran) if wrong else "a record"])
    if wrong:
        with pytest.raises(AssertionError, match="records of demo differ"):
            list(busy.compare("demo", []))
        return
    brief, own = busy.compare("demo", [])
    assert ran == [(False, False), (True, False)] * busy.REPEATS + [(False, True), (True, True)] * busy.REPEATS
    assert (brief[2:], own[2:]) == (["2.0", "7.0", f"**3.5** {AIM}at most 2.5)"], ["2.0", "2.0", "1.0"])
    assert len(psutil.Process().children()) == before


@pytest.fixture(scope="module")
def published():
    """The demo, its data, and what the published code would find, if it agreed: nothing is faithful, all is causal."""
    lm, data = LanguageModel.from_pretrained("demo"), RelationDataModule("demo", DEMO_RELATION, "demo", trials=1)
    data.setup()
    states = run_trial(lm, data, 0, [1])
    first, second = (estimate(lm, data.trial(0).relation, layer) for layer in (0, 1))
    subjects = [prompt.subject for prompt in states.prompts]
    answers = {"faithful": [[]] * 21, "causal": [subjects] * 6}
    found = {
        "prompts": [[[*one.input_ids], one.subject_position] for one in train_prompts(data.trial(0), lm.tokenizer)],
        "targets": {subjects[row]: subjects[other] for row, other in zip(states.edited, states.targets, strict=True)},
        "layers": [
            {"weight": first.weight, "bias": first.bias} | answers,
            {"weight": second.weight, "bias": second.bias} | answers,
        ],
    }
    return lm, data, found


@pytest.mark.parametrize("wrong", [False, True])
def test_the_published_code_is_compared(published, monkeypatch, wrong):
    lm, data, found = published
    monkeypatch.setattr(paper, "LAYERS", (0, 1))
    if wrong:
        monkeypatch.setitem(found["layers"][1], "weight", found["layers"][1]["weight"] * 1.01)
        with pytest.raises(AssertionError, match=r"1, 'W'"):
            paper.compare(lm, data, found)
        return
    known, *_, weight, bias, faithful, causal = paper.compare(lm, data, found)
    count = len(found["targets"])
    assert weight[4] == bias[4] == "0e+00 of the norm, 0e+00 of the largest element"
    assert known[2:] == [count, count, 0]
    cells, edits = 21 * count, 6 * count
    right, wanted = (int(row[3].split()[0]) for row in (faithful, causal))
    assert faithful[:4] == [1, "faithful", f"0 of {cells}", f"{right} of {cells}"]
    assert faithful[4] == f"{right}, of subjects named once {right}"
    assert causal[2:4] == [f"{edits} of {edits}", f"{wanted} of {edits}"]
    assert causal[4] == f"{edits - wanted}, of subjects named once {edits - wanted}"
    assert min(right, wanted) > 0


def test_sections_are_kept_one_by_one(monkeypatch, tmp_path, capsys):
    results, said = tmp_path / "RESULTS.md", {"data": "## Data\n\nold", "memory": "## Memory\n\nold"}

    def measured(name):
        if said[name] is None:
            raise subprocess.CalledProcessError(1, name)
        return said[name]

    monkeypatch.setattr(program, "measured", measured)
    assert program.main(["memory", "data"], results) == 0
    said |= {"startup": None, "data": f"## Data\n\n| {aimed('1.4', False, '1.5')} |", "memory": None}
    assert program.main(["startup", "data", "memory"], results) == 1
    text = results.read_text()
    places = [text.index(part) for part in ("# Bench", "## Data", "**1.4** (aim: 1.5)", "## Memory\n\nold")]
    assert places == sorted(places)
    assert text.count("## ") == text.count("torch ") == 2
    assert capsys.readouterr().out.endswith("missed: data: | **1.4** (aim: 1.5) |\nfailed: startup\nfailed: memory\n")
    monkeypatch.setattr(program, "measured", lambda name: f"## {name}")
    assert program.main([], results) == 0
    assert set(program.sections(results.read_text())) == {*program.NAMES} - {"paper"}
    assert program.main(["--busy", "data"], results) == 0
    assert program.sections(results.read_text())["data_busy"].startswith("## data, beside a busy process\n")
    with pytest.raises(SystemExit):
        program.main(["jacobians"], results)
    assert "there is no benchmark 'jacobians': choose from startup," in capsys.readouterr().err


def test_the_kept_results_are_in_sections():
    names = {name.removesuffix("_busy") for name in program.sections(program.RESULTS.read_text())}
    assert names <= set(program.NAMES)


def fine(measured):
    yield kit.Row.judged("first", measured, "1", measured == "1")


def broken():
    yield kit.Row.judged("before", "1", "1", True)
    raise RuntimeError("no kernel image\nmore")


def missing():
    raise kit.Skipped("no library")
    yield


def killed():
    os._exit(9)
    yield


def hanging():
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
    yield


def test_checks_that_fail_are_rows_and_the_others_go_on(tmp_path, capsys):
    checks = {partial(check): 90.0 for check in (broken, missing, killed)} | {partial(hanging): 0.1}
    assert kit.run_all({**checks, partial(fine, "1"): 90.0}, tmp_path / "table.md") == 1
    rows = [line.split(" | ") for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert [" | ".join(row).strip("| ") for row in rows[1:]] == [
        "before | 1 | 1 | ok",
        "broken | RuntimeError: no kernel image | no error | missed",
        "missing |  |  | skipped: no library",
        "killed | the process ended with status 9 | finished | missed",
        "hanging | not finished in 0 s | finished | missed",
        "first | 1 | 1 | ok",
    ]
    assert capsys.readouterr().out.endswith("6 rows in " + str(tmp_path / "table.md") + ", 3 missed\n")
    assert kit.run_all({partial(fine, "1"): 90.0, partial(missing): 90.0}, tmp_path / "table.md") == 0
    assert kit.run_all({partial(fine, "2"): 90.0}, tmp_path / "table.md") == 1


def test_the_checks_of_a_gpu_fit_into_nine_minutes_and_work(monkeypatch, capsys):
    assert sum(gpu.CHECKS.values()) <= 9 * 60
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--output", "no/folder"])
    assert "finds no GPU here" in capsys.readouterr().err
    tiny = gpu.Kit(torch.device("cpu"), tiny=True)
    assert [row.result for row in gpu.attention(tiny)][:4] == ["ok"] * 4
    right = gpu.prompt_jacobian

    def wrong(lm, *arguments):
        return right(lm, *arguments) if lm.model.config._attn_implementation == "sdpa" else right(lm, PROMPTS[0][0], 10)

    monkeypatch.setattr(gpu, "prompt_jacobian", wrong)
    assert [row.result for row in gpu.attention(tiny)][:4] == ["ok", "missed"] * 2
