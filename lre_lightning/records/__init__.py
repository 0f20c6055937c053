"""What a run counted: the record of a trial, files of records, summaries, and the choice of layer and rank."""
