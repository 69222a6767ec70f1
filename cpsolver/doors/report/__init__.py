"""Ways to show a plan to people and to other tools: every module here reads results and decides nothing."""
