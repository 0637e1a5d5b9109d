"""Dead letters: their record, their stores and readers."""
