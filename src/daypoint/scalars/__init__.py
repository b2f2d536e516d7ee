"""The strict conversion of values to Python numbers; everything that is not one real number is refused.

It knows tensors and numbers, no names of metrics beyond the text of an error, and no files. Start with `convert`; `ring` does
the same for values on a device without waiting for it.
"""
