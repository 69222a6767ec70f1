"""The cost model: seconds and bytes by formula, vectorised over candidates. One model, read by all.

Legend for shapes: T tokens of a microbatch (mbs * sequence), h hidden, V padded vocabulary. A `Shard` holds arrays
of equal length, one entry a candidate; every function returns arrays of that length.

Imports from problem and what stands before it.
"""
