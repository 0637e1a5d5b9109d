"""Object stores by obstore: where they are, their errors, and how an object is stored and listed."""
