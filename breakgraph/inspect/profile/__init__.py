"""Where the time of a replay goes: measured in replays, told as times of steps."""

from breakgraph.inspect.profile.measure import profile
from breakgraph.inspect.profile.table import profile_table

__all__ = ["profile", "profile_table"]
