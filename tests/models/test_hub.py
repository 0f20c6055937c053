"""Loading by a hub's name and revision, from a cache as huggingface_hub keeps it."""

import pytest

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.toy import write_toy_model


def test_models_and_tokenizers_come_from_the_hub_by_name_and_revision(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--toy--lm" / "refs").mkdir(parents=True)
    for seed, revision in enumerate(("main", "v1")):
        write_toy_model(tmp_path / "models--toy--lm" / "snapshots" / str(seed), seed=seed)
        (tmp_path / "models--toy--lm" / "refs" / revision).write_text(str(seed))
    for seed, revision in enumerate((None, "v1")):
        lm = LanguageModel.from_pretrained("toy/lm", revision=revision)
        expected = LanguageModel.from_pretrained(str(tmp_path / "models--toy--lm" / "snapshots" / str(seed)))
        assert (lm.name, lm.revision, lm.identity) == ("toy/lm", revision, expected.identity)
        assert len(lm.tokenizer) == 32
    with pytest.raises(LREError, match="no decoder-only LM can be loaded from 'toy/lm'"):
        LanguageModel.from_pretrained("toy/lm", revision="v9")
