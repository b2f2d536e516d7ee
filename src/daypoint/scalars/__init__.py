"""The strict door: one real number in, one exact Python number out, or an error that says what to do.

It knows tensors and numbers, no names of metrics beyond the text of an error, and no files. Start with `convert`; `ring` does
the same for values on a device without waiting for it.
"""
