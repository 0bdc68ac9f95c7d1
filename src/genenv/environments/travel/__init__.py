"""Travel plans: a query, a sandbox of flights, roads, rooms, restaurants and sights, and a plan that fits."""
