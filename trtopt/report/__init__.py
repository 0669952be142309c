"""Records to text, JSON and other forms that people and programs read."""
