"""A folder's results as one self-contained HTML page: pure, from records to text."""
