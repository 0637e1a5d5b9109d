"""Repairs after errors: changed tables, blame, resending, sifting."""
