"""A folder's findings as one HTML page that needs nothing else: pure, from records to text."""
