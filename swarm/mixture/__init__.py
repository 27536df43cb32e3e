"""Pure arithmetic on score rows."""
