"""The explorer: a page in the browser on which one types a text, looks through lenses, and edits."""
