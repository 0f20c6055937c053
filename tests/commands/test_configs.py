"""The bundled configurations: they parse, resolve, and build with an LM of the right depth and random weights."""

import io
import os
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from lre_lightning.commands.parser import CONFIGS
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.relations.sources import load_relations
from tests.helpers.command import lre

NAMES = ["gpt2_xl", "gptj", "llama3_8b", "llama_13b", "pythia"]


def published(name):
    """The LM's configuration in its published shape."""
    from transformers import GPT2Config, GPTJConfig, GPTNeoXConfig, LlamaConfig

    def llama(width, layers, **shape):
        return LlamaConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 128, **shape)

    return {
        "gpt2_xl": lambda: GPT2Config(n_layer=48, n_head=25, n_embd=1600),
        "gptj": lambda: GPTJConfig(n_layer=28, n_head=16, n_embd=4096, rotary_dim=64, vocab_size=50400),
        "llama_13b": lambda: llama(5120, 40, intermediate_size=13824, vocab_size=32000),
        "llama3_8b": lambda: llama(4096, 32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256),
        "pythia": lambda: GPTNeoXConfig(num_hidden_layers=32, num_attention_heads=32, hidden_size=4096),
    }[name]()


@cache
def printed(*args):
    """What --print_config says for a subcommand and a named configuration."""
    with redirect_stdout(io.StringIO()) as out:
        assert lre(*args, "--print_config") == 0
    return yaml.safe_load(out.getvalue())


def is_part(given, whole):
    """Whether a configuration has all given values, whatever else it has."""
    if isinstance(given, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in given.items())
    return given == whole


def test_an_evaluation_has_a_folder_of_its_own_and_counts_baselines():
    configs = [printed(name, "--config", "gptj") for name in ("fit", "evaluate", "predict")]
    folders = [config["trainer"]["default_root_dir"] for config in configs]
    assert folders == ["lre_runs", "lre_evaluation", "lre_runs"]
    names = [[one["class_path"].rpartition(".")[2] for one in config["model"]["measures"]] for config in configs[:2]]
    assert names[0] == ["Majorities", "LowRank", "Outcomes"]
    assert names[1] == [*names[0], "Baselines", "LineIntegrals", "Generations", "Distributions"]


def test_the_settings_are_the_papers():
    assert sorted(path.stem for path in CONFIGS.glob("*.yaml")) == NAMES
    for name, n, beta in (("gpt2_xl", 8, 2.25), ("gptj", 8, 2.25), ("llama_13b", 5, 8.0)):
        config = printed("fit", "--config", name)
        assert (config["data"]["n_shot"], config["data"]["trials"], config["model"]["beta"]) == (n, 24, beta)
    choices = printed("fit", "--config", "gptj")["model"]["fitting"]["choices"]
    assert len(choices) == 46
    assert choices["country capital city"] == {"layer": 3, "rank": 68}
    assert choices["name gender"] == {"layer": "emb", "rank": 17}


def test_options_win_over_a_named_configuration():
    config = printed("fit", "--config=gptj", "--model.fitting.choices=null", "--data.trials=2")
    assert (config["model"]["fitting"]["choices"], config["data"]["trials"], config["model"]["beta"]) == (None, 2, 2.25)


def test_a_file_of_that_name_is_taken_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gptj").write_text("data: {trials: 5}\n")
    assert printed.__wrapped__("fit", "--config", "gptj")["data"]["trials"] == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_named_configuration_resolves_and_the_published_shape_has_its_layers_and_ranks(name):
    """On the meta device, where weights take no memory."""
    from transformers import AutoModelForCausalLM

    config = printed("fit", "--config", name)
    assert is_part(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()), config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(published(name))
    given = config["model"]
    width, layers = model.get_input_embeddings().weight.shape[1], model.config.num_hidden_layers
    for choice in (given["fitting"]["choices"] or {}).values():
        assert choice["layer"] == "emb" or choice["layer"] < layers
        assert choice["rank"] <= width
    assert all(1 <= rank <= width for rank in given["ranks"] or [])
    assert all(beta >= 0 for beta in [given["beta"], *(given["betas"] or [])])
    RelationDataModule("demo", **{key: value for key, value in config["data"].items() if key != "tokenizer"})


@pytest.mark.skipif(not os.environ.get("LRE_RELATIONS_DIR"), reason="needs LRE_RELATIONS_DIR: the 47 relations")
def test_gptj_has_a_choice_for_every_relation_that_it_knows():
    names = {relation.name for relation in load_relations(source=os.environ["LRE_RELATIONS_DIR"])}
    given = yaml.safe_load((CONFIGS / "gptj.yaml").read_text())["model"]["fitting"]["choices"]
    assert names - set(given) == {"univ degree gender"}
    assert not set(given) - names
    exclude = yaml.safe_load((CONFIGS / "llama_13b.yaml").read_text())["data"]["selection"]["exclude"]
    assert set(exclude) <= names
