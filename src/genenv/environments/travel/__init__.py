"""Travel planning: a query, a database of flights, roads, rooms, restaurants and sights, and a plan."""
