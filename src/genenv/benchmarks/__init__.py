"""Published benchmarks (ALFWorld, API-Bank, Bamboogle, BFCL, TravelPlanner), with their authors' scoring."""
