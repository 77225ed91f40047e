"""Pure transforms: each takes a DataFrame, ends in a ``select`` and reads or writes nothing."""
