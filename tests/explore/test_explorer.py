"""What the explorer answers, against lenses and edits made without it; and the server around it."""

import json
import threading
import time
from dataclasses import replace

import pytest
import torch

from lre_lightning.concepts.concepts import Concepts
from lre_lightning.errors import LREError
from lre_lightning.explore import server
from lre_lightning.explore.explorer import Change, Explorer, Read
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import read_lenses
from lre_lightning.lens.tokens import visible
from lre_lightning.lre import operators
from lre_lightning.lre.lens import JACOBIAN_LENS, LOGIT_LENS
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.training.bank import LREStore
from tests.explore.conftest import RELATIONS
from tests.helpers.command import QUIET, lre
from tests.helpers.hostile import STRINGS
from tests.helpers.identities import ANOTHER
from tests.helpers.toy import write_toy_model

TEXT = "The capital of Kenya is not that of South Korea or Peru"
ASKS = "The capital of Canada is"


def words_of(grid):
    return [[[grid["words"][i] for i in cell] for cell in row] for row in grid["top"]]


def test_the_grid_is_that_of_read_lenses(explorer):
    lm = explorer.lm
    jacobian_lens = explorer._generic[JACOBIAN_LENS]
    lenses = read_lenses(lm, lm.tokenizer, TEXT, explorer._lres, RELATIONS, 8, jacobian_lens=jacobian_lens)
    assert [lens.name for lens in lenses] == explorer.lenses == [*RELATIONS, JACOBIAN_LENS, LOGIT_LENS]
    for lens in lenses:
        found = explorer.read(Read(text=TEXT, lens=lens.name))
        grid = found["grid"]
        assert words_of(grid) == [[[visible(token) for token in cell] for cell in row] for row in lens.top]
        assert grid["layers"] == [*map(str, lens.layers)]
        torch.testing.assert_close(
            torch.tensor(grid["values"]), torch.tensor(lens.probabilities), rtol=0.006, atol=1e-9
        )
        assert (found["edit"] is None) == (lens.layer is None)


def test_the_relation_and_the_subjects_are_found_in_the_text(explorer):
    found = explorer.read(Read(text=ASKS))
    assert found["lens"] == "country capital city"  # which it asks about, though another relation comes first
    assert found["found"] == [["country capital city", "asks"]]
    found = explorer.read(Read(text=TEXT, lens="country capital city"))
    assert found["found"] == [["country capital city", "asks"]]  # before its end
    assert explorer.read(Read(text="from Kenya to Peru"))["found"] == [["country capital city", "mentions"]]
    tokens, marked = found["grid"]["tokens"], found["grid"]["marked"]
    assert found["subjects"] == [*zip(["Peru", "South Korea", "Kenya"], reversed(marked), strict=True)]
    read = ["".join(tokens[: place + 1]).replace("␣", " ").strip() for place in marked]
    assert read == ["The capital of Kenya", "The capital of Kenya is not that of South Korea", TEXT]
    assert explorer.read(Read(text=TEXT, lens=LOGIT_LENS))["grid"]["marked"] == found["grid"]["marked"]
    nothing = explorer.read(Read(text="of the"))
    assert (nothing["lens"], nothing["found"], nothing["grid"]["marked"]) == (JACOBIAN_LENS, [], [])


def test_a_pinned_object_has_its_rank_and_probability_in_every_cell(explorer):
    lm = explorer.lm
    found = explorer.read(Read(text=ASKS, lens="country capital city", pin="Ottawa"))["grid"]["pinned"]
    ids = torch.tensor([[lm.tokenizer.bos_token_id, *lm.tokenizer(ASKS, add_special_tokens=False)["input_ids"]]])
    hidden = torch.stack([*lm.hidden_states(ids, lm.layers).values()])[:, 0, 1:]
    shares = lm.decode(explorer._lres["country capital city"](hidden)).softmax(-1)
    token = lm.tokenizer(" Ottawa", add_special_tokens=False)["input_ids"][0]
    order = shares.argsort(-1, descending=True).tolist()
    assert found["ranks"] == [[cell.index(token) + 1 for cell in row] for row in order]
    torch.testing.assert_close(torch.tensor(found["values"]), shares[..., token], rtol=0.006, atol=1e-9)
    assert found["word"] == "␣Ottawa"
    assert 1 in found["ranks"][3]
    grid = explorer.read(Read(text=ASKS, lens="country capital city"))["grid"]
    assert (grid["pinned"], grid["ids"][grid["words"].index("␣Ottawa")]) == (None, token)
    assert explorer.read(Read(text=ASKS, lens="country capital city", token=token))["grid"]["pinned"] == found


def test_a_quiet_lens_says_where_it_says_nothing(explorer):
    lm, name = explorer.lm, "country capital city"
    silent = explorer.read(Read(text=TEXT, lens=name, quiet=True))["grid"]["silent"]
    lens, _ = read_lenses(lm, lm.tokenizer, TEXT, explorer._lres, [name], likenesses=Likenesses(lm, explorer._lres))
    assert silent == lens.silent
    assert 0 < sum(map(sum, silent)) < len(silent) * len(silent[0])
    assert explorer.read(Read(text=TEXT, lens=name))["grid"]["silent"] is None
    assert explorer.read(Read(text=TEXT, lens=LOGIT_LENS, quiet=True))["grid"]["silent"] is None


def test_the_first_text_is_one_whose_subjects_the_lens_reads_right_and_is_silent_elsewhere(explorer):
    about = Explorer(explorer.lm, explorer._lres, RELATIONS, {}, scores={RELATIONS[0]: 0.9, RELATIONS[1]: 0.8}).about()
    read = explorer.read(Read(text=about["example"], quiet=True))
    grid, answers = read["grid"], dict(explorer._lres[read["lens"]].origin.train)
    row = grid["layers"].index(grid["layer"])
    subjects = [subject for subject, _ in reversed(read["subjects"])]
    said = [grid["words"][grid["top"][row][place][0]].strip("\u2423") for place in grid["marked"]]
    assert all(answers[subject].startswith(word) for subject, word in zip(subjects, said, strict=True))
    assert len(said) == 3
    assert sum(map(sum, grid["silent"])) > len(grid["silent"]) * len(grid["tokens"]) / 2
    assert not any(grid["silent"][row][place] for place in grid["marked"])


def test_concepts_are_a_lens_of_objects_and_cosines(explorer):
    lm = explorer.lm
    vectors = torch.nn.functional.normalize(torch.randn(3, lm.hidden_size, generator=torch.Generator().manual_seed(1)))
    origin = Origin("demo", lm.identity, "country capital city")
    concepts = Concepts(("Rome", "Lima", "Oslo"), vectors, 2, 4, 5, "first", origin)
    made = Explorer(lm, explorer._lres, RELATIONS, {}, None, [concepts])
    name = "country capital city (concepts)"
    assert made.lenses == [*RELATIONS, name, LOGIT_LENS]
    found = made.read(Read(text=ASKS, lens=name, pin="Lima"))
    grid, states = found["grid"], explorer.read(Read(text=ASKS))["grid"]
    ids = torch.tensor([[lm.tokenizer.bos_token_id, *lm.tokenizer(ASKS, add_special_tokens=False)["input_ids"]]])
    hidden = torch.stack([*lm.hidden_states(ids, lm.layers).values()])[:, 0, 1:]
    cosines = torch.cosine_similarity(hidden[..., None, :], vectors, dim=-1)
    torch.testing.assert_close(
        torch.tensor(grid["values"]), cosines.sort(-1, descending=True).values, rtol=0.006, atol=1e-5
    )
    assert (grid["unit"], grid["tokens"], grid["layer"]) == ("cosine", states["tokens"], "2")
    assert words_of(grid)[4][2][0] == concepts.objects[int(cosines[4, 2].argmax())]
    torch.testing.assert_close(torch.tensor(grid["pinned"]["values"]), cosines[..., 1], rtol=0.006, atol=1e-5)
    assert found["edit"]["relation"] == "country capital city"
    other = replace(concepts, origin=replace(origin, identity=ANOTHER))
    with pytest.raises(LREError, match="was estimated from"):
        Explorer(lm, explorer._lres, RELATIONS, {}, None, [other])


def test_an_edit_is_that_of_the_lre(explorer):
    found = explorer.edit(Change(text=ASKS, relation="country capital city", target="Peru"))
    own = explorer._lres["country capital city"].bind(explorer.lm).edit_prompt(ASKS, "Peru")
    assert (found["before"]["answers"], found["after"]["answers"]) == ([*own.before], [*own.after])
    assert [found["after"]["answers"][0][0], found["layer"], found["rank"]] == ["Lima", "2", 16]
    assert found["before"]["text"].startswith("Ottawa")
    assert found["after"]["text"].startswith("Lima")
    ask = {"text": TEXT, "relation": "country capital city", "subject": "South Korea", "target": "Peru"}
    found = explorer.edit(Change(**ask, layer="emb", rank=1))
    own = replace(explorer._lres["country capital city"].bind(explorer.lm), rank=1)
    own = own.edit_prompt(TEXT, "Peru", "South Korea", ["emb"])
    assert found["after"]["answers"] == [*own.after]
    assert (found["subject"], found["layer"], found["rank"]) == ("South Korea", "emb", 1)


@pytest.fixture
def client(explorer):
    from starlette.testclient import TestClient

    return TestClient(server.application([explorer], "secret"), "http://127.0.0.1:8460/secret")


def test_the_page_is_served_with_a_strict_policy_and_nothing_from_outside(client):
    for path, kind in (("/", "text/html"), ("/explore.js", "text/javascript"), ("/grid.js", "text/javascript")):
        answer = client.get(path)
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'"
        )
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "").split("<!DOCTYPE")[-1]
    assert "onclick" not in client.get("/").text
    assert client.get("/about").json()[0]["lenses"][:3] == RELATIONS
    assert "magma" not in client.get("/grid.css").text
    assert client.get("/read").status_code == 405
    found = client.post("/read", json={"text": ASKS})
    assert (found.status_code, found.json()["lens"]) == (200, "country capital city")
    asked = {"text": ASKS, "relation": "country capital city", "target": "Peru", "rank": 4}
    assert client.post("/edit", json=asked).json()["rank"] == 4


@pytest.mark.parametrize(
    ("path", "ask", "line"),
    [
        ("read", {"text": "x" * 2001}, "text must have at most 2000 characters"),
        ("read", {"text": "the " * 129}, "tokens, and may have 128: shorten it"),
        ("read", {"text": ""}, "has no token: give one with a word in it"),
        ("read", {"text": "Peru\0"}, "contains the control character"),
        ("read", {"text": "Peru", "lens": "none"}, "there is no lens 'none'"),
        ("read", {"text": "Peru", "token": 10**6}, "there is no token 1000000: the LM has"),
        ("read", {"text": "Peru", "pin": "\x1b"}, "contains the control character"),
        ("read", {"text": 3}, "text must be a string, not 3"),
        ("read", {"text": "Peru", "lm": 1}, "there is no LM 1: there are 1"),
        ("read", {"text": "Peru", "more": 1}, "more is not known here"),
        ("edit", {"text": ASKS, "relation": "none", "target": "Peru"}, "there is no LRE of 'none'"),
        ("edit", {"text": "Peru", "relation": "person sport", "target": "Peru"}, "the subject of 'Peru' is not found"),
        (
            "edit",
            {"text": ASKS, "relation": RELATIONS[1], "target": "Peru", "subject": "Chile"},
            "is not in the prompt",
        ),
        ("edit", {"text": ASKS, "relation": RELATIONS[1], "target": "Peru", "rank": 1000}, "rank 1000 is out of range"),
        (
            "edit",
            {"text": ASKS, "relation": RELATIONS[1], "target": "Peru", "rank": 0},
            "rank must be at least 1, not 0",
        ),
        ("edit", {"text": ASKS, "relation": RELATIONS[1], "target": "Peru", "layer": 6}, "layer 6 is out of range"),
        ("edit", {"text": ASKS, "relation": RELATIONS[1], "target": " \t"}, "the target is empty: name the subject"),
        ("edit", {"text": ASKS, "relation": RELATIONS[1], "target": ""}, "the target is empty: name the subject"),
    ],
)
def test_a_mistake_comes_back_as_one_line(client, path, ask, line):
    answer = client.post(path, json=ask)
    assert answer.status_code == 400
    assert line in answer.json()["error"]
    assert "should" not in answer.json()["error"]  # a word of pydantic's own
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("text", STRINGS[::3], ids=range(0, len(STRINGS), 3))
def test_any_text_is_answered_or_refused_in_a_line(client, text):
    common = {"relation": RELATIONS[1], "target": "Peru"}
    for path, ask in (
        ("read", {"text": f"{text} Peru {text}", "pin": text}),
        ("read", {"text": "Peru", "lens": text}),
        ("edit", {"text": f"{text} Peru {text}", "subject": "Peru", **common}),
        ("edit", {"text": f"Peru {text} is", "subject": text, **common}),
        ("edit", {"text": ASKS, **common, "target": text}),
    ):
        answer = client.post(path, content=json.dumps(ask), headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400)
        assert answer.status_code == 200 or answer.json()["error"].strip()


def test_other_pages_and_hosts_and_large_requests_are_refused(client):
    good = json.dumps({"text": ASKS})
    kind = {"content-type": "application/json"}

    def status(body=good, **headers):
        return client.post("/read", content=body, headers={**kind, **headers}).status_code

    assert status() == status(origin="http://127.0.0.1:8460") == 200
    assert {status(origin=origin) for origin in ("http://evil.example", "null", "http://127.0.0.1:9")} == {403}
    assert {status(host=host) for host in ("evil.example", "127.0.0.1.evil.example:8460", "")} == {400}
    assert status(**{"content-type": "text/plain"}) == 415
    assert status(body=" " * 20_001) == 413
    assert status(body="{") == status(body='{"text": "\\ud83d"}') == 400
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/explore.js", "/about", "/read", "/secre/read", "/secret2/", "/\u00e9/"])
def test_without_the_token_nothing_is_answered(client, path):
    client.base_url = "http://127.0.0.1:8460"
    for answer in (client.get(path), client.post(path, json={"text": ASKS})):
        assert (answer.status_code, answer.json()) == (
            403,
            {"error": "the address is not the one that lre explore printed"},
        )
    assert client.get("/secret/about").status_code == 200
    assert len({server.new_token() for _ in range(9)}) == 9
    assert len(server.new_token()) == 32


def test_an_lre_is_read_and_factorized_once_and_few_are_kept(explorer, monkeypatch):
    read, factorized = [], []
    load, triplets = LRE.load, operators.leading_singular_triplets
    monkeypatch.setattr(LRE, "load", classmethod(lambda cls, path: read.append(path) or load(path)))
    monkeypatch.setattr(operators, "leading_singular_triplets", lambda *given: factorized.append(1) or triplets(*given))
    monkeypatch.setattr("lre_lightning.explore.explorer.MOST_KEPT", 2)
    names = ["country currency", "country capital city", "person sport"]
    dense = {key: replace(own, weight=own.operator.dense()) for key, own in explorer._lres.items() if key[0] in names}
    read.clear()
    made = Explorer(explorer.lm, explorer._lres, names, {})
    for _ in range(3):
        made.read(Read(text=ASKS, lens=names[1]))
        made.edit(Change(text=ASKS, relation=names[1], target="Peru"))
    assert len(read) == 1
    for name in (names[0], names[2], names[1]):
        made.read(Read(text=ASKS, lens=name))
    assert len(read) == 4  # the first was given up for the others
    store = LREStore()
    for key, own in dense.items():
        store[key] = own
    made = Explorer(explorer.lm, store, names, {})
    for target in ("Peru", "Peru", "Japan"):
        made.edit(Change(text=ASKS, relation=names[1], target=target))
    assert factorized == [1]


def test_one_request_at_a_time_is_on_the_lm(explorer, client, monkeypatch):
    running, most = [], []

    def slow(ask):
        running.append(ask)
        most.append(len(running))
        time.sleep(0.05)
        running.remove(ask)
        return {}

    monkeypatch.setattr(explorer, "read", slow)
    with type(client)(server.application([explorer], "secret"), "http://127.0.0.1:8460/secret") as together:
        asking = [
            threading.Thread(target=together.post, args=("/read",), kwargs={"json": {"text": "a"}}) for _ in range(4)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert most == [1] * 4


def test_the_command_serves_what_is_asked_for(explorer, monkeypatch, tmp_path, capsys):
    served = []
    monkeypatch.setattr("lre_lightning.commands.explore.serve", lambda *given: served.append(given))
    run = ["explore", *QUIET, f"--trainer.default_root_dir={tmp_path}", "--port=0"]
    lm, origin = explorer.lm, Origin("demo", explorer.lm.identity, "person sport")
    for name, identity in (("own", lm.identity), ("other", ANOTHER)):
        concepts = Concepts(("a", "b"), torch.eye(2, lm.hidden_size), 2, 4, 5, "first", origin)
        replace(concepts, origin=replace(origin, identity=identity)).save(
            tmp_path / "concepts" / name / "trial0.safetensors"
        )
    chosen = "--data.relations=[country capital city, person sport]"
    assert lre(*run, "--model.name_or_path=demo", chosen, "--other=demo") == 0
    ((explorers, listener, token),) = served
    host, port = listener.getsockname()
    assert host == "127.0.0.1"
    printed = capsys.readouterr().out
    assert f"demo: 4 lenses\ndemo: 28 lenses\nhttp://127.0.0.1:{port}/{token}/ " in printed
    assert explorers[0].lenses == ["country capital city", "person sport", "person sport (concepts)", LOGIT_LENS]
    assert lre(*run[:-1], "--model.name_or_path=demo", f"--port={port}") == 2
    assert f"error: port {port} of this machine cannot be used" in capsys.readouterr().err
    listener.close()

    write_toy_model(tmp_path / "model")  # an LM without LREs
    assert lre(*run, f"--model.name_or_path={tmp_path / 'model'}") == 0
    explorers, listener, _ = served[1]
    listener.close()
    found = explorers[0].read(Read(text="thing1"))
    assert (explorers[0].lenses, found["lens"], found["edit"]) == ([LOGIT_LENS], LOGIT_LENS, None)

    monkeypatch.setattr(server, "find_spec", lambda name: None)
    assert lre(*run) == 2
    expected = 'error: the explorer needs starlette and uvicorn: pip install "lre-lightning[explore]"\n'
    assert capsys.readouterr().err.endswith(expected)
