"""An optional native kernel for the blocks of the paper's models; torch computes the same without it."""
