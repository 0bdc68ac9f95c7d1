"""Control of mechanical systems whose physics a simulator sets, for policies that write torques."""
