"""Convert one real number, such as a 0-dim tensor, to exactly one Python number, or raise an error that says what to do.

It knows tensors and numbers. It knows no files, and the name of a metric only for the text of an error. Start with `convert`;
`ring` does the same for values on a device without waiting for it.
"""
