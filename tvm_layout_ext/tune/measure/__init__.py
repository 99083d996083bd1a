"""Building, checking and timing candidates on devices."""
