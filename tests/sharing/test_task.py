"""The prompts of facts as a task of lm-evaluation-harness: its files, and counts with and without the harness."""

import json

import pytest
import torch
import yaml

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import make_prompt
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.states import knows
from lre_lightning.sharing.task import as_asked, write_task
from tests.helpers import tokenizers_fixtures as tokenizers

NAMES = {
    "country capital city": "lre_known_country_capital_city",
    "company CEO": "lre_known_company_CEO+af1fd86c31aed8fb",
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The demo's LM and data, the folder of the task, and how many facts the LM knows, by relation."""
    lm = LanguageModel.from_pretrained("demo")
    options = {"selection": {"max_samples": 12}, "prompts": Prompts(shots=0, template={"company CEO": "{} is"})}
    data = RelationDataModule(None, list(NAMES), "demo", n_shot=2, trials=2, **options)
    data.use(lm)
    known = dict.fromkeys(NAMES.values(), 0)
    for index, (relation, _) in enumerate(data.schedule):
        name = NAMES[data.relations[relation].name]
        known[name] += sum(int(knows(lm, batch).sum()) for batch in data.val_dataloader([index]))
    folder = tmp_path_factory.mktemp("task")
    assert write_task(data, folder) == (2 * 2 * 10, 0)
    return lm, data, folder, known


def test_the_answers_to_the_texts_of_a_task_are_what_is_known(asked):
    lm, _, folder, known = asked
    assert 0 < sum(known.values()) < 40
    group = yaml.safe_load((folder / "lre_known.yaml").read_text())
    assert set(group["task"]) == set(NAMES.values())
    for name in group["task"]:
        task = yaml.safe_load((folder / f"{name}.yaml").read_text())
        lines = (folder / task["dataset_kwargs"]["data_files"]["test"]).read_text(encoding="utf-8").splitlines()
        count = 0
        for row in map(json.loads, lines):
            context, whole = (
                lm.tokenizer(text, add_special_tokens=False)["input_ids"]
                for text in (row[task["doc_to_text"]], row["prompt"] + task["target_delimiter"] + row["answer"])
            )
            assert whole[:-1] == context
            with torch.no_grad():
                count += int(lm.model(torch.tensor([context])).logits[0, -1].argmax()) == whole[-1]
            assert row["object"].startswith(row["answer"].strip())
        assert (count, len(lines)) == (known[name], 20)


def test_the_harness_counts_what_we_count(asked, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: make other-tools")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm, _, folder, known = asked
    monkeypatch.chdir(folder)
    model = HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=8, device="cpu")
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=["lre_known"], task_manager=tasks, bootstrap_iters=0)
    counts = {name: found["results"][name]["acc,none"] * 20 for name in known}
    assert counts == pytest.approx(known)
    assert found["results"]["lre_known"]["acc,none"] == pytest.approx(sum(known.values()) / 40)


@pytest.mark.parametrize("start", ["bos", "none"])
@pytest.mark.parametrize("adds", [True, False])
def test_the_harness_makes_the_tokens_of_our_prompts(start, adds):
    """`HFLM` adds what the tokenizer adds, unless the text begins with BOS."""
    post = tokenizers.around(tokenizers.START) if adds else None
    tokenizer = tokenizers.byte_level(bos=tokenizers.START, post=post)
    prompt = make_prompt(tokenizer, "{} is in", Sample("Rome", "Italy"), options=Prompts(start_token=start))
    found = as_asked(tokenizer, prompt, prompt.input_ids[: prompt.start])
    if start == "none" and adds:  # the harness would put BOS in front
        assert found is None
        return
    context, answer = found
    options = {"add_special_tokens": False} if context.startswith(tokenizers.START) else {}
    assert tokenizer.encode(context + answer, **options) == [*prompt.input_ids, prompt.object_token]
    assert context.endswith("Rome is in")


def test_prompts_that_cannot_be_asked_are_left_out(tmp_path):
    """All beasts begin with a bare space, after which they are parts of characters; no capital does."""
    facts = {"beast": ["a 龍", "b 鳳", "c 亀"], "capital": ["France Paris", "Japan Tokyo", "Italy Rome"]}
    samples = {name: tuple(Sample(*pair.split()) for pair in pairs) for name, pairs in facts.items()}
    source = [Relation(name, "", ("{} is",), (), "", "", False, some) for name, some in samples.items()]
    data = RelationDataModule(tokenizers.byte_level(), source=source, n_shot=1, trials=1)
    assert write_task(data, tmp_path) == (2, 2)
    files = {"lre_known.yaml", "lre_known_capital.yaml", "lre_known_capital.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == files
    with pytest.raises(LREError, match="the harness cannot ask any of the prompts"):
        write_task(data.changed(relations="beast"), tmp_path)
