"""`penstock tune`: find limits for a given load."""
