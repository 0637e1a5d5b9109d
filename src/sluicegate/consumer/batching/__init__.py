"""Handling of messages in batches: forming batches, and the effect of a batch's results on its
messages.
"""
