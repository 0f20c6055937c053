"""A local server that speaks the part of the Hugging Face hub's protocol that this project needs."""

import base64
import hashlib
import json
import re
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.helpers.servers import Handler, serving


class Hub:
    """Repositories, in memory: the files of each branch, large ones by digest, and all requests.

    Attributes:
        branches: Files by path, by repository and branch.
        commits: The same by commit.
        address: The server's.
        private: Whether each repository is private.
        large: Contents that were uploaded by themselves, by SHA-256.
        requests: Method and path of each request.
        refuse: Called with method, path and body; what it returns, if anything, is the status to answer with.
    """

    TOKEN = "hf_right"

    def __init__(self):
        self.branches, self.commits, self.private, self.large, self.requests = {}, {}, {}, {}, []
        self.refuse = lambda method, path, body: None

    def files(self, name, branch="main"):
        return self.branches[name][branch]

    @staticmethod
    def commit_of(files):
        return hashlib.sha1(json.dumps({k: hashlib.sha1(v).hexdigest() for k, v in files.items()}).encode()).hexdigest()

    def revision(self, name, revision):
        return self.branches[name].get(revision, self.commits.get(revision))

    def commit(self, name, branch, lines):
        files = dict(self.files(name, branch))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.branches[name][branch] = self.commits[self.commit_of(files)] = files
        return self.commit_of(files)


class _Request(Handler):
    """Answers one request to the class attribute `hub`."""

    hub: Hub

    def do_POST(self):
        self.answer(True)

    def do_PUT(self):
        self.answer(True)

    def answer(self, body):
        hub, path = self.hub, unquote(urlsplit(self.path).path).strip("/")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append((self.command, path))
        status = hub.refuse(self.command, path, sent)
        if status is None and self.command in ("POST", "PUT") and not path.startswith("large/"):
            status = None if self.headers.get("Authorization") == f"Bearer {hub.TOKEN}" else 401
        if status is not None:
            return self.reply(status, b"{}", {}, body)
        for pattern, method in _ROUTES:
            found = re.fullmatch(pattern, f"{self.command} {path}")
            if found:
                return getattr(self, method)(body, sent, *found.groups())
        return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def json(self, content, body=True, status=200):
        return self.reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"}, body)

    def create(self, body, sent):
        asked = json.loads(sent)
        name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
        known = name in self.hub.branches
        self.hub.branches.setdefault(name, {"main": {}})
        self.hub.private.setdefault(name, asked.get("private") or asked.get("visibility") == "private")
        self.json({"url": f"{self.hub.address}/{name}"}, status=409 if known else 200)

    def validate(self, body, sent):
        try:
            yaml.safe_load(json.loads(sent)["content"].split("---")[1])
        except yaml.YAMLError as error:
            return self.json({"errors": [{"message": str(error)}]}, status=400)
        return self.json({"errors": [], "warnings": []})

    def branch(self, body, sent, name, branch):
        branches = self.hub.branches[name]
        known = branch in branches
        branches.setdefault(branch, dict(branches["main"]))
        self.json({}, status=409 if known else 200)

    def information(self, body, sent, name, revision=None):
        if name not in self.hub.branches or self.hub.revision(name, revision or "main") is None:
            error = "RevisionNotFound" if name in self.hub.branches else "RepoNotFound"
            return self.reply(404, b"{}", {"X-Error-Code": error}, body)
        files = self.hub.revision(name, revision or "main")
        found = {"id": name, "sha": self.hub.commit_of(files), "siblings": [{"rfilename": file} for file in files]}
        return self.json(found, body)

    def tree(self, body, sent, name, revision):
        files = self.hub.revision(name, revision)
        oid = {file: hashlib.sha1(content).hexdigest() for file, content in files.items()}
        self.json([{"type": "file", "path": f, "size": len(c), "oid": oid[f]} for f, c in files.items()], body)

    def preupload(self, body, sent, name, revision):
        asked = json.loads(sent)["files"]
        modes = {f["path"]: "lfs" if f["path"].endswith((".safetensors", ".png")) else "regular" for f in asked}
        self.json({"files": [{"path": f, "uploadMode": m, "shouldIgnore": False} for f, m in modes.items()]})

    def batch(self, body, sent, name):
        def action(one):
            known = {"oid": one["oid"], "size": one["size"]}
            address = f"http://{self.headers['Host']}/large/{one['oid']}"
            return known if one["oid"] in self.hub.large else known | {"actions": {"upload": {"href": address}}}

        self.json({"transfer": "basic", "objects": [action(one) for one in json.loads(sent)["objects"]]})

    def put(self, body, sent, oid):
        self.hub.large[oid] = sent
        self.json({})

    def add(self, body, sent, name, revision):
        oid = self.hub.commit(name, revision, [json.loads(line) for line in sent.splitlines()])
        self.json({"commitUrl": f"{self.hub.address}/{name}/commit/{oid}", "commitOid": oid, "hookOutput": ""})

    def resolve(self, body, sent, name, revision, file):
        files = self.hub.revision(name, revision) if name in self.hub.branches else None
        error = "RepoNotFound" if name not in self.hub.branches else "RevisionNotFound" if files is None else None
        if self.hub.private.get(name) and self.headers.get("Authorization") != f"Bearer {self.hub.TOKEN}":
            error = "RepoNotFound"
        if error or file not in files:
            return self.reply(404, b"{}", {"X-Error-Code": error or "EntryNotFound"}, body)
        etag = hashlib.sha256(files[file]).hexdigest()
        return self.reply(200, files[file], {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit_of(files)}, body)


_KIND, _NAME, _REVISION = "(?:models|datasets)", r"([\w.-]+/[\w.-]+)", r"([^/]+)"
_ROUTES = (
    ("POST api/repos/create", "create"),
    ("POST api/validate-yaml", "validate"),
    (f"POST api/{_KIND}/{_NAME}/branch/{_REVISION}", "branch"),
    (f"GET api/{_KIND}/{_NAME}", "information"),
    (f"GET api/{_KIND}/{_NAME}/revision/{_REVISION}", "information"),
    (f"GET api/{_KIND}/{_NAME}/tree/{_REVISION}", "tree"),
    (f"POST api/{_KIND}/{_NAME}/preupload/{_REVISION}", "preupload"),
    (rf"POST {_NAME}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT large/(\w+)", "put"),
    (f"POST api/{_KIND}/{_NAME}/commit/{_REVISION}", "add"),
    (f"(?:GET|HEAD) (?:datasets/)?{_NAME}/resolve/{_REVISION}/(.+)", "resolve"),
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that is logged in to, for a process that has downloaded nothing."""
    made = Hub()
    constants = "huggingface_hub.constants"
    with serving(type("Request", (_Request,), {"hub": made})) as address:
        made.address = address
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "ENDPOINT": address,
            "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        }.items():
            monkeypatch.setattr(f"{constants}.{name}", value)
        monkeypatch.setenv("HF_TOKEN", Hub.TOKEN)
        yield made
