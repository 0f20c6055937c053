"""Arguments before any work: short help, mistakes in one line, completion, and Ctrl-C during the imports."""

import signal
import subprocess
import sys

import pytest

import lre_lightning
from lre_lightning.commands.main import COMMANDS
from lre_lightning.commands.outline import HELPS, SUMMARIES
from scripts.helps import rendered


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["fit", "--model.measures+=my.Measure"],
            "--model.measures: my.Measure cannot be imported: No module named 'my'",
        ),
        (["fitt"], "there is no subcommand fitt: choose from fit, validate, .*; did you mean fit?"),
        ([], "a subcommand is missing: choose from fit, validate, "),
        (["fit", "--model.layer=3"], "there is no option --model.layer; did you mean --model.layers?"),
        (["fit", "--trainer.acelerator", "cpu"], "no option --trainer.acelerator; did you mean --trainer.accelerator?"),
        (["fit", "--n_shot=3"], "there is no option --n_shot; did you mean --data.n_shot?"),
        (["fit", "-data.chat"], "there is no option --data.chat; did you mean --data.prompts.chat?"),
        (["report", "run", "--ot=x"], "there is no option --ot; did you mean --out?"),
        (["report"], "the following arguments are required: results"),
        (["edit", "The capital of Canada is"], "the following arguments are required: target"),
        (["fit", "run"], "unrecognized arguments: run"),
        (["fit", "--config=gptjj"], "no configuration 'gptjj': give a file or gpt2_xl, .* did you mean gptj?"),
        (["fit", "--config=options.yaml"], "there is no option --model.layer; did you mean --model.layers?"),
        (["fit", "--model.layers=[emd]"], "takes [a whole number or emb, ...] or null, not ['emd']; did you mean emb?"),
        (
            ["fit", "--model.fitting.select_by=causal"],
            "--model.fitting.select_by takes middle or causality or faithfulness or both, not causal; did you mean "
            "causality?",
        ),
        (["fit", "--data.prompts.chat=flase"], "chat takes true or false, not flase; did you mean false?"),
        (["fit", "--data.trials=many"], "--data.trials takes a whole number, not many"),
        (["fit", "--help=modle"], "no option begins with 'modle'; did you mean model?"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name_and_one_about_help(said, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.yaml").write_text("model: {layer: [1]}\n")
    status, output, error = said(*args)
    assert (status, output) == (2, "")
    first, second = error.splitlines()
    assert first.startswith("error: ")
    assert all(part in first for part in message.split(".*"))
    assert second == f"help: lre {args[0] + ' ' if args and args[0] in COMMANDS else ''}--help"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_subcommand_is_short_and_has_all_own_options(said, name):
    status, short, _ = said(name, "--help")
    assert status == 0
    written = (HELPS / f"{name}.txt").read_text()
    assert written == rendered(name), "run python -m scripts.helps"
    assert "".join(short.split()) == "".join(written.split())  # wrapped, perhaps at hyphens
    assert len(short.splitlines()) < 112
    assert max(map(len, short.splitlines())) < 100
    if COMMANDS[name].needs_lm:
        group, choice, number = "fitting", "select_by {middle,causality,faithfulness,both}", "--data.n_shot"
        if name == "jlens":
            group, choice, number = "averaging", "targets {later,same}", "--data.length"
        shown = ("--model.layers", number, "--trainer.devices", choice.split()[0])
        for option in shown:  # predict and edit have no use for most
            assert (option in short) == (option == "--trainer.devices" or not COMMANDS[name].unused)
        assert "limit_train_batches" not in short
    if name in ("fit", "jlens"):  # the others have the parser of a fit
        section = said(name, "--help", f"model.{group}")[1]
        assert f"--model.{group}.{choice}" in section
        assert "--model.layers" not in section
        whole = said(name, "--help", "all")[1]
        assert "--trainer.limit_train_batches" in whole
        assert "--checkpoint.save_top_k" in whole


def test_help_says_what_is_taken_where_nothing_is_given(said):
    short = " ".join(said("fit", "--help")[1].split())
    assert 'Layers to try: "emb" and block indices. All if not given.' in short
    assert "Powers of two from 4 to 256 or the LM's width if not given." in short


def test_broken_yaml_is_named_by_its_file(said, tmp_path):
    (tmp_path / "broken.yaml").write_text("model:\n  betas: [1\n data: x\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    status, _, error = said("fit", "--config", tmp_path / "broken.yaml")
    assert status == 2
    assert error.startswith(f"error: '{tmp_path / 'broken.yaml'}', line 3, column 6, is not YAML: ")
    assert f"'{tmp_path / 'bytes.yaml'}' cannot be read" in said("fit", f"--config={tmp_path / 'bytes.yaml'}")[2]


def test_the_help_says_in_one_line_what_each_subcommand_does(said):
    assert said("--version") == (0, f"lre {lre_lightning.__version__}\n", "")
    lines = said("--help")[1].splitlines()
    assert list(SUMMARIES) == list(COMMANDS)
    for name, command in COMMANDS.items():
        assert f"    {name:<20}{type(command).__doc__.splitlines()[0]}" in lines


def test_a_shell_completes_subcommands_options_and_values(said):
    pytest.importorskip("shtab", reason="shtab writes the script")
    script = said("--print_completion", "bash")[1]

    def completed(*words):
        asked = f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n_shtab_lre\necho ${{COMPREPLY[*]}}"
        command = ["bash", "-c", f"{script}\n{asked}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("lre", "d") == ["dataset", "distract", "data"]
    prompts = [f"--data.prompts.{name}" for name in ("shots", "separator", "system", "start_token", "sampling")]
    assert completed("lre", "fit", "--data.prompts.s") == prompts
    assert completed("lre", "fit", "--model.fitting.select_by", "c") == ["causality"]
    assert completed("lre", "fit", "--config", "gptj") == ["gptj"]


INTERRUPTED = """
import os, signal, sys, time
class Interrupts:
    def find_spec(self, name, *others):
        if name == "lre_lightning.commands.main":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:  # as extension modules lose it
                pass
sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.default_int_handler)
from lre_lightning.cli import main
sys.exit(main(["data"]))
"""


def test_ctrl_c_during_the_imports_ends_without_a_traceback():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGINT, "", "")


OUTLINED = """
import sys
from lre_lightning.cli import main
status = main(sys.argv[1:])
sys.exit(status if {"torch", "lightning", "transformers", "jsonargparse"}.isdisjoint(sys.modules) else 99)
"""


@pytest.mark.parametrize(("arguments", "status"), [("--help", 0), ("--version", 0), ("fitt", 2), ("fit --help", 0)])
def test_help_version_and_typos_import_no_torch(arguments, status):
    command = [sys.executable, "-c", OUTLINED, *arguments.split()]
    assert subprocess.run(command, capture_output=True).returncode == status
