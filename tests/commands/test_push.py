"""`push` without a repository: a collection in a folder, measured with the LM and the data of the run."""

from lre_lightning.sharing.collection import LRECollection
from tests.helpers.command import lre


def test_what_a_form_costs_is_measured_with_the_lm_and_the_data_of_the_run(fitted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lre_lightning.sharing.card.plot", lambda picture: ("", b""))
    run, out = LRECollection.from_pretrained(fitted / "run"), tmp_path / "c"
    assert lre("push", fitted / "run", "--rank=4", "--dtype=float16", f"--out={out}", "--base_model=toys/lm") == 0
    assert "2 LREs, 0.0 MB: " in capsys.readouterr().out
    found = LRECollection.from_pretrained(out)
    assert found.model == "toys/lm"
    for key, entry in found.index.entries.items():
        assert entry.full == run.index.entries[key].scores == (1.0, 1.0)
        assert entry.scores[0] < 1
    assert f"{fitted}" not in found.card + (out / "index.json").read_text()
    assert lre("push", fitted / "run", "lm", f"--out={tmp_path / 'd'}") == 2
    assert "'lm' is not a name on the hub: give org/name or user/name" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
    assert lre("push", out, "--rank=2", f"--out={tmp_path / 'd'}") == 2  # a collection has neither LM nor data
    assert "has no checkpoint that names the LM and the data: give a run, or --measure false" in capsys.readouterr().err
    plain = f"--plain={tmp_path / 'plain'}"
    assert lre("push", out, "--rank=2", "--measure=false", f"--out={tmp_path / 'd'}", plain) == 0
    assert len(list((tmp_path / "plain").glob("*/trial*.safetensors"))) == 2
    smaller = LRECollection.from_pretrained(tmp_path / "d")
    assert smaller["thing colour"].operator.rank == 2
    assert {(entry.full, entry.scores) for entry in smaller.index.entries.values()} == {((1.0, 1.0), (None, None))}
