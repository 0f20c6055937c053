"""What one trial measures: faithfulness, causality, baselines and line integrals."""
