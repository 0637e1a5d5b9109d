"""Dead letters: their record, their stores and readers.

`letter` is the record, `items` converts any item to plain JSON, and `text` makes text safe to
print. `store` is the contract of stores, with the notes of replays; `parked` is a park store in
memory.
"""
