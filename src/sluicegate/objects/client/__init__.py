"""Object stores with obstore: their place, their errors, and storing and listing objects."""
