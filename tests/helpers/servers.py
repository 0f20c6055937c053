"""Local HTTP servers, for what comes from the network elsewhere."""

import http.server
import threading
from contextlib import contextmanager


class Handler(http.server.BaseHTTPRequestHandler):
    """Hands HEAD and GET on to `answer(body)`, and logs nothing."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def log_message(self, *args):
        pass


@contextmanager
def serving(handler):
    """Serve as a class of handlers says; gives the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
