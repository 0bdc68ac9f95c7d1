"""TravelPlanner (arXiv:2402.01622): trips planned from given information under 13 constraints."""

from genenv.benchmarks.travelplanner.benchmark import TravelPlanner

__all__ = ["TravelPlanner"]
