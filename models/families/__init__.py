"""One file per family of sequence mixers; each has its YAML in `conf/model`.

Unless a module states otherwise: costs are operations of a forward pass, where a multiply-add
counts as two, and backward takes two to two and a half times as many. Initial values are those of
the released code and its model's initialiser, except that projections and maps of gates are drawn
Xavier-uniform with biases of zeros, and taps of short convolutions as PyTorch draws them. If a
paper has only a causal recurrence, the bidirectional form is an addition of this project: the same
weights read the sequence from both ends, and both outputs are added.
"""
