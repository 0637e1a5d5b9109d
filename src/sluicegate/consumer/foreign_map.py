"""The error for stored metadata that is not a map of finished offsets."""


class ForeignMap(ValueError):  # it names the metadata
    """The metadata of a commit cannot be read: it is from another program, damaged, or of another
    position.

    Ignoring it is safe: the records from the position on are handled again.
    """
