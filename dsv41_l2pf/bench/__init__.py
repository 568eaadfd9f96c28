"""A short measurement for the command line: a decode step on a GPU, or what the operators cost the host."""
