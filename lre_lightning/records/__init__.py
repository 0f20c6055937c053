"""Records of trials and their files, summaries of them, and the choice of layer and rank."""
