"""Linear relational concepts: a direction for every object of a relation, compared with probes."""
