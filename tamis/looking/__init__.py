"""Look into data and into the outputs of runs: rows, the life of one document, and the differences between two runs."""
