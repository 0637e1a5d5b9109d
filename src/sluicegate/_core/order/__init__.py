"""Order per key: lanes, keys, prefixes, parking."""
