"""From samples to tokens: templates, chat, positions of subject and object, trials, batches."""
