"""The elements of an HTML page."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page with their attributes and texts, after a check that every tag is closed in its place."""

    VOID = ("meta", "link", "img", "br", "input", "base")

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})
        if tag not in self.VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {"tag": tag, **attributes}
        return [found for found in self.elements if wanted.items() <= found.items()]

    def texts(self, tag):
        return [found["text"].strip() for found in self.all(tag)]
