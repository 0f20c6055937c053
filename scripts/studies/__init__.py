"""Small studies of LREs whose tables are on the page of results: ``python -m scripts.studies.NAME FOLDER [SOURCE]``.

Each runs the demo and SmolLM2 on the relations of SOURCE, "paper" or a folder of them (the demo on its own), and writes
its tables to ``docs/results``. FOLDER keeps the LREs that it estimates, which the next call reads again.
"""
