"""What people use instead, written as fairly as we can."""
