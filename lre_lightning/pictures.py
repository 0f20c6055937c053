"""Pictures: figures of matplotlib that notebooks show, also without pyplot."""

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that is shown where it is the value of a notebook's cell."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
