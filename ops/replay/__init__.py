"""Reading records again and counting, keeping or sending them."""
