"""One file per family of sequence mixers; each has its YAML in `conf/model`.

Unless a module says otherwise: costs are operations of a forward pass, a multiply-add counts as
two, and backward takes two to two and a half times as many; initial values are those of released
code and its model's initialiser, but projections and maps of gates are drawn Xavier-uniform with
biases of zeros, and taps of short convolutions as PyTorch draws them; where a recurrence of a
causal paper sees both sides, the form is ours: the same weights read from both ends, and both
answers are added.
"""
