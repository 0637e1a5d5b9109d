"""Dead letters: their record, where they are stored, and how they are read."""
