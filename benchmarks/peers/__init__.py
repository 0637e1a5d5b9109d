"""The alternatives in common use, written as fairly as possible."""
