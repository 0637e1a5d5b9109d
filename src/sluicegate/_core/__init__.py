"""The contracts shared by all parts of Sluicegate; imports only the standard library.

Parts import the modules of this package by name; users import these objects from their public
homes.
"""
