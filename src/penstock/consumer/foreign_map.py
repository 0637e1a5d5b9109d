"""The error of stored metadata that is no map of finished offsets."""


class ForeignMap(ValueError):  # it names the metadata
    """The metadata of a commit cannot be read: of another program, torn, or of another position.

    Ignoring it is safe: the records from the position on are handled again.
    """
