"""From the records of runs to the paper's numbers, tables and figures, and a page that holds them. No LM is needed."""
