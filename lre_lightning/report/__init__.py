"""Statistics, tables, figures, findings and the page of a report, made from the records of runs without an LM."""
