"""The explorer's server: one page, and an answer at a time, to this machine's browser alone."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lre_lightning.errors import LREError
from lre_lightning.explore.explorer import Ask, Change, Explorer, Read
from lre_lightning.lens.grid import script, style
from lre_lightning.storage.typed import Invalid

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST, PORT = "127.0.0.1", 8460
LARGEST = 20_000
"""Number of bytes that a request may have."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def check_installed() -> None:
    """Raise an `LREError` unless the packages of the server are installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise LREError(f'the explorer needs {" and ".join(missing)}: pip install "lre-lightning[explore]"')


def new_token() -> str:
    """Return a secret that nobody guesses, the first part of the path of each address of a server."""
    return secrets.token_urlsafe(24)


def application(explorers: Sequence[Explorer], token: str) -> Starlette:
    """Return the application of a server for one LM or several, which answers pages of this machine alone.

    Other users of this machine reach its port too: below ``/<token>/`` alone is anything answered. Texts are neither
    executed nor kept, and a mistake of the user comes back as one line, ``{"error": ...}``.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    turn = asyncio.Lock()

    def refused(line: str, status: int = 400) -> Response:
        return JSONResponse({"error": line}, status, HEADERS)

    def answering(kind: type[Ask], name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            # A page of another site can post only what needs no leave: not JSON, and not without its own origin.
            origin = request.headers.get("origin")
            if origin is not None and origin != f"{request.url.scheme}://{request.headers['host']}":
                return refused("requests from other pages are refused", 403)
            if request.headers.get("content-type", "").split(";")[0] != "application/json":
                return refused("a request must be application/json", 415)
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > LARGEST:
                    return refused(f"the request has more than {LARGEST} bytes: shorten the text", 413)
            try:
                ask = kind.model_validate_json(body)
                if ask.lm >= len(explorers):
                    raise LREError(f"there is no LM {ask.lm}: there are {len(explorers)}")
                answer = getattr(explorers[ask.lm], name)
                async with turn:
                    reply = await run_in_threadpool(answer, ask)
            except ValidationError as error:
                return refused(str(Invalid(error, "it")))
            except LREError as error:
                return refused(" ".join(str(error).split()))
            return JSONResponse(reply, headers=HEADERS)

        return endpoint

    def serving(content: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return Response(content, media_type=kind, headers=HEADERS)

        return endpoint

    own = {name: resources.files(__package__).joinpath(name).read_text(encoding="utf-8") for name in FILES}
    files = {
        "/": (own["explore.html"], "text/html"),
        "/explore.js": (own["explore.js"], "text/javascript"),
        "/explore.css": (own["explore.css"], "text/css"),
        "/grid.js": (script(), "text/javascript"),
        "/grid.css": (style(), "text/css"),
        "/about": (json.dumps([explorer.about() for explorer in explorers]), "application/json"),
    }
    routes = [Route(path, serving(*file)) for path, file in files.items()]
    routes.append(Route("/read", answering(Read, "read"), methods=["POST"]))
    routes.append(Route("/edit", answering(Change, "edit"), methods=["POST"]))

    class TokenChecked:
        """Lets through requests whose path begins with the token, which is not part of the path from then on."""

        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                given = scope["path"].split("/")[1]
                if not secrets.compare_digest(given.encode(errors="replace"), token.encode()):
                    await refused("the address is not the one that lre explore printed", 403)(scope, receive, send)
                    return
                scope = {**scope, "root_path": f"{scope.get('root_path', '')}/{given}"}
            await self.app(scope, receive, send)

    # Another name for this machine would let a page of that name ask as if it were ours.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts, Middleware(TokenChecked)])


FILES = ("explore.html", "explore.js", "explore.css")


def listen(port: int) -> socket.socket:
    """Take a port of this machine, any free one if 0; an `LREError` if it is taken."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise LREError(f"port {port} of this machine cannot be used: {error}; give another --port, or 0") from error


def serve(explorers: Sequence[Explorer], listener: socket.socket, token: str) -> None:
    """Answer until the process is stopped."""
    import uvicorn

    uvicorn.Server(uvicorn.Config(application(explorers, token), log_level="warning")).run(sockets=[listener])
