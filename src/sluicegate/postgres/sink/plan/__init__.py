"""The table's facts and the statements that write into it."""
