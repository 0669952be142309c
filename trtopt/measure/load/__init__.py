"""Open-loop load: arrivals, the load pass, the search for the highest rate."""
