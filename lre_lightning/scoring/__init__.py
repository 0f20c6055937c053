"""Everything that is measured in one trial: faithfulness, causality, baselines and line integrals."""
