"""What every part of Penstock stands on: the contracts, and nothing but the standard library.

Parts import the modules of this package by name; users meet these objects under their public homes.
"""
